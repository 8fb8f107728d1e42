"""The fake fleet: what a test says to it, and what it lets the test see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, Self, TypeVar, get_args
from uuid import UUID

from pecia.aio.client import AsyncClient
from pecia.client import Client
from pecia.handles import JobHandle
from pecia.testing.clients import AsyncConnections, Connections
from pecia.testing.jobs import Callback, Memory, Submitted
from pecia.testing.scripts import Answer, Piece, Rule
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Task

C = TypeVar("C", Client, AsyncClient)

Service = Literal["postgres", "redis", "payloads", "workers"]


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
        return _faked(Client, Connections(self._memory, name, max_backlog))

    def async_client(
        self, name: str = "test", *, max_backlog: Mapping[Lane, int] | None = None
    ) -> AsyncClient:
        """Return a client for asyncio of this fleet, as `client` does."""
        return _faked(AsyncClient, AsyncConnections(self._memory, name, max_backlog))

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
