"""What the clients of a fake fleet hold in place of servers: calls that each run on its memory at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from pecia import bulk, waiting
from pecia.aio.remote import AsyncPolling
from pecia.bulk import Backlog, Outcomes, Prepared
from pecia.errors import (
    BatchNotFoundError,
    IdempotencyConflictError,
    JobNotFoundError,
    RetryRefusedError,
    SubmitError,
)
from pecia.handles import Accepted, JobView
from pecia.records import Batch, Counts, LaneLoad, Listing, PartOutcome
from pecia.remote.connections import Polling
from pecia.submission import Item, NewJob, Options
from pecia.testing.jobs import KEYS, FakeJob, Memory, now
from pecia.transitions import checked_reason
from pecia.waiting import Deadline
from pecia_schemas.events import JobEvent
from pecia_schemas.running import Lack, Need
from pecia_schemas.states import JobState, Lane, is_whole, new_id

_POLL_S = 0.02


class NotFakedError(NotImplementedError):
    """A fake fleet does not do what was requested: a real one does."""

    def __init__(self) -> None:
        super().__init__(
            "A fake fleet has jobs, batches, results, events and callbacks; no purges, reports, reviews or "
            "registered endpoints. Test this with a real fleet: pip install 'pecia[local]', then `pecia up`."
        )


class _Store:
    """What `pecia.store.Store` and `pecia.transitions.Transitions` are of a real fleet, so far as it goes."""

    def __init__(self, memory: Memory, client: str) -> None:
        self._memory, self._jobs, self._actor = memory, memory.jobs, f"client:{client}"

    def accept(self, prepared: Prepared) -> Outcomes:
        return list(bulk.outcomes(prepared, [self._accept(new) for new in bulk.new_jobs(prepared)]))

    def load(self, lane: Lane, limit: int) -> LaneLoad:
        parts = [part for job in self._jobs.values() if job.view.lane is lane for part in job.parts]
        return LaneLoad(waiting=min(sum(part.is_due for part in parts), limit), ended=0)

    def views(self, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        return {job_id: self._jobs[job_id].view for job_id in job_ids if job_id in self._jobs}

    def page(self, listing: Listing, *, before: UUID | None, size: int) -> list[JobView]:
        views = [job.view for job in self._jobs.values() if _fits(job, listing)]
        older = [view for view in views if before is None or view.id < before]
        return sorted(older, key=lambda view: view.id, reverse=True)[:size]

    def open_batch(self, name: str | None) -> Batch:
        if name and (is_whole(name) or any(name == batch.name for batch in self._memory.batches)):
            return self.batch(name)
        self._memory.batches.append(Batch(id=new_id(), name=name, created_at=now()))
        return self._memory.batches[-1]

    def batch(self, reference: str) -> Batch:
        for batch in self._memory.batches:
            if reference in (batch.name, str(batch.id)):
                return batch
        raise BatchNotFoundError(reference)

    def counts(self, listing: Listing) -> Counts:
        jobs = [job for job in self._jobs.values() if _fits(job, listing)]
        made = [job.view.progress for job in jobs]
        return Counts(
            **{name: sum(getattr(one, name) for one in made) for name in ("done", "failed", "cancelled")},
            states=Counter(job.view.state for job in jobs),
            parts=sum(one.total or 0 for one in made),
            uncut=sum(one.total is None for one in made),
            failures=Counter(part.failure.code for job in jobs for part in job.parts if part.failure),
        )

    def lacking(self, job_ids: Collection[UUID]) -> list[Lack]:
        jobs = [self._jobs[job_id] for job_id in job_ids if self._memory.away["workers"]]
        queued = Counter((job.view.id, part.stage) for job in jobs for part in job.parts if part.is_due)
        return [
            Lack(job_id=job_id, stage=stage, need=Need.STAGE, value=stage, parts=parts)
            for (job_id, stage), parts in queued.items()
        ]

    def outcomes(
        self, job_id: UUID, skip: Collection[int] = (), limit: int | None = None, **_: Any
    ) -> list[PartOutcome]:  # the others are of audits and reviews
        return [
            PartOutcome(
                stage=part.stage,
                ordinal=part.ordinal,
                content=part.content.model_dump(mode="json") if part.content else None,
                failure=part.failure,
            )
            for part in self._jobs[job_id].pieces
            if part.state.is_terminal and part.ordinal not in skip
        ][:limit]

    def first_unfinished(self, job_id: UUID) -> int | None:
        parts = self._jobs[job_id].parts
        return min((part.ordinal for part in parts if not part.state.is_terminal), default=None)

    def events(self, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        events = self._jobs[job_id].events
        return [event for event in events if event.sequence > after and event.sequence not in skip]

    def cancel(self, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        jobs = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
        unfinished = [job for job in jobs if not job.view.state.is_terminal]
        for job in unfinished:
            job.close(JobState.CANCELLED, self._actor, checked_reason(reason))
        return [job.view.id for job in unfinished]

    def retry(self, job_id: UUID, parts: Collection[UUID] | None = None) -> list[Any]:
        if parts is not None:
            raise NotFakedError
        if (job := self._jobs.get(job_id)) is None:
            raise JobNotFoundError(job_id)
        state = job.view.state
        if state is JobState.SUCCEEDED or not state.is_terminal:
            raise RetryRefusedError(job_id, f"Job {job_id} is {state}: only what failed can be run again.")
        self._memory.unfinished[job_id] = job
        job.reopen(self._actor)
        return []

    def _accept(self, new: NewJob) -> Accepted | SubmitError:
        known = self._memory.by_key.get(new.key)
        if known and known.digest not in new.digests:
            return IdempotencyConflictError(known.view.id)
        if known:
            return Accepted(view=known.view, created=False, flow=new.id)
        job = FakeJob(self._memory, new)
        self._jobs[new.id] = self._memory.unfinished[new.id] = self._memory.by_key[new.key] = job
        return Accepted(view=job.view, created=True, flow=new.id)


def _fits(job: FakeJob, listing: Listing) -> bool:
    view = job.view
    verdicts = (part.content.verdict for part in job.parts if part.content)
    return (
        (not listing.states or view.state in listing.states)
        and (not listing.verdicts or any(verdict in listing.verdicts for verdict in verdicts))
        and listing.batch in (None, view.batch)
        and view.id.hex.startswith(listing.prefix.replace("-", ""))
        and listing.kind in (None, view.kind)
        and (listing.since is None or view.submitted_at >= listing.since)
        and (listing.metadata or {}).items() <= view.metadata.items()
    )


class _Calls:
    """A store as a client calls it: each call is one transaction."""

    def __init__(self, memory: Memory, client: str) -> None:
        self._memory, self._store = memory, _Store(memory, client)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if (call := getattr(self._store, name, None)) is None:
            raise NotFakedError
        return partial(self._memory.transaction, call)


class _AwaitedCalls(_Calls):
    """The same on asyncio."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = super().__getattr__(name)

        async def awaited(*args: Any, **options: Any) -> Any:
            return call(*args, **options)

        return awaited


