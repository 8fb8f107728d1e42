"""The fake fleet: what a test says to it, what it lets the test see, and what its clients hold in place of servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Self, TypeVar, get_args
from uuid import UUID

from pecia import bulk, errors, waiting
from pecia.aio.client import AsyncClient
from pecia.aio.remote import AsyncPolling
from pecia.bulk import Backlog, Outcomes, Prepared
from pecia.client import Client
from pecia.handles import Accepted, JobHandle, JobView
from pecia.records import Batch, Counts, LaneLoad, Listing, PartOutcome
from pecia.remote.connections import Polling
from pecia.submission import NewJob
from pecia.testing.jobs import KEYS, Callback, FakeJob, Memory, Submitted, now
from pecia.testing.scripts import Answer, Piece, Rule
from pecia.transitions import checked_reason
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.running import Lack, Need
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import JobState, Lane, is_whole, new_id
from pecia_schemas.tasks import Task

C = TypeVar("C", Client, AsyncClient)

Service = Literal["postgres", "redis", "payloads", "workers"]

_POLL_S = 0.02


class NotFakedError(NotImplementedError):
    """A fake fleet does not do what was requested: a real one does."""

    def __init__(self) -> None:
        super().__init__(
            "A fake fleet has jobs, batches, results, events and callbacks; no purges, reports, reviews or "
            "registered endpoints. Test this with a real fleet: pip install 'pecia[local]', then `pecia up`."
        )


class FakeFleet:
    """A whole fleet in memory, for the tests of those who use Pecia: no servers, no files, no waiting.

    Its clients are real ones. What they submit runs at once, and ends as `answers` and `fails` said; what neither said
    anything about is read as one page, or captioned as one segment. With `held`, nothing moves until the test says so.

    What it does not have (purges, reports, reviews, registered endpoints) raises `NotFakedError`. After the
    `with` block every call of its clients raises `DatabaseUnavailableError`.
    """

    def __init__(self, *, held: bool = False) -> None:
        self._memory = Memory(held=held)

    def client(self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None) -> Client:
        """Return a client of this fleet; `name` and `max_backlog` are `PECIA_CLIENT_NAME` and `PECIA_MAX_BACKLOG`."""
        return _faked(Client, _Connections(self._memory, name, max_backlog))

    def async_client(
        self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None
    ) -> AsyncClient:
        """Return a client for asyncio of this fleet, as `client` does."""
        return _faked(AsyncClient, _AsyncConnections(self._memory, name, max_backlog))

    def answers(
        self,
        task: type[Task[Any]],
        answer: Answer | Callable[[Any], Answer] | None = None,
        *,
        text: str | None = None,
        pages: Sequence[Piece] | None = None,
        segments: Sequence[Piece] | None = None,
        summary: str | None = None,
        fields: Mapping[str, Any] | None = None,
        times: int | None = None,
    ) -> None:
        """Say how tasks of a type end from now on; what was said last applies, to so many jobs if `times` is given.

        One of: `text` of the only page or segment; `pages` or `segments`, each a text, a `Page` or `Segment`, or a
        `FailureCode`; or an `answer`: all that, a `Document` or `Captions`, or a function that returns one and is
        given the task, its source being the document's bytes. `fields` fill every page of a task that asks for some.
        """
        given = [one for one in (answer, text, pages, segments) if one is not None]
        if len(given) != 1:
            raise TypeError("answers takes one of: an answer, text, pages or segments.")
        self._memory.rules.append(
            Rule(task=task, answer=given[0], summary=summary, fields=fields, left=times)
        )

    def fails(self, task: type[Task[Any]], why: FailureCode | Failure, *, times: int | None = None) -> None:
        """Say that tasks of a type fail from now on, as after the last attempt; `times` is as above."""
        self._memory.rules.append(Rule(task=task, answer=why, left=times))

    def hold(self) -> None:
        """Let nothing more move by itself."""
        self._memory.held = True

    def release(self) -> None:
        """Run what is due, and from now on everything at once."""
        self._memory.held = False
        self._memory.settle()

    def start(self, job: JobHandle[Any] | UUID) -> bool:
        """Begin the next part of a job, which then runs until it is ended; False if none can begin."""
        return self._memory.begin(_id_of(job)) is not None

    def step(self, job: JobHandle[Any] | UUID | None = None) -> bool:
        """End one part, of this job or of the first in line; False if there is none that could run."""
        return self._memory.step(None if job is None else _id_of(job))

    def finish(self, job: JobHandle[Any] | UUID | None = None) -> None:
        """End all parts, of this job or of all, that could run."""
        while self.step(job):
            pass

    def advance(self, by: timedelta) -> None:
        """Let time pass: everything that there is becomes so much older, and what is due then happens.

        Moments that were read before do not move with it, and neither does the machine's clock.
        """
        with self._memory.lock:
            for job in self._memory.jobs.values():
                job.age(by)
            self._memory.settle()

    @contextmanager
    def outage(self, service: Service) -> Iterator[None]:
        """Take a service away for as long as the block runs.

        Without `postgres` every call raises `DatabaseUnavailableError`; without `payloads` every submit raises
        `PayloadStoreUnavailableError`; without `redis` jobs are accepted and wait; without `workers` they wait, and
        `Job.hint` says for whom.
        """
        if service not in get_args(Service):
            raise ValueError(f"An outage is one of {', '.join(get_args(Service))}.")
        self._memory.away[service] += 1
        try:
            yield
        finally:
            self._memory.away[service] -= 1
            self._memory.settle()

    @property
    def submitted(self) -> list[Submitted]:
        """What was submitted, in order, without what an idempotency key named before."""
        return [job.submitted for job in list(self._memory.jobs.values())]

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks that were sent, in order."""
        self._memory.settle()
        return list(self._memory.callbacks)

    @property
    def webhook_secret(self) -> str:
        """What the callbacks to jobs' own webhooks are signed with."""
        return self._memory.secret

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.away["postgres"] = 1


