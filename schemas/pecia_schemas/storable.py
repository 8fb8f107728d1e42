"""Limits of Postgres storage: the tables' revision, lengths of texts, and a check for text that it cannot store."""

from typing import Final

from pydantic_core import PydanticCustomError

REVISION: Final = "0021"
"""Revision of the tables (docs/tables.md) after the newest migration. Later revisions are greater."""

IDEMPOTENCY_KEY: Final = 512
METADATA: Final = 512
"""Length of a key, or of a value."""
METADATA_ENTRIES: Final = 64
BATCH: Final = 100
"""Length of a batch's name."""
LABEL: Final = 1_000
NAME: Final = 200
"""Length of the name of a client, worker or adapter."""
REASON: Final = 200
TENANT: Final = 63
SOURCE_URL: Final = 8_000
"""Servers accept no longer URLs; a signed URL may have thousands of characters."""
WEBHOOK_URL: Final = 2_048
PASSWORD: Final = 1_000
INSTRUCTIONS: Final = 16_384
PAGES: Final = 2_000


def is_storable(text: str) -> bool:
    """Return whether Postgres can store the text: no NUL, and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def invalid(reason: str) -> PydanticCustomError:
    """Return a `ValueError` whose message is only the reason, also inside a pydantic error."""
    return PydanticCustomError("invalid", "{reason}", {"reason": reason})
