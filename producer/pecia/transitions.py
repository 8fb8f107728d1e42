"""The statements by which a client moves jobs: cancel and retry.

Locks are taken in the order that `pecia_schemas.moves` asks for.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from pecia.errors import InvalidOptionError, JobNotFoundError, RetryRefusedError
from pecia.statements import Connection, D_co, Statements, unrepeatable
from pecia_schemas import storable
from pecia_schemas.messages import PartMessage
from pecia_schemas.moves import end_jobs, moving, promise_callbacks, reopen_job
from pecia_schemas.states import JobState, Lane, PartState, Stage

_LOCK_UNFINISHED = """
    SELECT id FROM jobs WHERE id = ANY(CAST(:job_ids AS uuid[])) AND state IN ('queued', 'running')
    ORDER BY id FOR NO KEY UPDATE
    """

_LOCK_JOB = """
    SELECT state, coalesce(erased_at, payload_released_at) AS erased_at, coalesce(flow, id) AS flow, traceparent
    FROM jobs WHERE id = :job_id FOR NO KEY UPDATE
    """

# A summary that left segments out is written anew, once those are there: its part is held as it was at first.
_REOPEN_PARTS = moving(
    """
    asked AS (
        SELECT id, stage FROM parts
        WHERE job_id = :job_id AND state IN ('failed', 'cancelled')
          AND (CAST(:parts AS uuid[]) IS NULL OR id = ANY(CAST(:parts AS uuid[])))
    ), again AS (
        SELECT id, stage, state FROM parts
        WHERE job_id = :job_id AND (
            id IN (SELECT id FROM asked)
            OR stage = 'summarize' AND EXISTS (SELECT FROM asked WHERE stage = 'caption'))
        ORDER BY id FOR NO KEY UPDATE
    ), chosen AS (
        SELECT id, state AS former, 'retry' AS reason,
               CASE WHEN stage = 'summarize' AND EXISTS (SELECT FROM again WHERE stage = 'caption')
               THEN 'held' ELSE 'queued' END AS state
        FROM again
    )
    """,
    sets="""
            deaths = 0, strikes = 0, failure = NULL, run_at = now(), started_at = NULL,
            published_at = CASE WHEN chosen.state = 'queued' THEN now() END""",
    beside="forgotten AS (DELETE FROM results USING moved WHERE results.part_id = moved.id)",
    answer="SELECT id, stage, lane, cost, state FROM moved",
)


def checked_reason(reason: str | None) -> str | None:
    """Return the reason. Raises `InvalidOptionError` if it is too long to be stored."""
    if reason is not None and (len(reason) > storable.REASON or not storable.is_storable(reason)):
        raise InvalidOptionError(f"A reason has at most {storable.REASON} characters, none of them NUL.")
    return reason


class Transitions(Statements[D_co]):
    """What a client may do to jobs that exist."""

    def __init__(self, database: D_co, *, client: str) -> None:
        super().__init__(database)
        self._actor = f"client:{client}"

    @unrepeatable
    def cancel(self, connection: Connection, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        """Cancel those of the jobs that are not over, promise their callbacks, and return them."""
        unfinished = list(connection.execute(_LOCK_UNFINISHED, {"job_ids": list(job_ids)}).scalars())
        if unfinished:
            reason = checked_reason(reason)
            end_jobs(connection, unfinished, state=JobState.CANCELLED, actor=self._actor, reason=reason)
            promise_callbacks(connection, unfinished)
        return unfinished

    @unrepeatable
    def retry(
        self, connection: Connection, job_id: UUID, parts: Collection[UUID] | None = None
    ) -> list[PartMessage]:
        """Queue the failed and cancelled parts of a job that is over, or those of them, and return what to publish.

        With a segment its video's summary runs again too.

        Raises `RetryRefusedError` if the job is at work or has succeeded, or if its document was erased.
        """
        job = connection.execute(_LOCK_JOB, {"job_id": job_id}).first()
        if job is None:
            raise JobNotFoundError(job_id)
        state: str = job.state
        if job.erased_at is not None:
            raise RetryRefusedError(job_id, f"The document of job {job_id} was erased: submit it anew.")
        if state == JobState.SUCCEEDED or not JobState(state).is_terminal:
            raise RetryRefusedError(job_id, f"Job {job_id} is {state}: only what failed can be run again.")
        chosen = None if parts is None else list(parts)
        asked = {"job_id": job_id, "actor": self._actor, "parts": chosen}
        rows = connection.execute(_REOPEN_PARTS, asked).all()
        if not rows:
            raise RetryRefusedError(job_id, f"Job {job_id} has no part to run again: submit it anew.")
        reopen_job(connection, job_id, actor=self._actor)
        return [
            PartMessage(
                part=row.id,
                stage=Stage(row.stage),
                lane=Lane(row.lane),
                cost=row.cost,
                flow=job.flow,
                traceparent=job.traceparent,
            )
            for row in rows
            if row.state == PartState.QUEUED
        ]
