"""SQL by which a client cancels and retries jobs, and erases their content permanently.

Locks are taken in the order that `pecia_schemas.moves` prescribes.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pecia.arguments import check_retry, checked_reason
from pecia.errors import JobNotFoundError, PayloadStoreUnavailableError, RetryRefusedError
from pecia.records import DocumentFate, Erasure, Selection
from pecia.store import Connection, D_co, Statements, transaction, unrepeatable
from pecia.waiting import batches
from pecia_schemas import discards
from pecia_schemas.messages import PartMessage
from pecia_schemas.moves import REOPEN_JOB, awaited_by, end_jobs, moving, promise_callbacks
from pecia_schemas.states import JobState, Lane, PartState, Stage

_LOCK_UNFINISHED = """
    SELECT id FROM jobs WHERE id = ANY(CAST(:job_ids AS uuid[])) AND state IN ('queued', 'running')
    ORDER BY id FOR NO KEY UPDATE
    """

_LOCK_JOB = """
    SELECT state, coalesce(erased_at, payload_released_at) AS erased_at, coalesce(flow, id) AS flow, traceparent
    FROM jobs WHERE id = :job_id FOR NO KEY UPDATE
    """

# A summary or split that lacked parts is made again once these exist: its part is held as at first. Corrections of a
# split by people stay, and the new split is made consistent with them.
_REOPEN_PARTS = moving(
    f"""
    requested AS (
        SELECT id, stage FROM parts
        WHERE job_id = :job_id AND state IN ('failed', 'cancelled')
          AND (CAST(:parts AS uuid[]) IS NULL OR id = ANY(CAST(:parts AS uuid[])))
    ), again AS (
        SELECT id, stage, state FROM parts
        WHERE job_id = :job_id AND (
            id IN (SELECT id FROM requested)
            OR EXISTS (SELECT FROM requested WHERE stage = {awaited_by("parts")}))
        ORDER BY id FOR NO KEY UPDATE
    ), chosen AS (
        SELECT id, state AS former, 'retry' AS reason,
               CASE WHEN EXISTS (SELECT FROM again AS others WHERE others.stage = {awaited_by("again")})
               THEN 'held' ELSE 'queued' END AS state
        FROM again
    )
    """,  # noqa: S608  constants
    sets="""
            deaths = 0, strikes = 0, failure = NULL, run_at = now(), started_at = NULL,
            published_at = CASE WHEN chosen.state = 'queued' THEN now() END""",
    beside="""
    forgotten AS (
        DELETE FROM results USING moved
        WHERE results.part_id = moved.id AND NOT EXISTS (SELECT FROM revisions WHERE part_id = moved.id)
    )""",
    answer="SELECT id, stage, lane, cost, state FROM moved",
)


class Transitions(Statements[D_co]):
    """Changes of existing jobs by a client."""

    @unrepeatable
    def cancel(self, connection: Connection, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        """Cancel the jobs that have not ended, queue their callbacks, and return them."""
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
        """Queue the failed and cancelled parts of an ended job, all or those given. Return the messages to publish.

        With a segment its video's summary runs again too, with a page its bundle's split.

        Raises `RetryRefusedError` if the job has not ended or has succeeded, or if its document was erased.
        """
        job = connection.execute(_LOCK_JOB, {"job_id": job_id}).first()
        if job is None:
            raise JobNotFoundError(job_id)
        if job.erased_at is not None:
            raise RetryRefusedError(job_id, f"The document of job {job_id} was erased: submit it again.")
        check_retry(job_id, JobState(job.state))
        chosen = None if parts is None else list(parts)
        values = {"job_id": job_id, "actor": self._actor, "parts": chosen}
        rows = connection.execute(_REOPEN_PARTS, values)
        if not rows:
            raise RetryRefusedError(job_id, f"Job {job_id} has no part to run again: submit it again.")
        connection.execute(REOPEN_JOB, {"job_id": job_id, "actor": self._actor})
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


_FOUND_AT_ONCE = 1_000  # jobs
_FIRST = UUID(int=0)  # below every job's id

# An empty payload marks a purged job; NULL marks a document that is not fetched from its URL yet.
_FITTING = """
    SELECT id FROM jobs
    WHERE id > :after AND payload IS DISTINCT FROM '' AND metadata @> CAST(:metadata AS jsonb)
      AND (CAST(:job_ids AS uuid[]) IS NULL OR id = ANY(CAST(:job_ids AS uuid[])))
      AND created_at < coalesce(CAST(:before AS timestamptz), 'infinity')
    ORDER BY id LIMIT :limit
    """

_LOOK = """
    SELECT id AS job_id,
           (SELECT count(*) FROM results WHERE results.job_id = jobs.id) AS results,
           (SELECT count(*) FROM deliveries WHERE deliveries.job_id = jobs.id) AS deliveries,
           (SELECT count(*) FROM job_events WHERE job_events.job_id = jobs.id AND reason IS NOT NULL) AS reasons
    FROM jobs WHERE id = ANY(CAST(:job_ids AS uuid[])) ORDER BY id
    """

_LOCK = """
    SELECT id, payload, batch, state IN ('queued', 'running') AS open FROM jobs
    WHERE id = ANY(CAST(:job_ids AS uuid[])) AND payload IS DISTINCT FROM ''
    ORDER BY id FOR NO KEY UPDATE
    """

# A statement of its own: it waits for a webhook worker that creates deliveries, so that the next one sees them.
_ERASE_NOTICES = "DELETE FROM notices WHERE job_id = ANY(CAST(:job_ids AS uuid[]))"

# Descriptions of the document and its person are erased; the record of the work, its times and costs stays.
_ERASE = """
    WITH results_gone AS (
        DELETE FROM results WHERE job_id = ANY(CAST(:job_ids AS uuid[])) RETURNING job_id
    ), deliveries_gone AS (
        DELETE FROM deliveries WHERE job_id = ANY(CAST(:job_ids AS uuid[])) RETURNING job_id
    ), reasons_gone AS (
        UPDATE job_events SET reason = NULL WHERE job_id = ANY(CAST(:job_ids AS uuid[])) AND reason IS NOT NULL
        RETURNING job_id
    ), keys_gone AS (
        DELETE FROM job_keys WHERE job_id = ANY(CAST(:job_ids AS uuid[]))
    ), emptied AS (
        UPDATE jobs
        SET metadata = '{}', webhook = NULL, label = NULL, batch = NULL,
            task = task - 'source' - 'fields' - 'instructions' - 'password' - 'subject' - 'url',
            task_digest = '', payload = '',
            flow = NULL, idempotency_key = NULL, payload_released_at = now(), erased_at = now()
        WHERE id = ANY(CAST(:job_ids AS uuid[]))
        RETURNING id
    ), counted AS (
        SELECT id AS job_id,
               (SELECT count(*) FROM results_gone WHERE results_gone.job_id = id) AS results,
               (SELECT count(*) FROM deliveries_gone WHERE deliveries_gone.job_id = id) AS deliveries,
               (SELECT count(*) FROM reasons_gone WHERE reasons_gone.job_id = id) AS reasons,
               (SELECT count(payload) FROM jobs WHERE jobs.id = emptied.id) AS documents  -- as it was before
        FROM emptied
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT job_id, :actor, :reason,
               jsonb_build_object(
                   'results', results, 'deliveries', deliveries, 'reasons', reasons, 'documents', documents
               )
        FROM counted
    )
    SELECT job_id, results, deliveries, reasons FROM counted
    """


_FORGET_BATCHES = """
    DELETE FROM batches
    WHERE id = ANY(CAST(:batches AS uuid[])) AND NOT EXISTS (SELECT FROM jobs WHERE jobs.batch = batches.id)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Result of one erasing transaction."""

    erasures: Sequence[Erasure]
    cancelled: Sequence[UUID]
    """Jobs that had not ended and were cancelled."""
    payloads: Mapping[UUID, str | None]
    """The payload name of each job's document; None if it was not fetched yet."""


