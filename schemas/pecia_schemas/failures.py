"""Failure codes of jobs and parts, each with its meaning and advice."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict


class FailureCode(StrEnum):
    """Reason of a failure: `meaning` explains it in a sentence, `advice` names what to do.

    `retryable` is whether the fleet retries automatically before it gives up.
    """

    meaning: str
    advice: str
    retryable: bool

    def __new__(cls, code: str, meaning: str, advice: str, retryable: bool = False) -> Self:  # noqa: D102
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.advice = advice
        member.retryable = retryable
        return member

    UNSUPPORTED_TYPE = (
        "unsupported_type",
        "The content has no type that this task can process, whatever the file's name is.",
        "Send PNG, JPEG, TIFF, PDF, DICOM or a kind in docs/inputs.md, or to caption MP4, WebM, MKV, AVI or MPEG-TS.",
    )
    EMPTY = (
        "empty",
        "The file is empty.",
        "The file has no bytes, pages or frames: check how it was written, then send it again.",
    )
    DAMAGED = (
        "damaged",
        "The file or the page cannot be decoded.",
        "The file ends early or its content contradicts itself: export or scan it again.",
    )
    DECODE_TIMEOUT = (
        "decode_timeout",
        "The page, or three others of its document, took too long to decode.",
        "Decoding takes longer than PECIA_DECODE_TIMEOUT: print or scan the document again, or raise the limit.",
    )
    ENCRYPTED = (
        "encrypted",
        "The PDF is protected, and no password or a wrong one was given with it.",
        "Submit it again with the right `password=`, or save it without protection.",
    )
    TOO_LARGE = (
        "too_large",
        "The file, a page or all pages together are larger than the fleet accepts.",
        "Bytes or pixels exceed the fleet's limits (PECIA_MAX_*): scan at a lower resolution or raise them.",
    )
    TOO_MANY_PAGES = (
        "too_many_pages",
        "The document has more pages than the fleet accepts.",
        "Split the document, select fewer pages, or raise PECIA_MAX_PAGES.",
    )
    TOO_LONG = (
        "too_long",
        "The video is longer, or has more segments, than the fleet accepts.",
        "Cut the video, change the length of its segments, or raise PECIA_MAX_VIDEO_DURATION and PECIA_MAX_SEGMENTS.",
    )
    NO_SUCH_PAGE = (
        "no_such_page",
        "The document does not have all the selected pages.",
        "The document ends before the selected pages: correct `pages`.",
    )
    LANGUAGE_UNAVAILABLE = (
        "language_unavailable",
        "The engine does not know the requested language.",
        "The engine of this fleet cannot read that language: choose another language or another engine.",
    )
    FIELDS_UNAVAILABLE = (
        "fields_unavailable",
        "The engine cannot extract the requested fields.",
        "Submit without `fields` or with a simpler schema, and to a language model (PECIA_ENGINE=vllm or openai).",
    )
    INSTRUCTIONS_UNAVAILABLE = (
        "instructions_unavailable",
        "The engine does not accept instructions.",
        "Submit without `instructions`, or to a language model whose reader card accepts them.",
    )
    ADAPTER_UNAVAILABLE = (
        "adapter_unavailable",
        "The engine does not serve the requested adapter.",
        "Submit with an adapter of PECIA_ADAPTERS or without `adapter`, or add this one there.",
    )
    NO_ENGINE = (
        "no_engine",
        "No engine of this fleet does this kind of work.",
        "Start an engine worker with PECIA_ENGINE=vllm and PECIA_MODEL, or PECIA_ENGINE=openai and a server's URL.",
    )
    SOURCE_UNREACHABLE = (
        "source_unreachable",
        "The server of the document's URL did not answer, closed the connection or failed.",
        "The fleet retries; then check that it can reach that server, or send the file itself.",
        True,
    )
    SOURCE_REFUSED = (
        "source_refused",
        "The fleet may not fetch the document's URL, or its server denies access.",
        "Check the URL and its permissions, and PECIA_SOURCE_* for what the fleet may fetch, or send the file itself.",
    )
    PAYLOAD_MISSING = (
        "payload_missing",
        "The worker cannot find the document in the payload store.",
        "The payload is not in the store: check that client and fleet use the same PECIA_PAYLOAD_URL.",
    )
    PAYLOAD_CORRUPT = (
        "payload_corrupt",
        "The stored document is not the submitted one.",
        "The stored payload does not match its checksum: check the store's disk and submit again.",
    )
    KEY_UNAVAILABLE = (
        "key_unavailable",
        "The worker cannot decrypt the job or its document.",
        "It is encrypted with a key that the worker lacks: add that to the fleet's PECIA_ENCRYPTION_KEYS, then retry.",
        True,
    )
    ENGINE_ERROR = (
        "engine_error",
        "The engine raised an error, or its server did not answer.",
        "The engine failed on this part; the fleet retries, then see the worker's log.",
        True,
    )
    TIMEOUT = (
        "timeout",
        "The part was stopped because it took too long.",
        "The part took longer than PECIA_PART_TIMEOUT; the fleet retries, then raise the limit.",
        True,
    )
    POISONED = (
        "poisoned",
        "Several workers that ran the part died.",
        "The part killed its worker more than once and is kept for inspection: look at the page before a retry.",
    )
    INTERNAL = (
        "internal",
        "Something unexpected happened.",
        "A fault in Pecia itself; the fleet retries, then please report it with the job's id.",
        True,
    )


class Failure(BaseModel):
    """Why a job or part failed. Contains no text of the document."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    code: FailureCode
    message: str
    """One sentence: the finding, and what to do."""
    attempt: int = 0
    """Number of the last failed attempt; 0 if the job failed before any part ran."""

    @property
    def retryable(self) -> bool:
        """Whether the fleet retried automatically before it gave up."""
        return self.code.retryable

    @classmethod
    def of(cls, code: FailureCode, found: str = "", *, attempt: int = 0) -> Failure:
        """Return a failure whose sentence has the finding, then what to do."""
        return cls(code=code, message=f"{found} {code.advice}".strip(), attempt=attempt)
