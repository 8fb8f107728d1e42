"""Parts that this worker holds but will not finish: given back, ended by an operator, or nobody's any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import JobState
from pecia_workers.ledger.finish import finish_jobs
from pecia_workers.ledger.release import release_summaries

_GIVE_BACK = text(
    """
    WITH mine AS (
        SELECT id FROM parts
        WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'running' AND worker = :worker
        ORDER BY id FOR NO KEY UPDATE
    ), given AS (
        UPDATE parts SET state = 'queued', deaths = deaths + CAST(parts.id = ANY(CAST(:died_on AS uuid[])) AS int)
        FROM mine WHERE parts.id = mine.id
        RETURNING parts.id, parts.job_id, parts.attempt,
                  CASE WHEN parts.id = ANY(CAST(:died_on AS uuid[])) THEN 'engine_lost' ELSE 'given_back' END AS reason
    ), told AS (
        INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)
        SELECT job_id, id, 'queued', :worker, attempt, reason FROM given
    )
    SELECT id FROM given
    """
)

# A statement of its own: one that locks a newer version of the row than it sees would update the one it sees, and so
# wait for whoever waits for it.
_LOCK_OWNER = text(
    "SELECT id FROM jobs WHERE id = (SELECT job_id FROM parts WHERE parts.id = :id) FOR NO KEY UPDATE"
)

_REVOKE = text(
    """
    WITH revoked AS (
        UPDATE parts SET state = 'cancelled', finished_at = now()
        WHERE parts.id = :id AND parts.state IN ('queued', 'running')
        RETURNING parts.id, parts.job_id, parts.attempt, parts.stage
    ), told AS (
        INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)
        SELECT job_id, id, 'cancelled', :worker, attempt, 'revoked' FROM revoked
    )
    UPDATE jobs
    SET cancelled = cancelled + CAST(stage <> 'ingest' AS int), total = CASE WHEN stage = 'ingest' THEN 0 ELSE total END
    FROM revoked WHERE jobs.id = revoked.job_id
    RETURNING jobs.id
    """
)

_WITHDRAWN = text(
    """
    SELECT asked.id FROM unnest(CAST(:ids AS uuid[])) AS asked (id) LEFT JOIN parts USING (id)
    WHERE parts.id IS NULL OR parts.state = 'cancelled'
    """
)


async def give_back(
    database: AsyncEngine, worker: str, parts: Collection[UUID], *, died_on: Collection[UUID] = ()
) -> set[UUID]:
    """Queue again what this worker still runs of these parts, and return it.

    It is no strike against them, but for those that the worker's engine `died_on`: that counts as a worker's death.
    """
    async with database.begin() as connection:
        values = {"ids": list(parts), "worker": worker, "died_on": list(died_on)}
        given = await connection.execute(_GIVE_BACK, values)
        return set(given.scalars())


async def revoke_part(database: AsyncEngine, worker: str, part: UUID) -> dict[UUID, JobState]:
    """End a part that an operator revoked; return the state of its job, nothing if the part was over."""
    async with database.begin() as connection:
        await connection.execute(_LOCK_OWNER, {"id": part})
        job_ids = (await connection.execute(_REVOKE, {"id": part, "worker": worker})).scalars().all()
        if job_ids:
            await release_summaries(connection, job_ids, actor=worker)
        ended = await finish_jobs(connection, job_ids, actor=worker) if job_ids else {}
    return dict.fromkeys(job_ids, JobState.RUNNING) | ended


async def find_withdrawn(database: AsyncEngine, parts: Sequence[UUID]) -> list[bool]:
    """Return for each part whether it was cancelled, or erased with its job."""
    async with database.connect() as connection:
        found = set((await connection.execute(_WITHDRAWN, {"ids": list(parts)})).scalars())
    return [part in found for part in parts]
