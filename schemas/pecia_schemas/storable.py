"""What Postgres stores: the tables' revision, lengths of texts, and the sentence about text that it cannot hold."""

from typing import Final

from pydantic_core import PydanticCustomError

REVISION: Final = "0021"
"""Of the tables (docs/tables.md), as the newest migration calls it: those of later ones are greater."""

IDEMPOTENCY_KEY: Final = 512
METADATA: Final = 512
"""A key, or a value."""
METADATA_ENTRIES: Final = 64
BATCH: Final = 100
"""The name of a batch."""
LABEL: Final = 1_000
NAME: Final = 200
"""Of a client, a worker, an adapter."""
REASON: Final = 200
TENANT: Final = 63
SOURCE_URL: Final = 8_000
"""Servers take no more; a signed URL may have thousands."""
WEBHOOK_URL: Final = 2_048
PASSWORD: Final = 1_000
INSTRUCTIONS: Final = 16_384
PAGES: Final = 2_000


def is_storable(text: str) -> bool:
    """Return whether Postgres can hold it: no NUL, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def invalid(reason: str) -> PydanticCustomError:
    """Return a `ValueError` whose text is the reason alone, also in an error of pydantic."""
    return PydanticCustomError("invalid", "{reason}", {"reason": reason})
