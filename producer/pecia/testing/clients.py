"""The clients of a fake fleet: real ones, whose statements run on its memory instead of Postgres."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast
from uuid import UUID

import obstore

from pecia import bulk, waiting
from pecia.aio import waiting as aio_waiting
from pecia.aio.client import AsyncClient
from pecia.aio.remote import AsyncPolling, AsyncSilentBus
from pecia.asking import moment
from pecia.bulk import Backlog, Outcomes
from pecia.client import Client
from pecia.errors import (
    BatchNotFoundError,
    IdempotencyConflictError,
    JobNotFoundError,
    RetryRefusedError,
    SubmitError,
)
from pecia.handles import Accepted, JobView
from pecia.records import Batch, Counts, Listing, Load, PartOutcome
from pecia.remote.connections import Polling, SilentBus
from pecia.store import D_co, Statements, transaction
from pecia.submission import Item, NewJob, Options, view_of
from pecia.testing.jobs import FakeJob, FakePart, Submitted, now
from pecia.testing.memory import Memory, NotFakedError
from pecia.transitions import checked_reason
from pecia.waiting import Deadline
from pecia_schemas.duty import Lack, Need
from pecia_schemas.encryption import Keyring
from pecia_schemas.events import JobEvent
from pecia_schemas.media import PayloadRef
from pecia_schemas.messages import PartMessage
from pecia_schemas.payloads import key_of
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import JobState, Lane, as_prefix, is_whole, new_id
from pecia_schemas.tasks import task_from_json

T = TypeVar("T")

_NOWHERE = "https://fake"  # as behind a gateway, so that the light client is enough
_POLL = timedelta(milliseconds=20)
_KEYS = Keyring()


class _NotFaked:
    """Whatever a fake fleet has not got raises `NotFakedError`."""

    def __getattr__(self, name: str) -> Any:
        raise NotFakedError


class _Store(Statements[D_co], _NotFaked):
    """What `pecia.store.Store` and `pecia.transitions.Transitions` are of a real fleet, so far as it goes."""

    def __init__(self, database: D_co, actor: str) -> None:
        super().__init__(database)
        self._actor = actor

    @transaction
    def accept(self, memory: Memory, batch: Sequence[NewJob]) -> list[Accepted | SubmitError]:
        return [_accepted(memory, new) for new in batch]

    @transaction
    def load(self, memory: Memory, lane: Lane, limit: int) -> Load:
        parts = [part for job in memory.open.values() if job.view.lane is lane for part in job.parts]
        return Load(waiting=min(sum(part.is_due for part in parts), limit), ended=0)

    @transaction
    def views(self, memory: Memory, job_ids: Collection[UUID]) -> dict[UUID, JobView]:
        return {job_id: job.view for job_id, job in memory.known(job_ids).items()}

    @transaction
    def page(self, memory: Memory, listing: Listing, *, before: UUID | None, size: int) -> list[JobView]:
        jobs = [job for job in memory.jobs.values() if _is_wanted(job, listing)]
        views = [job.view for job in jobs if before is None or job.view.id < before]
        return sorted(views, key=lambda view: view.id, reverse=True)[:size]

    @transaction
    def open_batch(self, memory: Memory, name: str | None) -> Batch:
        if name and (is_whole(name) or name in (batch.name for batch in memory.batches)):
            return _batch(memory, name)
        memory.batches.append(Batch(id=new_id(), name=name, created_at=now()))
        return memory.batches[-1]

    @transaction
    def batch(self, memory: Memory, reference: str) -> Batch:
        return _batch(memory, reference)

    @transaction
    def counts(self, memory: Memory, listing: Listing) -> Counts:
        jobs = [job for job in memory.jobs.values() if _is_wanted(job, listing)]
        made = [job.view.progress for job in jobs]
        totals = [one.total for one in made]
        return Counts(
            **{name: sum(getattr(one, name) for one in made) for name in ("done", "failed", "cancelled")},
            states=Counter(job.view.state for job in jobs),
            parts=sum(total or 0 for total in totals),
            uncut=totals.count(None),
            failures=Counter(part.failure.code for job in jobs for part in job.parts if part.failure),
        )

    @transaction
    def lacking(self, memory: Memory, job_ids: Collection[UUID]) -> list[Lack]:
        jobs = memory.known(job_ids).values() if memory.lacks("workers") else ()
        waiting = Counter((job.view.id, part.stage) for job in jobs for part in job.parts if part.is_due)
        return [
            Lack(job_id=job_id, stage=stage, need=Need.STAGE, value=stage, parts=parts)
            for (job_id, stage), parts in waiting.items()
        ]

    @transaction
    def outcomes(
        self, memory: Memory, /, job_id: UUID, skip: Collection[int] = (), limit: int | None = None, **_: Any
    ) -> list[PartOutcome]:  # the others are of audits and reviews
        parts = [part for part in memory.jobs[job_id].pieces if part.state.is_terminal]
        return [
            PartOutcome(
                stage=part.stage,
                ordinal=part.ordinal,
                content=part.content.model_dump(mode="json") if part.content else None,
                failure=part.failure,
            )
            for part in parts
            if part.ordinal not in skip
        ][:limit]

    @transaction
    def first_unfinished(self, memory: Memory, job_id: UUID) -> int | None:
        parts = memory.jobs[job_id].parts
        return min((part.ordinal for part in parts if not part.state.is_terminal), default=None)

    @transaction
    def events(self, memory: Memory, job_id: UUID, *, after: int, skip: Collection[int]) -> list[JobEvent]:
        events = memory.jobs[job_id].events
        return [event for event in events if event.sequence > after and event.sequence not in skip]

    @transaction
    def cancel(self, memory: Memory, job_ids: Collection[UUID], reason: str | None) -> list[UUID]:
        unfinished = [job for job in memory.known(job_ids).values() if not job.view.state.is_terminal]
        for job in unfinished:
            job.close(JobState.CANCELLED, self._actor, checked_reason(reason))
        return [job.view.id for job in unfinished]

    @transaction
    def retry(self, memory: Memory, job_id: UUID, parts: Collection[UUID] | None = None) -> list[PartMessage]:
        if job_id not in memory.jobs:
            raise JobNotFoundError(job_id)
        job = memory.jobs[job_id]
        state = job.view.state
        if state is JobState.SUCCEEDED or not state.is_terminal:
            raise RetryRefusedError(job_id, f"Job {job_id} is {state}: only what failed can be run again.")
        if not job.reopen(parts, self._actor):
            raise RetryRefusedError(job_id, f"Job {job_id} has no part to run again: submit it anew.")
        memory.open[job_id] = job
        return []


def _accepted(memory: Memory, new: NewJob) -> Accepted | SubmitError:
    if known := memory.by_key.get(new.key):
        if known.digest not in new.digests:
            return IdempotencyConflictError(known.view.id)
        return Accepted(view=known.view, created=False, flow=new.id)
    row, asked = new.row, new.asked
    task = task_from_json(row["kind"], row["task"])
    if isinstance(task.source, PayloadRef):
        task = replace(task, source=bytes(obstore.get(memory.documents, key_of(task.source)).bytes()))
    submitted = Submitted(
        id=new.id,
        task=task,
        content=task.source if isinstance(task.source, bytes) else None,
        priority=asked.lane,
        idempotency_key=None if new.key == str(new.id) else new.key,
        webhook=asked.webhook,
        metadata=row["metadata"],
        not_before=moment(asked.not_before, "not_before"),
        expires=moment(asked.expires, "expires"),
        client=asked.client,
    )
    part = FakePart(id=row["part"], stage=row["stage"], run_at=submitted.not_before or now())
    job = FakeJob(
        view=view_of(new, MappingProxyType(row["metadata"]), now(), _KEYS),
        submitted=submitted,
        digest=new.digests[0],
        size=(row["width"], row["height"]) if "width" in row else None,
        expires_at=submitted.expires,
        parts=[part],
        notify=memory.notify,
    )
    memory.jobs[new.id] = memory.open[new.id] = memory.by_key[new.key] = job
    job.tell(f"client:{submitted.client}")
    return Accepted(view=job.view, created=True, flow=new.id)


def _batch(memory: Memory, reference: str) -> Batch:
    found = [batch for batch in memory.batches if batch.name == reference]
    if not found and (begins := as_prefix(reference)):
        found = [batch for batch in memory.batches if batch.id.hex.startswith(begins.replace("-", ""))]
    if len(found) != 1:
        raise BatchNotFoundError(reference)
    return found[0]


def _is_wanted(job: FakeJob, listing: Listing) -> bool:
    view = job.view
    verdicts = (part.content.verdict for part in job.parts if part.content)
    return (
        (not listing.states or view.state in listing.states)
        and (not listing.verdicts or any(verdict in listing.verdicts for verdict in verdicts))
        and listing.batch in (None, view.batch)
        and view.id.hex.startswith(listing.prefix.replace("-", ""))
        and listing.kind in (None, view.kind)
        and (listing.part is None or listing.part in (part.id for part in job.parts))
        and (listing.since is None or view.submitted_at >= listing.since)
        and (listing.metadata or {}).items() <= view.metadata.items()
    )


class _Database:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:  # noqa: ARG002  never lost
        with self._memory.transaction():
            return work(self._memory)


class _AsyncDatabase(_Database):
    async def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:  # type: ignore[override]
        return super().transaction(work, repeatable=repeatable)


class _Backlog(Backlog):
    def is_stale(self, lane: Lane) -> bool:
        return self.limit(lane) is not None  # counting costs nothing here


class _Fake(_NotFaked):
    """What both kinds of client hold, as behind a gateway: nothing is opened, nothing is to be closed."""

    are_inherited = False
    tenant = None

    def __init__(self, settings: ClientSettings, memory: Memory, database: Any) -> None:
        self.client = settings.client_name
        self.poll_s = settings.poll_interval.total_seconds()
        self.backlog = _Backlog(settings.max_backlog)
        self.store = self.transitions = cast("Any", _Store(database, f"client:{self.client}"))
        self._memory = memory


class _Connections(_Fake):
    bus = SilentBus()

    def __init__(self, settings: ClientSettings, memory: Memory) -> None:
        super().__init__(settings, memory, _Database(memory))

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> Polling:
        return Polling(self.poll_s, deadline)

    def prepared(self, items: Sequence[Item], asked: Options) -> Callable[[], Outcomes]:
        return partial(self._accept, items, asked)

    def _accept(self, items: Sequence[Item], asked: Options) -> Outcomes:
        prepared = waiting.prepare(items, self._memory.payloads, asked, _KEYS)
        accepted = self.store.accept(bulk.new_jobs(prepared))
        self._memory.settle()
        return bulk.outcomes(prepared, accepted)

    def publish(self, _messages: Sequence[PartMessage]) -> None:
        self._memory.settle()

    def close(self) -> None: ...


class _AsyncConnections(_Fake):
    bus = AsyncSilentBus()

    def __init__(self, settings: ClientSettings, memory: Memory) -> None:
        super().__init__(settings, memory, _AsyncDatabase(memory))

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> AsyncPolling:
        return AsyncPolling(self.poll_s, deadline)

    async def prepared(
        self, items: Sequence[Item], asked: Options
    ) -> Callable[[], Coroutine[Any, Any, Outcomes]]:
        return partial(self._accept, items, asked)

    async def _accept(self, items: Sequence[Item], asked: Options) -> Outcomes:
        prepared = await aio_waiting.prepare(items, self._memory.payloads, asked, _KEYS)
        accepted = await self.store.accept(bulk.new_jobs(prepared))
        self._memory.settle()
        return bulk.outcomes(prepared, accepted)

    async def publish(self, _messages: Sequence[PartMessage]) -> None:
        self._memory.settle()

    async def close(self) -> None: ...


class FakeClient(Client):
    """A client of a fake fleet."""

    def __init__(self, settings: ClientSettings, memory: Memory) -> None:
        super().__init__(_NOWHERE, api_key="fake", settings=settings)
        self._memory = memory

    def _connect(self) -> Any:
        return _Connections(self._settings, self._memory)


class FakeAsyncClient(AsyncClient):
    """An asynchronous client of a fake fleet."""

    def __init__(self, settings: ClientSettings, memory: Memory) -> None:
        super().__init__(_NOWHERE, api_key="fake", settings=settings)
        self._memory = memory

    def _connect(self) -> Any:
        return _AsyncConnections(self._settings, self._memory)


def settings_of(name: str, max_backlog: Mapping[Lane, int] | None) -> ClientSettings:
    """Return settings that nothing in the environment has a say in."""
    limits = dict(max_backlog or {})
    return ClientSettings.model_construct(client_name=name, poll_interval=_POLL, max_backlog=limits)
