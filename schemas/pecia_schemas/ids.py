"""Identifiers: UUIDv7, so that keys sort by the time they were made and indexes grow at one end."""

from uuid import UUID

from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """Return a fresh, time-ordered id."""
    return uuid7()
