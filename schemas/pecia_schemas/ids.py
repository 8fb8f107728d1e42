"""Identifiers: UUIDv7, so that keys sort by the time they were made and indexes grow at one end."""

import re
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

_PREFIX: Final = re.compile(r"[0-9a-f]{4,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?|[0-9a-f]{9,32}")


def as_prefix(text: str) -> str | None:
    """Return an id, or the beginning of one that has four digits or more; None for anything else."""
    text = text.lower()
    return text if _PREFIX.fullmatch(text) else None


def is_whole(text: str) -> bool:
    """Return whether a text is an id, from its first digit to its last."""
    begins = as_prefix(text)
    return begins is not None and len(begins.replace("-", "")) == len(UUID(int=0).hex)


def new_id() -> UUID:
    """Return a fresh, time-ordered id."""
    return uuid7()
