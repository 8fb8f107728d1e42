"""Why a job or a part failed: one enum; of each code what happened, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict


class FailureCode(StrEnum):
    """What went wrong: `meaning` says it in a sentence, `advice` what to do about it.

    `retryable`: whether the fleet tries again by itself before it gives up.
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
        "The content is of no type that can be worked on in this way, whatever its name says.",
        "Send PNG, JPEG, TIFF, PDF, DICOM or a kind in docs/inputs.md, or to caption MP4, WebM, MKV, AVI or MPEG-TS.",
    )
    EMPTY = (
        "empty",
        "There is nothing in the file.",
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
        "Decoding takes longer than PECIA_DECODE_TIMEOUT: print or scan the document anew, or raise the limit.",
    )
    ENCRYPTED = (
        "encrypted",
        "The PDF is protected, and no password or a wrong one was given with it.",
        "Submit it again with the right `password=`, or save it without protection.",
    )
    TOO_LARGE = (
        "too_large",
        "The file, a page or all of them together are larger than the fleet takes.",
        "Bytes or pixels exceed the fleet's limits (PECIA_MAX_*): scan at a lower resolution or raise them.",
    )
    TOO_MANY_PAGES = (
        "too_many_pages",
        "The document has more pages than the fleet takes.",
        "Split the document, ask for fewer pages, or raise PECIA_MAX_PAGES.",
    )
    TOO_LONG = (
        "too_long",
        "The video lasts longer, or has more segments, than the fleet takes.",
        "Cut the video, change the length of its segments, or raise PECIA_MAX_VIDEO_DURATION and PECIA_MAX_SEGMENTS.",
    )
    NO_SUCH_PAGE = (
        "no_such_page",
        "The document has no such page.",
        "The document ends before the pages asked for: correct `pages`.",
    )
    LANGUAGE_UNAVAILABLE = (
        "language_unavailable",
        "The engine does not know the language that was asked for.",
        "The engine of this fleet cannot read that language: choose another language or another engine.",
    )
    FIELDS_UNAVAILABLE = (
        "fields_unavailable",
        "The engine cannot return the fields that were asked for.",
        "Submit without `fields` or with a simpler schema, and to a language model (PECIA_ENGINE=vllm or openai).",
    )
    INSTRUCTIONS_UNAVAILABLE = (
        "instructions_unavailable",
        "The engine takes no instructions.",
        "Submit without `instructions`, or to a language model whose reader card takes them.",
    )
    ADAPTER_UNAVAILABLE = (
        "adapter_unavailable",
        "The engine does not serve the adapter that was asked for.",
        "Submit with one of them or without `adapter`, or add it to PECIA_ADAPTERS.",
    )
    NO_ENGINE = (
        "no_engine",
        "No engine of this fleet does this kind of work.",
        "Start an engine worker with PECIA_ENGINE=vllm and PECIA_MODEL, or PECIA_ENGINE=openai and a server's URL.",
    )
    SOURCE_UNREACHABLE = (
        "source_unreachable",
        "The server of the document's URL did not answer, broke off or failed.",
        "It is tried again; then check that the fleet can reach that server, or send the file itself.",
        True,
    )
    SOURCE_REFUSED = (
        "source_refused",
        "The fleet may not fetch the document's URL, or its server does not hand the document out.",
        "Check the URL and its permissions, and PECIA_SOURCE_* for what the fleet may fetch, or send the file itself.",
    )
    PAYLOAD_MISSING = (
        "payload_missing",
        "The worker does not find the document in the payload store.",
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
        "Encrypted under a key that the worker does not have: add it to the fleet's PECIA_ENCRYPTION_KEYS, then retry.",
        True,
    )
    ENGINE_ERROR = (
        "engine_error",
        "The engine raised an error, or its server did not answer.",
        "The engine failed on this part; it is tried again, then look at the worker's log.",
        True,
    )
    TIMEOUT = (
        "timeout",
        "The part was ended because it took too long.",
        "The part took longer than PECIA_PART_TIMEOUT; it is tried again, then raise the limit.",
        True,
    )
    POISONED = (
        "poisoned",
        "The workers that ran the part died, again and again.",
        "The part took its worker down more than once and is kept for inspection: look at the page before a retry.",
    )
    INTERNAL = (
        "internal",
        "Something unexpected happened.",
        "A fault in Pecia itself; it is tried again, then please report it with the job's id.",
        True,
    )


class Failure(BaseModel):
    """Why a job or part failed. Never holds text of the document."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    code: FailureCode
    message: str
    """One sentence: the finding, and what to do."""
    attempt: int = 0
    """The attempt that failed last; 0 for a job that failed before any part ran."""

    @property
    def retryable(self) -> bool:
        """Whether the fleet tried again by itself before it gave up."""
        return self.code.retryable

    @classmethod
    def of(cls, code: FailureCode, found: str = "", *, attempt: int = 0) -> Failure:
        """Return a failure whose sentence has the finding, then what to do."""
        return cls(code=code, message=f"{found} {code.advice}".strip(), attempt=attempt)
