"""Which result is that of a request: kept when it is committed, found before the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.encryption import DecryptionError, Keyring

_FIND = text(
    """
    SELECT result_cache.key, results.part_id, results.content, results.created_at
    FROM result_cache JOIN results USING (part_id)
    WHERE result_cache.key = ANY(CAST(:keys AS bytea[]))
    """
)

# In the order of the keys: two workers that keep the same ones wait for each other only one way round.
_KEEP = text(
    """
    INSERT INTO result_cache (key, part_id)
    SELECT key, part_id FROM unnest(CAST(:keys AS bytea[]), CAST(:parts AS uuid[])) AS new (key, part_id)
    ORDER BY key
    ON CONFLICT (key) DO NOTHING
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The result of an earlier part."""

    part: UUID
    content: Mapping[str, Any]
    read_at: datetime
    """By the database's clock."""


async def find_results(
    database: AsyncEngine, cache_keys: Sequence[bytes], keys: Keyring
) -> list[Earlier | None]:
    """Return what is kept by each of the cache keys. What these keys do not decrypt is as good as not there."""
    async with database.connect() as connection:
        rows = (await connection.execute(_FIND, {"keys": list(cache_keys)})).all()
    found: dict[bytes, Earlier] = {}
    for row in rows:
        with suppress(DecryptionError):
            content = keys.unseal(row.content, row.part_id)
            found[bytes(row.key)] = Earlier(part=row.part_id, content=content, read_at=row.created_at)
    return [found.get(key) for key in cache_keys]


def keep_results(connection: Connection, parts: Mapping[UUID, bytes]) -> None:
    """Keep the results of these parts by their keys, where there is none yet.

    The last statement of its transaction: it may wait for another worker's commit, which then waits for nothing here.
    """
    if parts:
        connection.execute(_KEEP, {"keys": list(parts.values()), "parts": list(parts)})
