"""What the tables say of themselves that cannot be, and how it is put right: for a thorough look at times."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import JobState, PartState
from pecia_schemas.moves import COUNTED, OPEN, recount

_IDS_PER_QUERY = 5_000

_WHERE = text("SELECT id, state, attempt FROM parts WHERE id = ANY(CAST(:ids AS uuid[]))")

# One statement sees jobs and parts as of one moment: a commit under way is not a difference.
_LATELY = "jobs.state IN ('queued', 'running') OR jobs.finished_at > now() - interval '1 day'"

# Jobs, open or over for less than a day, whose counters are not those of their parts.
MISCOUNTED = text(
    f"""
    WITH counted AS ({COUNTED.format(which=_LATELY)})
    SELECT id FROM counted JOIN jobs USING (id)
    WHERE (jobs.done, jobs.failed, jobs.cancelled) <> (counted.done, counted.failed, counted.cancelled)
       OR pieces > 0 AND jobs.total IS DISTINCT FROM pieces
    """  # noqa: S608  constants of this module
)

# Jobs that go on although all their parts are over.
UNENDED = text(
    f"""
    WITH counted AS ({COUNTED.format(which="jobs.state IN ('queued', 'running')")})
    SELECT id FROM counted WHERE open = 0
    """  # noqa: S608  constants of this module
)

# Jobs of summaries that wait for segments which are over.
STUCK_SUMMARIES = text(
    f"""
    SELECT summary.job_id FROM parts AS summary
    WHERE summary.state = 'held'
      AND NOT EXISTS (
          SELECT FROM parts WHERE job_id = summary.job_id AND stage = 'caption' AND state IN {OPEN})
    """  # noqa: S608  a constant
)

_OPEN_PAYLOADS = text(
    """
    SELECT payload, array_agg(id) AS job_ids FROM jobs
    WHERE state IN ('queued', 'running') AND payload <> '' GROUP BY payload
    """
)

_LOCK = text("SELECT id FROM jobs WHERE id = ANY(CAST(:job_ids AS uuid[])) ORDER BY id FOR NO KEY UPDATE")


class Whereabouts(NamedTuple):
    """Where a part is, and in which attempt."""

    state: PartState
    attempt: int


async def whereabouts(database: AsyncEngine, parts: Collection[str]) -> dict[str, Whereabouts]:
    """Return where the parts are; those that there are not are left out."""
    ids, found = list(parts), {}
    async with database.connect() as connection:
        for start in range(0, len(ids), _IDS_PER_QUERY):
            rows = await connection.execute(_WHERE, {"ids": ids[start : start + _IDS_PER_QUERY]})
            found.update({str(part): Whereabouts(PartState(state), attempt) for part, state, attempt in rows})
    return found


async def find_jobs(database: AsyncEngine, query: TextClause) -> set[UUID]:
    """Return the jobs that are wrong by `MISCOUNTED`, `UNENDED` or `STUCK_SUMMARIES`."""
    async with database.connect() as connection:
        return set((await connection.execute(query)).scalars())


async def open_payloads(database: AsyncEngine) -> dict[str, list[UUID]]:
    """Return the names of the documents that open jobs need, and whose they are."""
    async with database.connect() as connection:
        return {row.payload: row.job_ids for row in await connection.execute(_OPEN_PAYLOADS)}


async def mend_jobs(database: AsyncEngine, job_ids: Collection[UUID], *, actor: str) -> dict[UUID, JobState]:
    """Count the jobs' parts anew, release what has nothing to wait for, and end those that are over; return these."""
    async with database.begin() as connection:
        await connection.execute(_LOCK, {"job_ids": list(job_ids)})
        return await connection.run_sync(recount, job_ids, actor=actor)
