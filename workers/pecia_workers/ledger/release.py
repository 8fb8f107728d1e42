"""The summary of a video is held until its segments are over: released to write what they say, or ended with them."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from pecia_schemas.held import HELD

_RELEASE = text(
    f"""
    WITH waiting AS (
        SELECT summary.id, EXISTS (
                   SELECT FROM parts WHERE job_id = summary.job_id AND stage = 'caption' AND state = 'done'
               ) AS has_text
        FROM parts AS summary
        WHERE summary.job_id = ANY(CAST(:job_ids AS uuid[])) AND summary.stage = 'summarize'
          AND summary.state = 'queued' AND summary.run_at >= {HELD}
          AND NOT EXISTS (
              SELECT FROM parts
              WHERE job_id = summary.job_id AND stage = 'caption' AND state IN ('queued', 'running'))
    ), moved AS (
        UPDATE parts
        SET state = CASE WHEN has_text THEN 'queued' ELSE 'cancelled' END, run_at = now(),
            finished_at = CASE WHEN has_text THEN NULL ELSE now() END
        FROM waiting WHERE parts.id = waiting.id
        RETURNING parts.id, parts.job_id, parts.state, parts.attempt
    ), ended AS (
        SELECT * FROM moved WHERE state = 'cancelled'
    ), told AS (
        INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)
        SELECT job_id, id, state, :actor, attempt, 'nothing_to_summarize' FROM ended
    )
    UPDATE jobs SET cancelled = jobs.cancelled + 1 FROM ended WHERE jobs.id = ended.job_id
    """  # noqa: S608  a constant
)


async def release_summaries(connection: AsyncConnection, job_ids: Collection[UUID], *, actor: str) -> None:
    """Let the summaries run of those of the jobs whose last segment has ended, or end them if no segment has a text.

    The caller holds the jobs' locks and has moved the parts, but not yet asked which of the jobs are over.
    """
    await connection.execute(_RELEASE, {"job_ids": list(job_ids), "actor": actor})
