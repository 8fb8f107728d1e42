"""The fake fleet: its controls for tests, and the connections of its clients in place of servers."""

# ruff: noqa: SLF001  the connections use the fleet's internals

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from threading import RLock
from typing import Any, Literal, Self, TypeVar, get_args
from uuid import UUID

import obstore
from obstore.store import MemoryStore

from pecia import arguments, errors, submission, waiting
from pecia.aio.client import AsyncClient
from pecia.aio.remote import AsyncPolling
from pecia.client import Client
from pecia.handles import Accepted, JobHandle, JobView, existing_view
from pecia.records import Batch, Counts, LaneLoad, Listing, PartOutcome
from pecia.remote.connections import Polling
from pecia.submission import NewJob, Outcomes, Prepared
from pecia.testing.jobs import (
    KEYS,
    Answer,
    Callback,
    FakeJob,
    FakePart,
    Piece,
    Rule,
    Submitted,
    now,
    script_of,
    signed,
)
from pecia_schemas.bundles import Split
from pecia_schemas.events import JobEvent, new_secret
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.installing import install_command
from pecia_schemas.payloads import PayloadStore, key_of
from pecia_schemas.running import Lack, Need
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import JobState, Lane, PartState, is_complete_id, new_id
from pecia_schemas.tasks import Task

C = TypeVar("C", Client, AsyncClient)

Service = Literal["postgres", "redis", "payloads", "workers"]

_POLL_S = 0.02


class NotFakedError(NotImplementedError):
    """A fake fleet does not offer this call; a real fleet does."""

    def __init__(self) -> None:
        super().__init__(
            "A fake fleet has jobs, batches, results, events and callbacks; no purges, reports, reviews or "
            f"registered endpoints. Test this with a real fleet: {install_command('local')}, then `pecia up`."
        )