def _faked(kind: type[C], connections: Any) -> C:
    """Return a client as of a gateway, which needs no settings of stores, that has these connections in its place."""
    client = kind("https://fake", api_key="fake", settings=ClientSettings.model_construct())
    client._connect = lambda: connections  # type: ignore[method-assign]  # noqa: SLF001
    return client


def _id_of(job: JobHandle[Any] | UUID) -> UUID:
    return job if isinstance(job, UUID) else job.id


class _Store:
    """What `pecia.store.Store` and `pecia.transitions.Transitions` are of a real fleet, so far as it goes."""

    def __init__(self, memory: Memory, client: str) -> None:
        self._memory, self._jobs, self._actor = memory, memory.jobs, f"client:{client}"

    def accept(self, prepared: Prepared) -> Outcomes:
        return list(bulk.outcomes(prepared, [self._accept(new) for new in bulk.new_jobs(prepared)]))

    def _accept(self, new: NewJob) -> Accepted | errors.SubmitError:
        known = self._memory.by_key.get(new.key)
        if known and known.digest not in new.digests:
            return errors.IdempotencyConflictError(known.view.id)
        job = known or FakeJob(self._memory, new)
        return Accepted(view=job.view, created=known is None, flow=new.id)

    def load(self, lane: Lane, limit: int) -> LaneLoad:
        parts = [part for job in self._jobs.values() if job.view.lane is lane for part in job.parts]
        return LaneLoad(waiting=min(sum(part.is_due for part in parts), limit), ended=0)

    def views(self, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        return {job_id: self._jobs[job_id].view for job_id in job_ids if job_id in self._jobs}

    def page(self, listing: Listing, *, before: UUID | None, size: int) -> list[JobView]:
        views = [job.view for job in self._fitting(listing) if before is None or job.view.id < before]
        return sorted(views, key=lambda view: view.id, reverse=True)[:size]

    def open_batch(self, name: str | None) -> Batch:
        if name and (is_whole(name) or any(name == batch.name for batch in self._memory.batches)):
            return self.batch(name)
        self._memory.batches.append(Batch(id=new_id(), name=name, created_at=now()))
        return self._memory.batches[-1]

    def batch(self, reference: str) -> Batch:
        for batch in self._memory.batches:
            if reference in (batch.name, str(batch.id)):
                return batch
        raise errors.BatchNotFoundError(reference)

    def counts(self, listing: Listing) -> Counts:
        jobs = self._fitting(listing)
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
        return min((part.ordinal for part in self._jobs[job_id].open), default=None)

    def events(self, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        events = self._jobs[job_id].events
        return [event for event in events if event.sequence > after and event.sequence not in skip]

    def cancel(self, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        unfinished = [job_id for job_id in job_ids if job_id in self._memory.unfinished]
        for job_id in unfinished:
            self._jobs[job_id].close(JobState.CANCELLED, self._actor, checked_reason(reason))
        return unfinished

    def retry(self, job_id: UUID, parts: Collection[UUID] | None = None) -> list[Any]:
        if parts is not None:
            raise NotFakedError
        if (job := self._jobs.get(job_id)) is None:
            raise errors.JobNotFoundError(job_id)
        state = job.view.state
        if state is JobState.SUCCEEDED or not state.is_terminal:
            raise errors.RetryRefusedError(
                job_id, f"Job {job_id} is {state}: only what failed can be run again."
            )
        job.reopen(self._actor)
        return []

    def _fitting(self, listing: Listing) -> list[FakeJob]:
        return [
            job
            for job in self._jobs.values()
            if (not listing.states or job.view.state in listing.states)
            and (
                not listing.verdicts
                or any(part.content and part.content.verdict in listing.verdicts for part in job.parts)
            )
            and listing.batch in (None, job.view.batch)
            and job.view.id.hex.startswith(listing.prefix.replace("-", ""))
            and listing.kind in (None, job.view.kind)
            and (listing.since is None or job.view.submitted_at >= listing.since)
            and (listing.metadata or {}).items() <= job.view.metadata.items()
        ]


class _Calls:
    """A store as a client calls it: each call is one transaction."""

    def __init__(self, connections: _Connections, memory: Memory) -> None:
        self._memory, self._store = memory, _Store(memory, connections.client)
        self._called = connections.called

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if (call := getattr(self._store, name, None)) is None:
            raise NotFakedError
        return self._called(partial(self._memory.transaction, call))


class _Backlog(Backlog):
    def is_stale(self, lane: Lane) -> bool:
        return self.limit(lane) is not None  # counting costs nothing here


class _Connections:
    """What a client holds, as behind a gateway: nothing is opened, nothing is published."""

    are_inherited, tenant = False, None
    _news: type[Polling | AsyncPolling] = Polling

    def __init__(self, memory: Memory, client: str, limits: Mapping[Lane, int] | None) -> None:
        self.client, self.bus, self.backlog = client, self, _Backlog(limits or {})
        self.store = self.transitions = store = _Calls(self, memory)
        self.announcements = lambda _job_ids, deadline: nullcontext(self._news(_POLL_S, deadline))
        self.prepared = self.called(
            lambda items, requested: partial(
                store.accept, waiting.prepare(items, memory.payloads, requested, KEYS)
            )
        )
        self.announce = self.publish = self.close = self.called(lambda *_: None)

    def __getattr__(self, name: str) -> Any:
        raise NotFakedError

    @staticmethod
    def called(work: Callable[..., Any]) -> Callable[..., Any]:
        return work


class _AsyncConnections(_Connections):
    """The same on asyncio; nothing of it takes time."""

    _news = AsyncPolling

    @staticmethod
    def called(work: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*args: Any, **options: Any) -> Any:
            return work(*args, **options)

        return awaited
