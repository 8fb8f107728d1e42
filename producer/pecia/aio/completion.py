"""Waiting for jobs on a loop: what `pecia.completion` decides, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from redis import RedisError
from redis.asyncio.client import PubSub

from pecia.aio.cancellation import attentive
from pecia.aio.connections import AsyncConnections
from pecia.aio.publishing import AsyncBus
from pecia.completion import CONFIRMATION_S, LOOK_AT, Channels, Deadline, Outage, Pending, batches, in_order
from pecia.errors import DatabaseUnavailableError
from pecia.view import JobView

T = TypeVar("T")


class AsyncAnnouncements:
    """News about some jobs. Redis may be away: then only the polling interval passes."""

    def __init__(
        self, bus: AsyncBus, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline
    ) -> None:
        self._bus = bus
        self._channels = Channels(job_ids)
        self._poll_s = poll_s
        self._deadline = deadline
        self._pubsub: PubSub | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hang_up()

    async def wait(self) -> set[UUID]:
        """Return which jobs were announced; an empty set says: look at all of them.

        The first call subscribes and returns at once, for what happened before was not heard.
        """
        if self._pubsub is None and await self._subscribe():
            return set()
        pause = self._deadline.within(self._poll_s)
        if self._pubsub is None:
            await asyncio.sleep(pause)
            return set()
        return await self._listen(self._pubsub, pause)

    async def _subscribe(self) -> bool:
        self._pubsub = self._bus.subscription()
        if self._pubsub is None:
            return False
        try:
            async with self._bus.connecting:
                await attentive(self._pubsub.subscribe(*self._channels.ask()))
                return await self._confirmed(self._pubsub) or await self._give_up()
        except (RedisError, OSError):
            return await self._give_up()

    async def _confirmed(self, pubsub: PubSub) -> bool:
        patience = Deadline(CONFIRMATION_S)
        while not self._channels.confirmed and (left := patience.within(CONFIRMATION_S)):
            self._channels.confirm(await attentive(pubsub.get_message(timeout=left)))
        return self._channels.confirmed

    async def _listen(self, pubsub: PubSub, pause: float) -> set[UUID]:
        heard: set[UUID] = set()
        try:
            message = await attentive(pubsub.get_message(timeout=pause))
            while message is not None and len(heard) < LOOK_AT:
                heard |= self._channels.announced(message)
                message = await attentive(pubsub.get_message(timeout=0))
        except (RedisError, OSError):
            await self._give_up()
        return heard

    async def _give_up(self) -> bool:
        self._bus.rest()
        await self._hang_up()
        return False

    async def _hang_up(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]


def announcements(
    connections: AsyncConnections, job_ids: Collection[UUID], deadline: Deadline
) -> AsyncAnnouncements:
    """Return the news about these jobs, at the client's own polling interval."""
    return AsyncAnnouncements(connections.bus, job_ids, poll_s=connections.poll_s, deadline=deadline)


async def finished(
    connections: AsyncConnections, job_ids: Sequence[UUID], deadline: Deadline
) -> AsyncGenerator[JobView, None]:
    """Yield each job once it is over, as they finish.

    Raises `JobTimeoutError` at the deadline and `JobNotFoundError` if one of them does not exist.
    """
    pending = Pending(job_ids, deadline)
    async with announcements(connections, job_ids, deadline) as news:
        while pending:
            for view in await outlast(lambda: look(connections, pending.look_at), deadline):
                if pending.settle(view):
                    yield view
            if pending:
                pending.check()
                pending.hear(await news.wait())


async def outlast(look: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
    """Return what it finds, looking again while Postgres restarts, for half a minute or to the deadline.

    Raises `DatabaseUnavailableError` when that is over.
    """
    outage = Outage(deadline)
    while True:
        try:
            return await look()
        except DatabaseUnavailableError:
            if not (pause := outage.pause()):
                raise
            await asyncio.sleep(pause)


async def look(connections: AsyncConnections, job_ids: Sequence[UUID]) -> list[JobView]:
    """Return the jobs as they are now. Raises `JobNotFoundError` if one of them does not exist."""
    return [
        view for batch in batches(job_ids) for view in in_order(batch, await connections.store.views(batch))
    ]