class FakeFleet:
    """A complete fleet in memory, for the tests of Pecia's users: no servers, no files, no waiting.

    Its clients are real clients. Submitted jobs run at once, and end as set by `answers` and `fails`; by default, a
    document has one page and a video one segment. With `held`, nothing runs until the test calls `start` or `step`.

    Calls without a fake (purges, reports, reviews, registered endpoints) raise `NotFakedError`. After the `with` block
    every call of its clients raises `DatabaseUnavailableError`.
    """

    def __init__(self, *, held: bool = False) -> None:
        self._held = held
        self._jobs: dict[UUID, FakeJob] = {}  # in the order in which they were submitted
        self._unfinished: list[FakeJob] = []
        self._by_key: dict[str, FakeJob] = {}
        self._batches: list[Batch] = []
        self._rules: list[Rule] = []
        self._callbacks: list[Callback] = []
        self._away: Counter[str] = Counter()  # how many outages of each service there are at this moment
        self._lock = RLock()
        self._documents = MemoryStore()
        self._is_answering = False
        self.webhook_secret = new_secret()
        """Secret that signs callbacks to jobs' own webhooks."""

    def client(self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None) -> Client:
        """Return a client of this fleet; the arguments stand for `PECIA_CLIENT_NAME` and `PECIA_MAX_BACKLOG`."""
        return _faked(Client, _Connections(self, name, max_backlog))

    def async_client(
        self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None
    ) -> AsyncClient:
        """Return a client for asyncio; otherwise as `client`."""
        return _faked(AsyncClient, _AsyncConnections(self, name, max_backlog))

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
        """Set the outcome of tasks of a type from now on. The last setting applies; with `times`, to so many jobs.

        Pass exactly one of: `text` of the only page or segment; `pages` or `segments`, each a text, a `Page` or
        `Segment`, or a `FailureCode`; or an `answer`: any of these, a `Document` or `Captions`, or a function that
        returns one of them. The function gets the task, whose source is the document's bytes. `fields` fill each page
        if requested.
        """
        given = [one for one in (answer, text, pages, segments) if one is not None]
        if len(given) != 1:
            raise TypeError("answers takes exactly one of: answer, text, pages or segments.")
        self._rules.append(Rule(task=task, answer=given[0], summary=summary, fields=fields, left=times))

    def fails(self, task: type[Task[Any]], why: FailureCode | Failure, *, times: int | None = None) -> None:
        """Make tasks of a type fail from now on, as after the last attempt; with `times`, only so many jobs."""
        self._rules.append(Rule(task=task, answer=why, left=times))

    def hold(self) -> None:
        """Run nothing more automatically."""
        self._held = True

    def release(self) -> None:
        """Run the due work now, and all later work at once."""
        self._held = False
        self._settle()

    def start(self, job: JobHandle[Any] | UUID) -> bool:
        """Begin the next part of a job, which then runs until it is ended. Return False if no part can begin."""
        with self._lock:
            return self._begin(job if isinstance(job, UUID) else job.id) is not None

    def step(self, job: JobHandle[Any] | UUID | None = None) -> bool:
        """End one part, of this job or of the first in line. Return False if no part can run."""
        job_id = job if job is None or isinstance(job, UUID) else job.id
        with self._lock:
            if found := self._first(PartState.RUNNING, job_id) or self._begin(job_id):
                moved, part = found
                if moved.script is None:
                    self._is_answering = True  # an answer may use a client; nothing else runs meanwhile
                    try:
                        moved.script = script_of(self._rules, moved.submitted.task)
                    finally:
                        self._is_answering = False
                moved.end(part, moved.script)
            return found is not None

    def finish(self, job: JobHandle[Any] | UUID | None = None) -> None:
        """End all parts that can run, of this job or of all jobs."""
        while self.step(job):
            pass

    def advance(self, by: timedelta) -> None:
        """Advance the time: all jobs age by this duration, and work that becomes due runs.

        Times that were read before do not change, and neither does the machine's clock.
        """
        with self._lock:
            for job in self._jobs.values():
                job.age(by)
            self._settle()

    @contextmanager
    def outage(self, service: Service) -> Iterator[None]:
        """Make a service unavailable during the block.

        Without `postgres` every call raises `DatabaseUnavailableError`; without `payloads` every submit raises
        `PayloadStoreUnavailableError`; without `redis` jobs are accepted and wait; without `workers` they wait, and
        `Job.hint` names the missing worker.
        """
        if service not in get_args(Service):
            raise ValueError(f"An outage must be one of {', '.join(get_args(Service))}.")
        self._away[service] += 1
        try:
            yield
        finally:
            self._away[service] -= 1
            self._settle()

    @property
    def submitted(self) -> list[Submitted]:
        """Submitted tasks, in order, without repetitions by an idempotency key."""
        return [job.submitted for job in list(self._jobs.values())]

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks that were sent, in order."""
        self._settle()
        return list(self._callbacks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._away["postgres"] = 1

    def _settle(self) -> None:
        """Expire jobs, and run the due parts, unless they are held or no worker is available."""
        with self._lock:
            if self._is_answering or self._away["postgres"]:
                return
            stands_still = self._held or self._away["workers"] or self._away["redis"]
            for job in self._in_line():
                if job.expires_at is not None and job.expires_at <= now():
                    job.close(JobState.EXPIRED, "upkeep", "expired")
                while not stands_still and self.step(job.submitted.id):
                    pass

    def _in_line(self) -> list[FakeJob]:
        """Return the jobs that have not ended, in the order in which they run."""
        unfinished = (job for job in self._unfinished if not job.is_over)
        self._unfinished = sorted(unfinished, key=lambda job: job.submitted.priority.rank)
        return self._unfinished

    def _first(self, state: PartState, job_id: UUID | None) -> tuple[FakeJob, FakePart] | None:
        """Return the first due part in this state, of this job or of any."""
        jobs = self._in_line() if job_id is None else [self._jobs[job_id]] if job_id in self._jobs else []
        parts = ((job, part) for job in jobs for part in job.open)
        return next((found for found in parts if found[1].state is state and found[1].run_at <= now()), None)

    def _begin(self, job_id: UUID | None) -> tuple[FakeJob, FakePart] | None:
        """Begin the first due part and return it, or None without one."""
        if found := self._first(PartState.QUEUED, job_id):
            job, part = found
            job.begin(part)
        return found

    def _transaction(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Return the result of `work`; due parts run before and after it."""
        with self._lock:
            if self._away["postgres"]:
                raise errors.DatabaseUnavailableError("Postgres does not answer: the test took it away.")
            self._settle()
            done = work(*args, **options)
            self._settle()
            return done

    def _payloads(self) -> PayloadStore:
        if self._away["payloads"]:
            raise errors.PayloadStoreUnavailableError(
                "The payload store does not answer: the test took it away."
            )
        return PayloadStore(self._documents, None, KEYS)


