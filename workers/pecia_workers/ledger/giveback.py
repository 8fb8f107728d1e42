"""Parts that this worker holds but will not finish: given back, ended by an operator, or no longer its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import JobState
from pecia_schemas.moves import OPEN, moving, settle

_GIVE_BACK = moving(
    """
    chosen AS (
        SELECT id, state AS former, 'queued' AS state, id = ANY(CAST(:died_on AS uuid[])) AS died,
               CASE WHEN id = ANY(CAST(:died_on AS uuid[])) THEN 'engine_lost' ELSE 'given_back' END AS reason
        FROM parts
        WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'running' AND worker = :actor
        ORDER BY id FOR NO KEY UPDATE
    )
    """,
    sets="deaths = deaths + CAST(died AS int), published_at = CASE WHEN NOT died THEN published_at END",
    ends=False,
)

# A statement of its own: one that locks a newer version of the row than it sees would update the one it sees, and so
# wait for the process that waits for it.
_LOCK_OWNER = text(
    "SELECT id FROM jobs WHERE id = (SELECT job_id FROM parts WHERE parts.id = :id) FOR NO KEY UPDATE"
)

_REVOKE = moving(
    f"""
    chosen AS (
        SELECT id, state AS former, 'cancelled' AS state, 'revoked' AS reason FROM parts
        WHERE id = :id AND state IN {OPEN} FOR NO KEY UPDATE
    )
    """,  # noqa: S608  a constant
    answer="SELECT job_id FROM moved",
)

_WITHDRAWN = text(
    """
    SELECT asked.id FROM unnest(CAST(:ids AS uuid[])) AS asked (id) LEFT JOIN parts USING (id)
    WHERE parts.id IS NULL OR parts.state = 'cancelled'
    """
)


_RUNNING = text(
    "SELECT id FROM parts WHERE state = 'running' AND worker = :worker AND started_at < now() - :age"
)


async def running_parts(database: AsyncEngine, worker: str, *, age: timedelta) -> set[UUID]:
    """Return what runs on a worker, as far as Postgres knows, and was claimed that long ago."""
    async with database.connect() as connection:
        return set((await connection.execute(_RUNNING, {"worker": worker, "age": age})).scalars())


async def give_back(
    database: AsyncEngine, worker: str, parts: Collection[UUID], *, died_on: Collection[UUID] = ()
) -> set[UUID]:
    """Queue again what this worker still runs of these parts, and return it.

    It is no strike against them, but for those that the worker's engine `died_on`: that counts as a worker's death.
    """
    async with database.begin() as connection:
        values = {"ids": list(parts), "actor": worker, "died_on": list(died_on)}
        given = await connection.execute(_GIVE_BACK, values)
        return set(given.scalars())


async def revoke_part(database: AsyncEngine, worker: str, part: UUID) -> dict[UUID, JobState]:
    """End a part that an operator revoked; return the state of its job, nothing if the part was over."""

    def revoke(connection: Connection) -> dict[UUID, JobState]:
        connection.execute(_LOCK_OWNER, {"id": part})
        job_ids = connection.execute(_REVOKE, {"id": part, "actor": worker}).scalars().all()
        ended = settle(connection, job_ids, actor=worker) if job_ids else {}
        return dict.fromkeys(job_ids, JobState.RUNNING) | ended

    async with database.begin() as connection:
        return await connection.run_sync(revoke)


async def find_withdrawn(database: AsyncEngine, parts: Sequence[UUID]) -> list[bool]:
    """Return for each part whether it was cancelled, or erased with its job."""
    async with database.connect() as connection:
        found = set((await connection.execute(_WITHDRAWN, {"ids": list(parts)})).scalars())
    return [part in found for part in parts]
