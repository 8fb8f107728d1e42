"""Why a job or a part failed: one enum, one sentence each that says what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict


class FailureCode(StrEnum):
    """What went wrong. `advice` says what to do about it, `retryable` whether the fleet tries again by itself."""

    advice: str
    retryable: bool

    def __new__(cls, code: str, advice: str, retryable: bool = False) -> Self:  # noqa: D102
        member = str.__new__(cls, code)
        member._value_ = code
        member.advice = advice
        member.retryable = retryable
        return member

    UNSUPPORTED_TYPE = (
        "unsupported_type",
        "Send a PNG, JPEG, WebP, BMP, TIFF or PDF to read, an MP4, WebM, MKV, AVI or MPEG-TS to caption.",
    )
    EMPTY = "empty", "The file has no bytes, pages or frames: check how it was written, then send it again."
    DAMAGED = "damaged", "The file ends early or its content contradicts itself: export or scan it again."
    ENCRYPTED = "encrypted", "The PDF asks for a password: save it without one and send it again."
    TOO_LARGE = (
        "too_large",
        "Bytes or pixels exceed the fleet's limits (PECIA_MAX_*): scan at a lower resolution or raise them.",
    )
    TOO_MANY_PAGES = (
        "too_many_pages",
        "Split the document, ask for fewer pages, or raise PECIA_MAX_PAGES.",
    )
    TOO_LONG = (
        "too_long",
        "Cut the video, change the length of its segments, or raise PECIA_MAX_VIDEO_DURATION and PECIA_MAX_SEGMENTS.",
    )
    NO_SUCH_PAGE = "no_such_page", "The document ends before the pages asked for: correct `pages`."
    LANGUAGE_UNAVAILABLE = (
        "language_unavailable",
        "The engine of this fleet cannot read that language: choose another language or another engine.",
    )
    FIELDS_UNAVAILABLE = (
        "fields_unavailable",
        "Submit without `fields` or with a simpler schema, and to a language model (PECIA_ENGINE=vllm or openai).",
    )
    ADAPTER_UNAVAILABLE = (
        "adapter_unavailable",
        "Submit with one of them or without `adapter`, or add it to PECIA_ADAPTERS.",
    )
    NO_ENGINE = (
        "no_engine",
        "Start an engine worker with PECIA_ENGINE=vllm and PECIA_MODEL, or PECIA_ENGINE=openai and a server's URL.",
    )
    PAYLOAD_MISSING = (
        "payload_missing",
        "The payload is not in the store: check that client and fleet use the same PECIA_PAYLOAD_URL.",
    )
    PAYLOAD_CORRUPT = (
        "payload_corrupt",
        "The stored payload does not match its checksum: check the store's disk and submit again.",
    )
    KEY_UNAVAILABLE = (
        "key_unavailable",
        "Encrypted under a key that the worker does not have: add it to the fleet's PECIA_ENCRYPTION_KEYS, then retry.",
        True,
    )
    ENGINE_ERROR = (
        "engine_error",
        "The engine failed on this part; it is tried again, then look at the worker's log.",
        True,
    )
    TIMEOUT = (
        "timeout",
        "The part took longer than PECIA_PART_TIMEOUT; it is tried again, then raise the limit.",
        True,
    )
    POISONED = (
        "poisoned",
        "The part took its worker down more than once and is kept for inspection: look at the page before a retry.",
    )
    INTERNAL = (
        "internal",
        "A fault in Pecia itself; it is tried again, then please report it with the job's id.",
        True,
    )


class Failure(BaseModel):
    """Why a job or part failed. Never holds text of the document."""

    model_config = ConfigDict(frozen=True)

    code: FailureCode
    message: str
    """One sentence: what was found and what to do."""
    attempt: int = 0
    """The attempt that failed last; 0 for a job that failed before any part ran."""

    @property
    def retryable(self) -> bool:
        """Whether the fleet tried again by itself before it gave up."""
        return self.code.retryable

    @classmethod
    def of(cls, code: FailureCode, found: str = "", *, attempt: int = 0) -> Failure:
        """Return a failure whose sentence says what was found, then what to do."""
        return cls(code=code, message=f"{found} {code.advice}".strip(), attempt=attempt)