_HELD_BY_TENANT = """
    SELECT EXISTS (
        SELECT FROM jobs WHERE payload = :payload AND payload_released_at IS NULL
          AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
    )
"""


class Purging(Statements[D_co]):
    """Erasure by a client; `Connections.erase` combines these steps to one purge."""

    AT_ONCE: Final = 50
    """Jobs that one transaction erases."""

    @transaction
    def fitting(self, connection: Connection, selection: Selection) -> list[UUID]:
        """Return the selected jobs that still have content."""
        values = {
            "metadata": json.dumps(dict(selection.metadata or {})),
            "job_ids": None if selection.job_ids is None else list(selection.job_ids),
            "before": selection.before,
            "limit": _FOUND_AT_ONCE,
        }
        found: list[UUID] = []
        while page := connection.execute(
            _FITTING, {**values, "after": found[-1] if found else _FIRST}
        ).scalars():
            found += page
        return found

    @transaction
    def look(self, connection: Connection, job_ids: Sequence[UUID]) -> list[Erasure]:
        """Return the content of these jobs that a purge would erase."""
        return [
            Erasure(**row)
            for batch in batches(job_ids, self.AT_ONCE)
            for row in connection.execute(_LOOK, {"job_ids": batch}).mappings()
        ]

    @unrepeatable
    def empty(self, connection: Connection, job_ids: Sequence[UUID], reason: str | None) -> Purged:
        """Erase the content of a batch of jobs from the tables. Jobs that have not ended are cancelled."""
        jobs = connection.execute(_LOCK, {"job_ids": job_ids})
        unfinished = [job.id for job in jobs if job.open]
        if unfinished:
            end_jobs(connection, unfinished, state=JobState.CANCELLED, actor=self._actor, reason=None)
        erasing = {
            "job_ids": [job.id for job in jobs],
            "actor": self._actor,
            "reason": checked_reason(reason),
        }
        connection.execute(_ERASE_NOTICES, erasing)
        erasures = [Erasure(**row) for row in connection.execute(_ERASE, erasing).mappings()]
        connection.execute(_FORGET_BATCHES, {"batches": [job.batch for job in jobs if job.batch]})
        payloads = {job.id: job.payload for job in jobs}
        connection.execute(discards.DISCARD, {"payloads": list(payloads.values())})
        return Purged(erasures=erasures, cancelled=unfinished, payloads=payloads)

    @transaction
    def discard(self, connection: Connection, payload: str, remove: Callable[[str], None]) -> DocumentFate:
        """Delete a document from the payload store, unless a job holds it. Return its state."""
        alone = {"payloads": [payload]}
        connection.execute(discards.LOCK, alone)
        waiting = connection.execute(discards.STILL_HELD, alone).first()
        if waiting is None:  # upkeep has deleted it, or is deleting it
            settled = connection.execute(discards.SETTLED, alone).first()
            if settled is None:
                return DocumentFate.PENDING
            return self._fate(connection, payload, held=settled.held)
        if not waiting.held:
            try:
                remove(payload)
            except PayloadStoreUnavailableError:
                return DocumentFate.PENDING
        connection.execute(discards.SETTLE, alone)
        return self._fate(connection, payload, held=waiting.held)

    def _fate(self, connection: Connection, payload: str, *, held: bool) -> DocumentFate:
        """Return the state of a document. It does not reveal that another tenant has the same document."""
        values = {"payload": payload, "tenant": self._tenant}
        is_shared = held and connection.execute(_HELD_BY_TENANT, values).scalar()
        return DocumentFate.SHARED if is_shared else DocumentFate.ERASED
