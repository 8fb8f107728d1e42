"""Lengths of texts, as of their columns in Postgres, and the sentence about a text that cannot be stored."""

from typing import Final

from pydantic_core import PydanticCustomError

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
