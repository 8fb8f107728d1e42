"""What a client writes and reads of jobs, in memory: `pecia.store` and `pecia.transitions` without SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from uuid import UUID

from pecia.backlog import Load
from pecia.errors import (
    BatchNotFoundError,
    IdempotencyConflictError,
    InvalidSourceError,
    JobErasedError,
    JobNotFoundError,
    PayloadStoreUnavailableError,
    RetryRefusedError,
    SubmitError,
)
from pecia.originals import Original
from pecia.records import AuditAction, Batch, Counts, FoundPage, Listing, PartOutcome
from pecia.statements import D_co, transaction, unrepeatable
from pecia.store import Store
from pecia.submission import NewJob, moment
from pecia.testing.memory import Memory
from pecia.testing.records import AuditRecord, JobRecord, PartRecord, now
from pecia.transitions import Transitions, checked_reason
from pecia.view import Accepted, JobView
from pecia_schemas.duty import Lack, Need
from pecia_schemas.events import JobEvent
from pecia_schemas.ids import as_prefix, is_whole, new_id
from pecia_schemas.messages import PartMessage
from pecia_schemas.results import Page, Verdict
from pecia_schemas.states import JobState, Lane, PartState, Stage

_LATELY = timedelta(minutes=1)


class MemoryStore(Store[D_co]):
    """The jobs of a fake fleet, as a client sees and writes them."""

    @transaction
    def accept(
        self, memory: Memory, batch: Sequence[NewJob], *, is_stored: Callable[[str], bool]
    ) -> list[Accepted | SubmitError]:
        """Write the jobs and return what became of each; those whose key is known already are read back instead."""
        named = {new.job["payload"] for new in batch} & memory.removed
        gone = {payload for payload in named if not is_stored(payload)}
        if any(new.deposited and new.job["payload"] in gone for new in batch):
            raise PayloadStoreUnavailableError(
                "A document with the same content was erased at this very moment: submit again."
            )
        return [_accepted(memory, new, gone) for new in batch]

    @transaction
    def load(self, memory: Memory, lane: Lane, limit: int) -> Load:
        """Return what waits in a lane, counted up to the limit, and how fast it was worked off lately."""
        parts = [part for job in memory.jobs.values() for part in job.parts if part.lane is lane]
        waiting = sum(part.is_due for part in parts)
        lately = now() - _LATELY
        ended = sum(
            part.spent is not None and part.finished_at is not None and part.finished_at > lately
            for part in parts
        )
        return Load(waiting=min(waiting, limit), ended=ended)

    @transaction
    def leave_to_relay(self, memory: Memory, part_ids: Collection[UUID]) -> None:
        """Nothing is noted: parts are found without a queue."""

    @transaction
    def views(self, memory: Memory, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        """Return what is known about each of the jobs that exist."""
        return {job.id: job.view for job in memory.known(job_ids)}

    @transaction
    def page(self, memory: Memory, listing: Listing, *, before: UUID | None, size: int) -> list[JobView]:
        """Return up to `size` jobs older than `before`, newest first."""
        found = [
            job
            for job in memory.jobs.values()
            if (before is None or job.id < before) and _is_wanted(job, listing)
        ]
        return [job.view for job in sorted(found, key=lambda job: job.id, reverse=True)[:size]]

    @transaction
    def open_batch(self, memory: Memory, name: str | None) -> Batch:
        """Return a new batch, or the one that has this name already."""
        if name and is_whole(name):
            return _batch(memory, name)
        known = next((one for one in memory.batches.values() if name and one.name == name), None)
        batch = known or Batch(id=new_id(), name=name, created_at=now())
        return memory.batches.setdefault(batch.id, batch)

    @transaction
    def batch(self, memory: Memory, reference: str) -> Batch:
        """Return the batch of this name or id, or the only one whose id begins so. Raises `BatchNotFoundError`."""
        return _batch(memory, reference)

    @transaction
    def counts(self, memory: Memory, listing: Listing) -> Counts:
        """Return how far the jobs are."""
        jobs = [job for job in memory.jobs.values() if _is_wanted(job, listing)]
        failed = [part for job in jobs for part in job.parts if part.state is PartState.FAILED]
        return Counts(
            states=Counter(job.state for job in jobs),
            parts=sum(job.total or 0 for job in jobs),
            done=sum(job.done for job in jobs),
            failed=sum(job.failed for job in jobs),
            cancelled=sum(job.cancelled for job in jobs),
            uncut=sum(job.total is None for job in jobs),
            failures=Counter(part.failure.code for part in failed if part.failure),
        )

    @transaction
    def found_pages(
        self,
        memory: Memory,
        verdicts: Collection[Verdict],
        listing: Listing,
        *,
        after: FoundPage | None,
        size: int,
    ) -> list[FoundPage]:
        """Return up to `size` pages that were read with one of these verdicts, the newest job first, by number."""
        found = [
            FoundPage(
                job_id=job.id, number=part.ordinal + 1, verdict=part.content.verdict, read_at=part.finished_at
            )
            for job in sorted(memory.jobs.values(), key=lambda job: job.id, reverse=True)
            for part in job.pieces
            if isinstance(part.content, Page) and part.finished_at and part.content.verdict in verdicts
            if _is_wanted(job, listing)
        ]
        start = found.index(after) + 1 if after else 0
        return found[start : start + size]

    @transaction
    def lacking(self, memory: Memory, job_ids: Collection[UUID]) -> list[Lack]:
        """Return what the jobs' queued parts need and no worker can do: anything, while the workers are away."""
        if not memory.lacks("workers"):
            return []
        waiting = [(job.id, part.stage) for job in memory.known(job_ids) for part in job.parts if part.is_due]
        return [
            Lack(
                job_id=job_id, stage=stage, need=Need.STAGE, value=stage, parts=waiting.count((job_id, stage))
            )
            for job_id, stage in sorted(set(waiting))
        ]

    @transaction
    def outcomes(
        self,
        memory: Memory,
        job_id: UUID,
        *,
        skip: Collection[int] = (),
        limit: int | None = None,
        read_as: AuditAction | None = None,
        revision: int | None = None,  # noqa: ARG002  the fake has no reviews
    ) -> list[PartOutcome]:
        """Return the parts that have ended, in order; `read_as` notes who has read them."""
        job = memory.jobs.get(job_id)
        ended = [part for part in job.pieces if not part.is_open and part.ordinal not in skip] if job else []
        ended = ended[:limit]
        if job and (read_as is AuditAction.RESULT or (read_as and any(part.content for part in ended))):
            _note_read(memory, job, f"client:{self._client}", read_as)
        return [_outcome(part) for part in ended]

    @transaction
    def original(self, memory: Memory, job_id: UUID) -> Original:
        """Return where the job's document is. Raises `DocumentGoneError` if it is not kept any more."""
        job = memory.jobs.get(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return Original.of({"id": job_id, "task": job.task, "payload_released_at": job.erased_at}, self._keys)

    @transaction
    def first_unfinished(self, memory: Memory, job_id: UUID) -> int | None:
        """Return the lowest ordinal that may still change; None if there is none. 0 until the document is cut."""
        job = memory.jobs.get(job_id)
        return min((part.ordinal for part in job.parts if part.is_open), default=None) if job else None

    @transaction
    def events(self, memory: Memory, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        """Return the job's events with a sequence above `after`, in order, without those to be skipped."""
        told = memory.events(job_id)
        return [event for event in told if event.sequence > after and event.sequence not in skip]


class MemoryTransitions(Transitions[D_co]):
    """What a client may do to the jobs of a fake fleet."""

    @unrepeatable
    def cancel(self, memory: Memory, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        """Cancel those of the jobs that are not over, promise their callbacks, and return them."""
        unfinished = [job for job in memory.known(job_ids) if not job.state.is_terminal]
        for job in unfinished:
            memory.rules.cancel(job, self._actor, checked_reason(reason))
        return [job.id for job in unfinished]

    @unrepeatable
    def retry(self, memory: Memory, job_id: UUID, parts: Collection[UUID] | None = None) -> list[PartMessage]:
        """Queue the failed and cancelled parts of a job that is over, or those of them, and return what to publish."""
        job = memory.jobs.get(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        if job.erased_at is not None:
            raise RetryRefusedError(job_id, f"The document of job {job_id} was erased: submit it anew.")
        if job.state is JobState.SUCCEEDED or not job.state.is_terminal:
            raise RetryRefusedError(
                job_id, f"Job {job_id} is {job.state}: only what failed can be run again."
            )
        again = memory.rules.reopen(job, parts, self._actor)
        if not again:
            raise RetryRefusedError(job_id, f"Job {job_id} has no part to run again: submit it anew.")
        return [
            PartMessage(part=part.id, stage=part.stage, lane=part.lane, cost=1, flow=job.id)
            for part in again
            if part.run_at is not None
        ]


def _accepted(memory: Memory, new: NewJob, gone: Collection[str]) -> Accepted | SubmitError:
    if new.job["payload"] in gone:
        return InvalidSourceError(
            "The document is not in the payload store any more: submit the file itself."
        )
    if known := memory.by_key.get(new.key):
        if known.digest not in new.digests:
            return IdempotencyConflictError(known.id)
        return Accepted(view=known.view, created=False, flow=known.id)
    row, first = new.job, new.part
    job = JobRecord(
        id=new.id,
        kind=row["kind"],
        lane=row["lane"],
        task=row["task"],
        digest=new.digests[0],
        payload=row["payload"],
        key=new.key,
        client=row["client"],
        metadata=row["metadata"],
        label=row["label"],
        batch=row["batch"],
        webhook=row.get("webhook"),
        total=row["total"],
        not_before=moment(row["not_before"], "not_before"),
        expires_at=moment(row["expires"], "expires"),
        created_at=now(),
    )
    part = PartRecord(
        id=first["id"],
        job=job,
        stage=first["stage"],
        ordinal=0,
        lane=job.lane,
        run_at=job.not_before or now(),
        size=(first["width"], first["height"]) if first["width"] else None,
    )
    job.parts.append(part)
    memory.jobs[job.id] = memory.open[job.id] = memory.by_key[new.key] = job
    memory.tell(job, JobState.QUEUED, f"client:{job.client}")
    return Accepted(view=job.view, created=True, flow=job.id)


def _batch(memory: Memory, reference: str) -> Batch:
    found = [one for one in memory.batches.values() if one.name == reference]
    if not found and (begins := as_prefix(reference)):
        found = [one for one in memory.batches.values() if one.id.hex.startswith(begins.replace("-", ""))]
    if len(found) != 1:
        raise BatchNotFoundError(reference)
    return found[0]


def _is_wanted(job: JobRecord, listing: Listing) -> bool:
    return (
        (not listing.states or job.state in listing.states)
        and (listing.batch is None or job.batch == listing.batch)
        and job.id.hex.startswith(listing.prefix.replace("-", ""))
        and (not listing.verdicts or any(_verdict(part) in listing.verdicts for part in job.parts))
        and (listing.kind is None or job.kind == listing.kind)
        and (listing.since is None or job.created_at >= listing.since)
        and all(job.metadata.get(key) == value for key, value in (listing.metadata or {}).items())
    )


def _verdict(part: PartRecord) -> Verdict | None:
    return part.content.verdict if isinstance(part.content, Page) else None


def _note_read(memory: Memory, job: JobRecord, actor: str, what: AuditAction) -> None:
    if job.erased_at is not None:
        raise JobErasedError(job.id, job.erased_at)
    memory.trail.append(AuditRecord(at=now(), job_id=job.id, actor=actor, action=what))


def _outcome(part: PartRecord) -> PartOutcome:
    return PartOutcome(
        stage=Stage(part.stage),
        ordinal=part.ordinal,
        content=part.content.model_dump(mode="json") if part.content else None,
        failure=part.failure,
    )
