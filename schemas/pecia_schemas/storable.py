"""What Postgres and JSON can keep: texts without what they refuse, and no longer than their columns."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import PydanticCustomError

_DEEPEST: Final = 64
"""Levels of nesting; serializers end at a few hundred."""


def storable_text(text: str) -> str:
    """Return the text without NUL, and with a replacement for each half of a character that stands alone."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: Any, depth: int = 0) -> Any:
    """Return the same for every text in a JSON value. Raises `ValueError` if it is nested too deeply."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(name): storable(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner, depth + 1) for inner in value]
    return value


IDEMPOTENCY_KEY: Final = 512
METADATA: Final = 512
"""A key, or a value."""
METADATA_ENTRIES: Final = 64
BATCH: Final = 100
"""The name of a batch."""
LABEL: Final = 1_000
NAME: Final = 200
"""Of a client, a worker, an adapter."""
ACTOR: Final = NAME + len("client:")
REASON: Final = 200
TENANT: Final = 63
SOURCE_URL: Final = 8_000
"""Servers take no more; a signed URL may have thousands."""
WEBHOOK_URL: Final = 2_048
PASSWORD: Final = 1_000
INSTRUCTIONS: Final = 16_384
PAGES: Final = 2_000

DIGEST: Final = 64
"""SHA-256 in hexadecimal, or an HMAC of it."""
TRACEPARENT: Final = 55
"""By W3C."""


def is_storable(text: str) -> bool:
    """Return whether Postgres can hold it: no NUL, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def invalid(reason: str) -> PydanticCustomError:
    """Return a `ValueError` whose text is the reason alone, also in an error of pydantic."""
    return PydanticCustomError("invalid", "{reason}", {"reason": reason})
