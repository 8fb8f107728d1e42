"""The fake fleet: what a test says to it, and what it lets the test see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from pecia.aio.client import AsyncClient
from pecia.client import Client
from pecia.handles import JobHandle
from pecia.testing.callbacks import Callback, Callbacks
from pecia.testing.clients import FakeAsyncClient, FakeClient, settings_of
from pecia.testing.connections import Servers
from pecia.testing.memory import SERVICES, Memory
from pecia.testing.payloads import MemoryPayloads
from pecia.testing.records import JobRecord
from pecia.testing.rules import Rules
from pecia.testing.scripts import Answer, Piece, Rule
from pecia.testing.workers import Workers
from pecia_schemas.events import Webhook
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import Task

Service = Literal["postgres", "redis", "payloads", "workers"]
_AT_ONCE = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a client has handed over."""

    id: UUID
    """Of its job."""
    task: Task[Any]
    """As it was submitted, with the document's bytes for its source."""
    content: bytes | None = field(repr=False)
    """The document; None once it was purged."""
    priority: Lane
    idempotency_key: str | None
    webhook: Webhook | None
    metadata: Mapping[str, str]
    not_before: datetime | None
    expires: datetime | None
    client: str


class FakeFleet:
    """A whole fleet in memory, for the tests of those who use Pecia: no servers, no files, no waiting.

    Its clients are real ones. What they submit runs at once, and ends as `answers` and `fails` said; what neither said
    anything about is read as one page, or captioned as one segment. With `held`, nothing moves until the test says so.

    After the `with` block every call of its clients raises `DatabaseUnavailableError`.
    """

    def __init__(self, *, held: bool = False) -> None:
        self._memory = Memory()
        self._servers = Servers(self._memory, MemoryPayloads.over(self._memory))
        self._callbacks = Callbacks(self._memory)
        self._workers = Workers(self._memory, self._servers.payloads)
        self._workers.held = held
        self._memory.rules = Rules(self._memory, self._callbacks.promise, self._callbacks.promise_part)
        self._memory.settle = self._workers.settle
        self._memory.announce = self._announce

    def client(self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None) -> Client:
        """Return a client of this fleet; `name` and `max_backlog` are `PECIA_CLIENT_NAME` and `PECIA_MAX_BACKLOG`."""
        return FakeClient(settings_of(name, max_backlog), self._servers)

    def async_client(
        self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None
    ) -> AsyncClient:
        """Return a client for asyncio of this fleet, as `client` does."""
        return FakeAsyncClient(settings_of(name, max_backlog), self._servers)

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
        takes: timedelta = _AT_ONCE,
        times: int | None = None,
    ) -> None:
        """Say how tasks of a type end from now on; what was said last applies, to so many jobs if `times` is given.

        One of: `text` of the only page or segment; `pages` or `segments`, each a text, a `Page` or `Segment`, or a
        `FailureCode`; or an `answer`: all that, a `Document` or `Captions`, or a function that returns one and is
        given the task, its source being the document's bytes. `fields` fill every page of a task that asks for some.
        Pages and segments run side by side, each for as long as it `takes`.
        """
        given = [one for one in (answer, text, pages, segments) if one is not None]
        if len(given) != 1:
            raise TypeError("answers takes one of: an answer, text, pages or segments.")
        self._workers.told.add(
            Rule(task=task, answer=given[0], summary=summary, fields=fields, takes=takes, left=times)
        )

    def fails(
        self,
        task: type[Task[Any]],
        why: FailureCode | Failure,
        *,
        takes: timedelta = _AT_ONCE,
        times: int | None = None,
    ) -> None:
        """Say that tasks of a type fail from now on, as after the last attempt; `times` is as above."""
        self._workers.told.add(Rule(task=task, answer=why, takes=takes, left=times))

    def hold(self) -> None:
        """Let nothing more begin by itself."""
        self._workers.held = True

    def release(self) -> None:
        """Run what is due, and from now on everything at once."""
        self._workers.held = False
        self._settle()

    def start(self, job: JobHandle[Any] | UUID) -> bool:
        """Begin the next part of a job, which then runs until it is ended; False if none can begin."""
        return self._workers.begin(_id_of(job))

    def step(self, job: JobHandle[Any] | UUID | None = None) -> bool:
        """End one part, of this job or of the first in line; False if there is none that could run."""
        return self._workers.step(None if job is None else _id_of(job))

    def finish(self, job: JobHandle[Any] | UUID | None = None) -> None:
        """End all parts, of this job or of all, that could run."""
        while self.step(job):
            pass

    def advance(self, by: timedelta) -> None:
        """Let time pass: everything that there is becomes so much older, and what is due then happens.

        Moments that were read before do not move with it, and neither does the machine's clock.
        """
        with self._memory.moving():
            self._memory.age(by)
        self._settle()

    @contextmanager
    def outage(self, service: Service) -> Iterator[None]:
        """Take a service away for as long as the block runs.

        Without `postgres` every call raises `DatabaseUnavailableError`; without `payloads` every submit raises
        `PayloadStoreUnavailableError`; without `redis` jobs are accepted and wait; without `workers` they wait, and
        `Job.hint` says for whom.
        """
        if service not in SERVICES:
            raise ValueError(f"An outage is one of {', '.join(SERVICES)}.")
        self._memory.away[service] = self._memory.away.get(service, 0) + 1
        try:
            yield
        finally:
            self._memory.away[service] -= 1
            self._settle()

    @property
    def submitted(self) -> list[Submitted]:
        """What was handed over, in order, without what an idempotency key named before."""
        with self._memory.moving():
            return [self._as_submitted(job) for job in self._memory.jobs.values()]

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks that were sent, in order."""
        self._settle()
        return list(self._callbacks.posted)

    @property
    def webhook_secret(self) -> str:
        """What the callbacks to jobs' own webhooks are signed with."""
        return self._callbacks.secret

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.away["postgres"] = 1

    def _announce(self, job_id: UUID, state: JobState) -> None:
        if not self._memory.lacks("redis"):
            self._servers.switchboard.announce(job_id, state)

    def _settle(self) -> None:
        with self._memory.moving() as first:
            if first and not self._memory.lacks("postgres"):
                self._workers.settle()

    def _as_submitted(self, job: JobRecord) -> Submitted:
        task = self._workers.task(job)
        return Submitted(
            id=job.id,
            task=task,
            content=task.source if job.payload and isinstance(task.source, bytes) else None,
            priority=job.lane,
            idempotency_key=None if job.key == str(job.id) else job.key,
            webhook=Webhook.model_validate(job.webhook) if job.webhook else None,
            metadata=dict(job.metadata),
            not_before=job.not_before,
            expires=job.expires_at,
            client=job.client,
        )


def _id_of(job: JobHandle[Any] | UUID) -> UUID:
    return job if isinstance(job, UUID) else job.id