class _Backlog(Backlog):
    def is_stale(self, lane: Lane) -> bool:
        return self.limit(lane) is not None  # counting costs nothing here


class Connections:
    """What a client holds, as behind a gateway: nothing is opened, nothing is published."""

    are_inherited, tenant = False, None
    _calls: type[_Calls] = _Calls
    _news: type[Polling | AsyncPolling] = Polling

    def __init__(self, memory: Memory, client: str, limits: Mapping[Lane, int] | None) -> None:
        self.client, self.bus, self.backlog, self._memory = client, self, _Backlog(limits or {}), memory
        self.store = self.transitions = self._calls(memory, client)

    def __getattr__(self, name: str) -> Any:
        raise NotFakedError

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> Any:
        """Return when to look again."""
        return self._news(_POLL_S, deadline)

    def prepared(self, items: Sequence[Item], requested: Options) -> Any:
        """Take in the documents, and return what submits their tasks."""
        return partial(self.store.accept, waiting.prepare(items, self._memory.payloads, requested, KEYS))

    def close(self, *_: object) -> Any:
        """Do nothing."""

    announce = publish = close


class AsyncConnections(Connections):
    """The same on asyncio; nothing of it takes time."""

    _calls, _news = _AwaitedCalls, AsyncPolling

    async def prepared(self, items: Sequence[Item], requested: Options) -> Any:
        """Take in the documents, and return what submits their tasks."""
        return super().prepared(items, requested)

    async def close(self, *_: object) -> None:
        """Do nothing."""

    announce = publish = close
