"""News about jobs for all waits of a process, by one subscription: waits take no connections to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any
from uuid import UUID

from redis import RedisError
from redis.asyncio.client import PubSub

from pecia.aio.connections import AsyncConnections
from pecia.aio.publishing import AsyncPublisher
from pecia.gateway.openai.statements import Requests
from pecia.waiting import CONFIRMATION_S, Deadline
from pecia_schemas.messages import job_channel
from pecia_schemas.settings import ClientSettings
from pecia_schemas.threads import end


class Subscription:
    """One subscription to the channels of all jobs that something waits for."""

    def __init__(self, bus: AsyncPublisher) -> None:
        self.bus = bus
        self._waits: dict[str, set[SharedAnnouncements]] = {}
        self._confirmed: set[str] = set()
        self._commands = asyncio.Lock()
        self._pubsub: PubSub | None = None
        self._reading: asyncio.Task[None] | None = None

    async def add(self, wait: SharedAnnouncements) -> bool:
        """Let a wait hear of its jobs; return whether later announcements will be heard."""
        try:
            if (redis := await self.bus.reach()) is None:
                return False
            async with asyncio.timeout(CONFIRMATION_S):
                async with self._commands:
                    new = [channel for channel in wait.channels if channel not in self._waits]
                    for channel in wait.channels:
                        self._waits.setdefault(channel, set()).add(wait)
                    self._pubsub = self._pubsub or redis.pubsub()
                    if new:
                        await self._pubsub.subscribe(*new)
                    if self._reading is None or self._reading.done():
                        self._reading = asyncio.create_task(self._read(self._pubsub))
                while not self._confirmed.issuperset(wait.channels):
                    if not await wait.noticed():
                        return False
        except (RedisError, OSError, TimeoutError):
            await self._give_up()
            return False
        return True

    async def remove(self, wait: SharedAnnouncements) -> None:
        """Let a wait hear no more."""
        async with self._commands:
            over = []
            for channel in wait.channels:
                waits = self._waits.get(channel, set())
                waits.discard(wait)
                if not waits and self._waits.pop(channel, None) is not None:
                    over.append(channel)
            self._confirmed.difference_update(over)
            if over and self._pubsub is not None:
                with suppress(RedisError, OSError):
                    await self._pubsub.unsubscribe(*over)

    async def close(self) -> None:
        """Subscribe to nothing any more."""
        reading, self._reading = self._reading, None
        if reading is not None:
            await end(reading)
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _read(self, pubsub: PubSub) -> None:
        try:
            while True:
                self._take(await pubsub.get_message(timeout=None))
        except (RedisError, OSError):
            self._reading = None
            await self._give_up()

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None or message["type"] not in ("subscribe", "message"):
            return
        channel = message["channel"]
        is_news = message["type"] == "message"
        if not is_news and channel in self._waits:
            self._confirmed.add(channel)
        for wait in self._waits.get(channel, ()):
            wait.hear(channel if is_news else None)

    async def _give_up(self) -> None:
        """Leave Redis alone for a while; all waits look by themselves until they are added again."""
        self.bus.rest()
        lost = {wait for waits in self._waits.values() for wait in waits}
        self._waits, self._confirmed = {}, set()
        for wait in lost:
            wait.lose()
        await self.close()


class SharedAnnouncements:
    """News about some jobs, as `AsyncAnnouncements` has them, by the subscription of the process."""

    def __init__(
        self, subscription: Subscription, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline
    ) -> None:
        self.channels = {job_channel(job_id): job_id for job_id in job_ids}
        self._subscription, self._poll_s, self._deadline = subscription, poll_s, deadline
        self._heard: set[UUID] = set()
        self._news = asyncio.Event()
        self._added = False

    async def wait(self) -> set[UUID]:
        """Return which jobs were announced; an empty set says: look at all of them.

        The first call subscribes and returns at once, for what happened before was not heard.
        """
        if not self._added and not self._subscription.bus.resting:
            self._added = True
            self._added = await self._subscription.add(self)
            if self._added:
                return set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deadline.within(self._poll_s)):
                await self._news.wait()
        self._news.clear()
        heard, self._heard = self._heard, set()
        return heard

    async def noticed(self) -> bool:
        """Return once a channel is confirmed; whether the subscription still has this wait."""
        await self._news.wait()
        self._news.clear()
        return self._added

    def hear(self, channel: str | None) -> None:
        """Take in news; None: that a channel is subscribed to, again perhaps, so that some was not heard."""
        if channel is not None:
            self._heard.add(self.channels[channel])
        self._news.set()

    def lose(self) -> None:
        """Note that nothing is heard any more."""
        self._added = False
        self._heard.clear()
        self._news.set()

    async def aclose(self) -> None:
        """Wait for nothing any more."""
        if self._added:
            self._added = False
            await self._subscription.remove(self)


class GatewayConnections(AsyncConnections):
    """The stores of a fleet as all keys of a gateway share them."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._subscription = Subscription(self.bus)

    def _name(self, client: str, tenant: str | None) -> None:
        super()._name(client, tenant)
        self.requests = Requests(*self._asks)

    def announcements(
        self, job_ids: Collection[UUID], deadline: Deadline
    ) -> AbstractAsyncContextManager[Any]:
        """Return the news about these jobs."""
        return aclosing(
            SharedAnnouncements(self._subscription, job_ids, poll_s=self.poll_s, deadline=deadline)
        )

    async def close(self) -> None:
        """Close the subscription too."""
        await self._subscription.close()
        await super().close()
