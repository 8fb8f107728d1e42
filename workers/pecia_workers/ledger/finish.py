"""How a job ends: the one place that turns counters into a terminal state."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from pecia_schemas import JobState
from pecia_schemas.outbox import PROMISE_CALLBACKS

# A failed job carries the failure of its first failed part, so that the caller need not look further.
_FINISH = text(
    """
    WITH finished AS (
        UPDATE jobs
        SET finished_at = now(),
            state = CASE WHEN total > 0 AND failed + cancelled = 0 THEN 'succeeded' WHEN done > 0 THEN 'partial'
                         WHEN failed > 0 OR EXISTS (
                             SELECT FROM parts WHERE parts.job_id = jobs.id AND parts.state = 'failed'
                         ) THEN 'failed' ELSE 'cancelled' END,
            failure = CASE WHEN done > 0 THEN NULL ELSE (
                SELECT parts.failure FROM parts
                WHERE parts.job_id = jobs.id AND parts.state = 'failed' ORDER BY stage, ordinal LIMIT 1) END
        WHERE id = ANY(CAST(:job_ids AS uuid[])) AND state IN ('queued', 'running')
          AND done + failed + cancelled >= total
        RETURNING id, state
    ), told AS (
        INSERT INTO job_events (job_id, state, actor) SELECT id, state, :actor FROM finished
    )
    SELECT id, state FROM finished
    """
)


async def finish_jobs(
    connection: AsyncConnection, job_ids: Collection[UUID], *, actor: str
) -> dict[UUID, JobState]:
    """End those of the jobs whose last part has ended, and promise their callbacks; return what became of them.

    The caller holds the jobs' locks and has brought their counters up to date in the same transaction. A job that is
    not cut yet (`total` unknown) goes on; one that could not be cut (`total` 0) has failed, or was cancelled if
    its ingest was.
    """
    rows = await connection.execute(_FINISH, {"job_ids": list(job_ids), "actor": actor})
    finished = {job_id: JobState(state) for job_id, state in rows}
    if finished:
        await connection.execute(PROMISE_CALLBACKS, {"job_ids": list(finished)})
    return finished
