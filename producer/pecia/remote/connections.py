"""What a client holds of a fleet behind a gateway: HTTP connections, and nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from uuid import UUID

from pecia.bulk import Item, Outcomes
from pecia.remote.calls import AsyncHttpDatabase, HttpDatabase
from pecia.remote.stores import (
    RemoteAccounts,
    RemoteDeliveries,
    RemoteEndpoints,
    RemotePurging,
    RemoteStore,
    RemoteTransitions,
    not_offered,
)
from pecia.statements import Awaitable, Blocking
from pecia.submission import Options
from pecia.waiting import Backlog, Deadline
from pecia_schemas.settings import ClientSettings

D = TypeVar("D", bound=Blocking | Awaitable)

_SOONEST_S: Final = 0.05


class _Missing:
    """What a gateway does not offer: the first call says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise not_offered(self._what)


class _News:
    """When to look at jobs again: soon at first, then at the client's polling interval."""

    def __init__(self, poll_s: float, deadline: Deadline) -> None:
        self._pause, self._poll_s, self._deadline = _SOONEST_S, poll_s, deadline

    def _next(self) -> float:
        pause = self._deadline.within(min(self._pause, self._poll_s))
        self._pause *= 1.5
        return pause


class Polling(_News):
    """News about some jobs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def wait(self) -> set[UUID]:
        """Return when it is time to look at all of them."""
        time.sleep(self._next())
        return set()


class AsyncPolling(_News):
    """The same on a loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    async def wait(self) -> set[UUID]:
        """Return when it is time to look at all of them."""
        await asyncio.sleep(self._next())
        return set()


class SilentBus:
    """No Redis: there is nothing to announce."""

    def announce(self, *_: object) -> None:
        """Do nothing: who waits looks again by itself."""


class SilentAsyncBus:
    """The same on a loop."""

    async def announce(self, *_: object) -> None:
        """Do nothing: who waits looks again by itself."""


class _Remote(Generic[D]):
    """What both kinds of client hold."""

    tenant: None = None
    """The key says which."""

    def __init__(self, settings: ClientSettings, database: D) -> None:
        self._pid = os.getpid()
        self._database = database
        self.client = settings.client_name
        self.poll_s = settings.poll_interval.total_seconds()
        self.backlog = Backlog({})
        self.store = RemoteStore(database)
        self.transitions = RemoteTransitions(database)
        self.accounts = RemoteAccounts(database)
        self.endpoints = RemoteEndpoints(database)
        self.deliveries = RemoteDeliveries(database)
        self.purging = RemotePurging(database)
        self.dead = _Missing("dead parts")
        self.trail = _Missing("the audit trail")
        self.payloads = _Missing("the payload store")

    @property
    def are_inherited(self) -> bool:
        """Whether this process was forked from the one that opened them."""
        return os.getpid() != self._pid

    def remove(self, payload: str) -> Any:
        """Do nothing: the gateway removes documents."""


class RemoteConnections(_Remote[HttpDatabase]):
    """What takes the place of `pecia.connections.Connections`."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings, HttpDatabase(settings))
        self.bus = SilentBus()

    def prepared(self, items: Sequence[Item], asked: Options) -> Callable[[], Outcomes]:
        """Submit tasks, and return what returns their outcomes."""
        outcomes: Outcomes = self.store.submit(items, asked)
        return lambda: outcomes

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> Polling:
        """Return when to look again."""
        return Polling(self.poll_s, deadline)

    def publish(self, messages: Sequence[Any]) -> None:
        """Do nothing: the gateway has handed them over."""

    def close(self) -> None:
        """Close what is this process's own."""
        if not self.are_inherited:
            self._database.close()


class AsyncRemoteConnections(_Remote[AsyncHttpDatabase]):
    """The same for an asynchronous client, for the running loop."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings, AsyncHttpDatabase(settings))
        self.bus = SilentAsyncBus()

    async def prepared(
        self, items: Sequence[Item], asked: Options
    ) -> Callable[[], Coroutine[Any, Any, Outcomes]]:
        """Submit tasks, and return what returns their outcomes."""
        outcomes: Outcomes = await self.store.submit(items, asked)

        async def settled() -> Outcomes:
            return outcomes

        return settled

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> AsyncPolling:
        """Return when to look again."""
        return AsyncPolling(self.poll_s, deadline)

    async def publish(self, messages: Sequence[Any]) -> None:
        """Do nothing: the gateway has handed them over."""

    async def close(self) -> None:
        """Close all connections."""
        await self._database.close()
