"""The statements by which a client moves jobs: cancel and retry.

Locks are taken as the fleet's ledger takes them, jobs before parts and each by id, so that nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, text

from pecia.errors import InvalidOptionError, JobNotFoundError, RetryRefusedError
from pecia.statements import D_co, Statements, unrepeatable
from pecia_schemas import lengths
from pecia_schemas.held import HELD
from pecia_schemas.messages import PartMessage
from pecia_schemas.outbox import PROMISE_CALLBACKS
from pecia_schemas.states import JobState, Lane, Stage

_LOCK_UNFINISHED = text(
    """
    SELECT id FROM jobs WHERE id = ANY(CAST(:job_ids AS uuid[])) AND state IN ('queued', 'running')
    ORDER BY id FOR NO KEY UPDATE
    """
)

_CANCEL = text(
    """
    WITH open AS (
        SELECT id FROM parts
        WHERE job_id = ANY(CAST(:job_ids AS uuid[])) AND state IN ('queued', 'running')
        ORDER BY id FOR NO KEY UPDATE
    ), ended AS (
        UPDATE parts SET state = 'cancelled', finished_at = now() FROM open WHERE parts.id = open.id
        RETURNING parts.id, parts.job_id, parts.stage, parts.attempt
    ), counted AS (
        SELECT job_id, count(*) FILTER (WHERE stage <> 'ingest') AS pieces FROM ended GROUP BY job_id
    ), moved AS (
        UPDATE jobs SET state = 'cancelled', finished_at = now(), cancelled = cancelled + coalesce(
            (SELECT pieces FROM counted WHERE counted.job_id = jobs.id), 0)
        WHERE id = ANY(CAST(:job_ids AS uuid[]))
        RETURNING id
    )
    INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)
    SELECT job_id, id, 'cancelled', :actor, attempt, CAST(:reason AS text) FROM ended
    UNION ALL
    SELECT id, NULL, 'cancelled', :actor, NULL, CAST(:reason AS text) FROM moved
    """
)

_LOCK_JOB = text(
    """
    SELECT state, coalesce(erased_at, payload_released_at) AS erased_at, coalesce(flow, id) AS flow, traceparent
    FROM jobs WHERE id = :job_id FOR NO KEY UPDATE
    """
)

# A summary that left segments out is written anew, once those are there: its part is held as it was at first.
_REOPEN_PARTS = text(
    f"""
    WITH asked AS (
        SELECT id, stage FROM parts
        WHERE job_id = :job_id AND state IN ('failed', 'cancelled')
          AND (CAST(:parts AS uuid[]) IS NULL OR id = ANY(CAST(:parts AS uuid[])))
    ), again AS (
        SELECT id FROM parts
        WHERE job_id = :job_id AND (
            id IN (SELECT id FROM asked)
            OR stage = 'summarize' AND EXISTS (SELECT FROM asked WHERE stage = 'caption'))
        ORDER BY id FOR NO KEY UPDATE
    ), incomplete AS (
        SELECT EXISTS (SELECT FROM parts JOIN again USING (id) WHERE stage = 'caption') AS segments
    ), queued AS (
        UPDATE parts
        SET state = 'queued', deaths = 0, strikes = 0, failure = NULL, published_at = NULL,
            run_at = CASE WHEN stage = 'summarize' AND segments THEN {HELD} ELSE now() END,
            started_at = NULL, finished_at = NULL
        FROM again, incomplete WHERE parts.id = again.id
        RETURNING parts.id, parts.job_id, parts.stage, parts.lane, parts.cost, parts.attempt, parts.run_at
    ), forgotten AS (
        DELETE FROM results USING again WHERE results.part_id = again.id
    ), told AS (
        INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)
        SELECT job_id, id, 'queued', :actor, attempt, 'retry' FROM queued
    )
    SELECT id, stage, lane, cost, run_at >= {HELD} AS held FROM queued
    """  # noqa: S608  a constant
)

_COUNT = text(
    """
    SELECT count(*) FILTER (WHERE state = 'done') AS done, count(*) FILTER (WHERE state = 'failed') AS failed,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled
    FROM parts WHERE job_id = :job_id AND stage <> 'ingest'
    """
)

# A job whose ingest runs again does not know how many parts it has; one that expired gets all the time it needs.
_REOPEN_JOB = text(
    """
    WITH moved AS (
        UPDATE jobs
        SET state = 'queued', done = :done, failed = :failed, cancelled = :cancelled, failure = NULL,
            finished_at = NULL,
            total = CASE WHEN :cut_again THEN NULL ELSE total END,
            expires_at = CASE WHEN expires_at > now() THEN expires_at END
        WHERE id = :job_id
        RETURNING id
    )
    INSERT INTO job_events (job_id, state, actor, reason) SELECT id, 'queued', :actor, 'retry' FROM moved
    """
)


def end_jobs(connection: Connection, job_ids: Collection[UUID], *, actor: str, reason: str | None) -> None:
    """Cancel jobs that are not over, with their open parts. The caller holds the jobs' locks."""
    connection.execute(_CANCEL, {"job_ids": list(job_ids), "actor": actor, "reason": reason})


def checked_reason(reason: str | None) -> str | None:
    """Return the reason. Raises `InvalidOptionError` if it is too long to be stored."""
    if reason is not None and (len(reason) > lengths.REASON or not lengths.is_storable(reason)):
        raise InvalidOptionError(f"A reason has at most {lengths.REASON} characters, none of them NUL.")
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
            end_jobs(connection, unfinished, actor=self._actor, reason=checked_reason(reason))
            connection.execute(PROMISE_CALLBACKS, {"job_ids": unfinished})
        return unfinished

    @unrepeatable
    def retry(
        self, connection: Connection, job_id: UUID, parts: Collection[UUID] | None = None
    ) -> list[PartMessage]:
        """Queue the failed and cancelled parts of a job that is over, or those of them, and return what to publish.

        With a segment its video's summary runs again too.

        Raises `RetryRefusedError` if the job is at work or has succeeded, or if its document was erased.
        """
        job = connection.execute(_LOCK_JOB, {"job_id": job_id}).one_or_none()
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
        messages = [
            PartMessage(
                part=row.id,
                stage=Stage(row.stage),
                lane=Lane(row.lane),
                cost=row.cost,
                flow=job.flow,
                traceparent=job.traceparent,
            )
            for row in rows
            if not row.held
        ]
        cut_again = any(message.stage is Stage.INGEST for message in messages)
        counted = connection.execute(_COUNT, {"job_id": job_id}).mappings().one()
        reopening = {"job_id": job_id, "actor": self._actor, "cut_again": cut_again, **counted}
        connection.execute(_REOPEN_JOB, reopening)
        return messages
