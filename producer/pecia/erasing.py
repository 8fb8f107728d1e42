"""Erasing what jobs hold of documents, at once and for good. What stays is that they were, and the record of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pecia.errors import PayloadStoreUnavailableError
from pecia.records import DocumentFate, Erasure, Selection
from pecia.statements import Connection, D_co, Statements, transaction, unrepeatable
from pecia.transitions import checked_reason
from pecia_schemas import discards
from pecia_schemas.moves import end_jobs
from pecia_schemas.states import JobState

_BATCH = 50  # jobs in one transaction
FIRST = UUID(int=0)
"""Below every job's id."""

# A job whose payload is empty was purged before; one that has none was to be fetched from a URL.
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

# What tells something of the document or of whom it is about goes; what was done, when, and what it took stays.
_ERASE = """
    WITH results_gone AS (
        DELETE FROM results WHERE job_id = ANY(CAST(:job_ids AS uuid[])) RETURNING job_id
    ), deliveries_gone AS (
        DELETE FROM deliveries WHERE job_id = ANY(CAST(:job_ids AS uuid[])) RETURNING job_id
    ), reasons_gone AS (
        UPDATE job_events SET reason = NULL WHERE job_id = ANY(CAST(:job_ids AS uuid[])) AND reason IS NOT NULL
        RETURNING job_id
    ), emptied AS (
        UPDATE jobs
        SET metadata = '{}', webhook = NULL, label = NULL, batch = NULL,
            task = task - 'source' - 'fields' - 'instructions' - 'password' - 'url', task_digest = '', payload = '',
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
    """What one transaction erased."""

    erasures: Sequence[Erasure]
    cancelled: Sequence[UUID]
    """Jobs that were not over."""
    payloads: Mapping[UUID, str | None]
    """The name of each job's document; None: it was not fetched yet."""

    @property
    def documents(self) -> set[str]:
        """The names of all of them."""
        return {name for name in self.payloads.values() if name is not None}

    def told(self, fates: Mapping[str, DocumentFate]) -> list[Erasure]:
        """Return what was erased, with what became of the documents."""
        return [
            one.model_copy(update={"document": fates[name] if name is not None else DocumentFate.ERASED})
            for one in self.erasures
            for name in (self.payloads[one.job_id],)
        ]


class PurgingSteps(Statements[D_co]):
    """The transactions of which a purge is made."""

    def __init__(self, database: D_co, *, client: str) -> None:
        super().__init__(database)
        self._actor = f"client:{client}"

    @transaction
    def fitting_after(self, connection: Connection, selection: Selection, after: UUID) -> list[UUID]:
        """Return some of the jobs that are meant and still hold something, by id."""
        asked = {
            "after": after,
            "metadata": json.dumps(dict(selection.metadata or {})),
            "job_ids": None if selection.job_ids is None else list(selection.job_ids),
            "before": selection.before,
            "limit": 20 * _BATCH,
        }
        return list(connection.execute(_FITTING, asked).scalars())

    @transaction
    def look_at(self, connection: Connection, job_ids: Sequence[UUID]) -> list[Erasure]:
        """Return what there is to erase of a batch of jobs."""
        return [Erasure(**row) for row in connection.execute(_LOOK, {"job_ids": job_ids}).mappings()]

    @unrepeatable
    def empty(self, connection: Connection, job_ids: Sequence[UUID], reason: str | None) -> Purged:
        """Erase a batch of jobs from the tables; what is not over is cancelled."""
        jobs = connection.execute(_LOCK, {"job_ids": job_ids}).all()
        unfinished = [job.id for job in jobs if job.open]
        if unfinished:
            end_jobs(connection, unfinished, state=JobState.CANCELLED, actor=self._actor, reason=None)
        erasing = {
            "job_ids": [job.id for job in jobs],
            "actor": self._actor,
            "reason": checked_reason(reason),
        }
        erasures = [Erasure(**row) for row in connection.execute(_ERASE, erasing).mappings()]
        connection.execute(_FORGET_BATCHES, {"batches": [job.batch for job in jobs if job.batch]})
        payloads = {job.id: job.payload for job in jobs}
        connection.execute(discards.DISCARD, {"payloads": list(payloads.values())})
        return Purged(erasures=erasures, cancelled=unfinished, payloads=payloads)

    @transaction
    def discard(self, connection: Connection, payload: str, remove: Callable[[str], None]) -> DocumentFate:
        """Have a document removed from the payload store, unless a job holds it."""
        alone = {"payloads": [payload]}
        connection.execute(discards.LOCK, alone)
        waiting = connection.execute(discards.STILL_HELD, alone).first()
        if waiting is None:  # upkeep was faster, or is at it
            settled = connection.execute(discards.SETTLED, alone).first()
            if settled is None:
                return DocumentFate.PENDING
            return DocumentFate.SHARED if settled.held else DocumentFate.ERASED
        if not waiting.held:
            try:
                remove(payload)
            except PayloadStoreUnavailableError:
                return DocumentFate.PENDING
        connection.execute(discards.SETTLE, alone)
        return DocumentFate.SHARED if waiting.held else DocumentFate.ERASED


def batches(job_ids: Sequence[UUID]) -> list[Sequence[UUID]]:
    """Return the jobs as many at a time as one transaction may erase."""
    return [job_ids[start : start + _BATCH] for start in range(0, len(job_ids), _BATCH)]
