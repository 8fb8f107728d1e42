"""Purging in memory: `pecia.purging` without SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from pecia.erasing import Purged, PurgingSteps
from pecia.errors import PayloadStoreUnavailableError
from pecia.records import AuditAction, DocumentFate, Erasure, Selection
from pecia.statements import D_co, transaction, unrepeatable
from pecia.testing.memory import Memory
from pecia.testing.records import AuditRecord, JobRecord, now
from pecia.transitions import checked_reason

_BATCH = 1000
_OF_THE_DOCUMENT = ("source", "fields", "password", "url")


class MemoryPurgingSteps(PurgingSteps[D_co]):
    """The steps of which a purge is made."""

    @transaction
    def fitting_after(self, memory: Memory, selection: Selection, after: UUID) -> list[UUID]:
        """Return some of the jobs that are meant and still hold something, by id."""
        wanted = (selection.metadata or {}).items()
        return sorted(
            job.id
            for job in memory.jobs.values()
            if job.id > after
            and job.payload != ""
            and (selection.job_ids is None or job.id in selection.job_ids)
            and (selection.before is None or job.created_at < selection.before)
            and all(job.metadata.get(key) == value for key, value in wanted)
        )[:_BATCH]

    @transaction
    def look_at(self, memory: Memory, job_ids: Sequence[UUID]) -> list[Erasure]:
        """Return what there is to erase of these jobs."""
        return [
            _erasure(memory, job, sum(event.reason is not None for event in memory.events(job.id)))
            for job in memory.known(job_ids)
        ]

    @unrepeatable
    def empty(self, memory: Memory, job_ids: Sequence[UUID], reason: str | None) -> Purged:
        """Erase these jobs; what is not over is cancelled, and no callback tells of it."""
        jobs = [job for job in memory.known(job_ids) if job.payload != ""]
        unfinished = [job for job in jobs if not job.state.is_terminal]
        for job in unfinished:
            memory.rules.cancel(job, self._actor, None, promise=False)
        payloads = {job.id: job.payload for job in jobs}
        erasures = [_erasure(memory, job, memory.forget_reasons(job.id)) for job in jobs]
        for job, erasure in zip(jobs, erasures, strict=True):
            _erase(memory, job)
            documents = int(payloads[job.id] is not None)
            _record(memory, erasure, documents, self._actor, checked_reason(reason))
        return Purged(erasures=erasures, cancelled=[job.id for job in unfinished], payloads=payloads)

    @transaction
    def discard(self, memory: Memory, payload: str, remove: Callable[[str], None]) -> DocumentFate:
        """Have a document removed from the payload store, unless a job holds it."""
        if any(job.payload == payload for job in memory.jobs.values()):
            return DocumentFate.SHARED
        try:
            remove(payload)
        except PayloadStoreUnavailableError:
            return DocumentFate.PENDING
        memory.removed.add(payload)
        return DocumentFate.ERASED


def _erasure(memory: Memory, job: JobRecord, reasons: int) -> Erasure:
    results = sum(part.content is not None for part in job.parts)
    deliveries = len(memory.deliveries_of(job.id))
    return Erasure(job_id=job.id, results=results, deliveries=deliveries, reasons=reasons)


def _erase(memory: Memory, job: JobRecord) -> None:
    for part in job.parts:
        part.content = None
    if job.key is not None:
        del memory.by_key[job.key]
    job.key = None
    memory.forget_deliveries(memory.deliveries_of(job.id))
    job.metadata, job.webhook, job.digest, job.payload = {}, None, "", ""
    batch, job.batch, job.label = job.batch, None, None
    if batch and not any(other.batch == batch for other in memory.jobs.values()):
        memory.batches.pop(batch, None)
    job.task = {name: value for name, value in job.task.items() if name not in _OF_THE_DOCUMENT}
    job.erased_at = now()


def _record(memory: Memory, erasure: Erasure, documents: int, actor: str, reason: str | None) -> None:
    counts = {
        "results": erasure.results,
        "deliveries": erasure.deliveries,
        "reasons": erasure.reasons,
        "documents": documents,
    }
    entry = AuditRecord(
        at=now(), job_id=erasure.job_id, actor=actor, action=AuditAction.ERASED, reason=reason, counts=counts
    )
    memory.trail.append(entry)