def _faked(kind: type[C], connections: Any) -> C:
    """Return a client with these connections. It is set up like one of a gateway, which needs no store settings."""
    client = kind("https://fake", api_key="fake", settings=ClientSettings.model_construct())
    client._connect = lambda: connections  # type: ignore[method-assign]
    return client


class _Store:
    """Counterpart of `pecia.store.Store` and `pecia.transitions.Transitions`, with a part of their methods."""

    def __init__(self, fleet: FakeFleet, client: str) -> None:
        self._fleet, self._jobs, self._actor = fleet, fleet._jobs, f"client:{client}"

    def accept(self, prepared: Prepared) -> Outcomes:
        return list(
            submission.outcomes(prepared, [self._accept(new) for new in submission.new_jobs(prepared)])
        )

    def _accept(self, new: NewJob) -> Accepted | errors.SubmitError:
        fleet = self._fleet
        if (job := fleet._by_key.get(new.key)) is None:
            job = FakeJob(
                new,
                lambda reference: bytes(obstore.get(fleet._documents, key_of(reference)).bytes()),
                lambda url, notice: fleet._callbacks.append(signed(url, notice, fleet.webhook_secret)),
            )
            self._jobs[new.id] = fleet._by_key[new.key] = job
            fleet._unfinished.append(job)
        elif job.digest != new.row["digest"]:
            return errors.IdempotencyConflictError(job.submitted.id)
        return Accepted(view=job.view, created=job.submitted.id == new.id, flow=new.id)

    def load(self, lane: Lane, limit: int) -> LaneLoad:
        parts = [part for job in self._jobs.values() if job.submitted.priority is lane for part in job.parts]
        return LaneLoad(waiting=min(sum(part.is_due for part in parts), limit), ended=0)

    def views(self, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        return {job_id: self._jobs[job_id].view for job_id in job_ids if job_id in self._jobs}

    def page(self, listing: Listing, *, before: UUID | None, size: int) -> list[JobView]:
        views = {view.id: view for view, _ in self._fitting(listing) if before is None or view.id < before}
        return [views[job_id] for job_id in sorted(views, reverse=True)[:size]]

    def open_batch(self, name: str | None) -> Batch:
        if name and (is_complete_id(name) or any(name == batch.name for batch in self._fleet._batches)):
            return self.batch(name)
        self._fleet._batches.append(Batch(id=new_id(), name=name, created_at=now()))
        return self._fleet._batches[-1]

    def batch(self, reference: str) -> Batch:
        for batch in self._fleet._batches:
            if reference in (batch.name, str(batch.id)):
                return batch
        raise errors.BatchNotFoundError(reference)

    def counts(self, listing: Listing) -> Counts:
        fitting = list(self._fitting(listing))
        made = [view.progress for view, _ in fitting]
        return Counts(
            **{name: sum(getattr(one, name) for one in made) for name in ("done", "failed", "cancelled")},
            states=Counter(view.state for view, _ in fitting),
            parts=sum(one.total or 0 for one in made),
            uncut=sum(one.total is None for one in made),
            failures=Counter(part.failure.code for _, job in fitting for part in job.parts if part.failure),
        )

    def lacking(self, job_ids: Collection[UUID]) -> list[Lack]:
        jobs = [self._jobs[job_id] for job_id in job_ids if self._fleet._away["workers"]]
        queued = Counter((job.submitted.id, part.stage) for job in jobs for part in job.parts if part.is_due)
        return [
            Lack(job_id=job_id, stage=stage, need=Need.STAGE, value=stage, parts=parts)
            for (job_id, stage), parts in queued.items()
        ]

    def outcomes(
        self, job_id: UUID, skip: Container[int] | None = None, limit: int | None = None, **_: Any
    ) -> list[PartOutcome]:  # other options concern audits and reviews
        return [
            PartOutcome(
                stage=part.stage,
                ordinal=part.ordinal,
                content=part.content.model_dump(mode="json") if part.content else None,
                failure=part.failure,
            )
            for part in self._jobs[job_id].pieces
            if part.state.is_terminal and part.ordinal not in (skip or ())
        ][:limit]

    def first_unfinished(self, job_id: UUID) -> int | None:
        return min((part.ordinal for part in self._jobs[job_id].open), default=None)

    def events(self, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        events = self._jobs[job_id].events
        return [event for event in events if event.sequence > after and event.sequence not in skip]

    def cancel(self, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        unfinished = [job_id for job_id in job_ids if job_id in self._jobs and not self._jobs[job_id].is_over]
        for job_id in unfinished:
            self._jobs[job_id].close(JobState.CANCELLED, self._actor, arguments.checked_reason(reason))
        return unfinished

    def retry(self, job_id: UUID, parts: Collection[UUID] | None = None) -> list[Any]:
        if parts is not None:
            raise NotFakedError
        arguments.check_retry(job_id, existing_view(job_id, self.views([job_id])).state)
        self._jobs[job_id].reopen(self._actor)
        self._fleet._unfinished.append(self._jobs[job_id])
        return []

    def _fitting(self, listing: Listing) -> Iterator[tuple[JobView, FakeJob]]:
        for job in self._jobs.values():
            view = job.view
            read = {
                part.content.verdict
                for part in job.parts
                if part.content and not isinstance(part.content, Split)
            }
            if (
                (not listing.states or view.state in listing.states)
                and (not listing.verdicts or not read.isdisjoint(listing.verdicts))
                and listing.batch in (None, view.batch)
                and view.id.hex.startswith(listing.prefix.replace("-", ""))
                and listing.kind in (None, view.kind)
                and listing.part in (None, *(part.id for part in job.parts))
                and (listing.since is None or view.submitted_at >= listing.since)
                and (listing.metadata or {}).items() <= view.metadata.items()
            ):
                yield view, job


class _Backlog(waiting.Backlog):
    def is_stale(self, lane: Lane) -> bool:
        return self.limit(lane) is not None  # counting is cheap here


class _Connections:
    """Connections of a client, as for a gateway: nothing is opened or published."""

    are_inherited, tenant = False, None
    _news: type[Polling | AsyncPolling] = Polling

    def __init__(self, fleet: FakeFleet, client: str, limits: Mapping[Lane, int] | None) -> None:
        self.client, self.backlog = client, _Backlog(limits or {})
        self.store = self.transitions = self.bus = self
        self._transaction, self._statements = fleet._transaction, _Store(fleet, client)
        self.announcements = lambda _job_ids, deadline: nullcontext(self._news(_POLL_S, deadline))
        self.prepared = self.called(
            lambda items, options: partial(
                self.accept, waiting.prepare(items, fleet._payloads(), options, KEYS)
            )
        )
        self.announce = self.publish = self.close = self.called(lambda *_: None)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a statement as one transaction. A statement without a fake raises `NotFakedError`."""
        if (statement := getattr(self._statements, name, None)) is None:
            raise NotFakedError
        return self.called(partial(self._transaction, statement))

    @staticmethod
    def called(work: Callable[..., Any]) -> Callable[..., Any]:
        return work


class _AsyncConnections(_Connections):
    """Counterpart for asyncio. Nothing in it waits."""

    _news = AsyncPolling

    @staticmethod
    def called(work: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*args: Any, **options: Any) -> Any:
            return work(*args, **options)

        return awaited
