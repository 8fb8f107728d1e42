"""Announcements about jobs for all waits of a process, through one subscription, so that a wait needs no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any
from uuid import UUID

from redis import RedisError
from redis.asyncio.client import PubSub

from pecia.aio.connections import AsyncConnections, AsyncPublisher
from pecia.errors import SubmitError
from pecia.gateway.openai.statements import Requests, check_open
from pecia.handles import Accepted
from pecia.store import Connection
from pecia.submission import NewJob
from pecia.waiting import CONFIRMATION_S, Deadline
from pecia_schemas.messages import job_channel
from pecia_schemas.redis_connections import HEALTH_CHECK_S
from pecia_schemas.settings import ClientSettings
from pecia_schemas.threads import end


class Subscription:
    """One subscription to the channels of all jobs that are waited for; it exists while any wait does.

    Only one task uses its connection: a second one that subscribes would read replies for the first.
    """

    def __init__(self, bus: AsyncPublisher) -> None:
        self.bus = bus
        self._waits: dict[str, set[SharedAnnouncements]] = {}
        self._confirmed: set[str] = set()
        self._running: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[dict[str, Any] | None] | None = None

    async def add(self, wait: SharedAnnouncements) -> bool:
        """Add a wait's channels; return whether later announcements will reach it."""
        for channel in wait.channels:
            self._waits.setdefault(channel, set()).add(wait)
        self._interrupt()
        self._running = self._running or asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(CONFIRMATION_S):
                while not self._confirmed.issuperset(wait.channels):
                    if not await wait.noticed():
                        return False
        except TimeoutError:
            await self.close()
            return False
        return True

    def remove(self, wait: SharedAnnouncements) -> None:
        """Remove a wait."""
        for channel in wait.channels:
            if waits := self._waits.get(channel):
                waits.discard(wait)
                if not waits:
                    del self._waits[channel]
        self._interrupt()

    async def close(self) -> None:
        """End the subscription. All waits poll until they are added again."""
        if self._running is not None:
            await end(self._running)

    def _interrupt(self) -> None:
        """Make the task subscribe to the current channels."""
        if self._reading is not None:
            self._reading.cancel()

    async def _run(self) -> None:
        try:
            if (redis := await self.bus.reach()) is not None:
                await self._follow(redis.pubsub())
        except (RedisError, OSError):
            pass
        finally:
            self._running = None
            if lost := {wait for waits in self._waits.values() for wait in waits}:
                self.bus.rest()
            self._waits, self._confirmed = {}, set()
            for wait in lost:
                wait.lose()

    async def _follow(self, pubsub: PubSub) -> None:
        """Subscribe to the channels of the waits and dispatch messages, until no wait is left."""
        subscribed: set[str] = set()
        try:
            while self._waits:
                former, subscribed = subscribed, set(self._waits)
                self._confirmed &= subscribed
                if new := subscribed - former:
                    await pubsub.subscribe(*new)
                if over := former - subscribed:
                    await pubsub.unsubscribe(*over)
                if subscribed == self._waits.keys():
                    self._take(await self._next(pubsub))
        finally:
            with suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _next(self, pubsub: PubSub) -> dict[str, Any] | None:
        """Return the next message, or None to check the connection or after the waits have changed."""
        self._reading = reading = asyncio.ensure_future(pubsub.get_message(timeout=HEALTH_CHECK_S))
        try:
            await asyncio.wait([reading])
        finally:
            self._reading = None
            await end(reading)
        return None if reading.cancelled() else reading.result()

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None or message["type"] not in ("subscribe", "message"):
            return
        channel = message["channel"]
        is_news = message["type"] == "message"
        if not is_news and channel in self._waits:
            self._confirmed.add(channel)
        for wait in self._waits.get(channel, ()):
            wait.hear(channel if is_news else None)


class SharedAnnouncements:
    """Announcements about some jobs through the subscription of the process; counterpart of `AsyncAnnouncements`."""

    def __init__(
        self, subscription: Subscription, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline
    ) -> None:
        self.channels = {job_channel(job_id): job_id for job_id in job_ids}
        self._subscription, self._poll_s, self._deadline = subscription, poll_s, deadline
        self._heard: set[UUID] = set()
        self._news = asyncio.Event()
        self._added = False

    async def wait(self) -> set[UUID]:
        """Return the announced jobs; an empty set means that the caller must check all of them.

        The first call subscribes and returns at once, because earlier announcements were missed.
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
        """Wait until a channel is confirmed; return whether this wait is still subscribed."""
        await self._news.wait()
        self._news.clear()
        return self._added

    def hear(self, channel: str | None) -> None:
        """Record an announcement. None means that a channel was subscribed, perhaps again: messages may be missing."""
        if channel is not None:
            self._heard.add(self.channels[channel])
        self._news.set()

    def lose(self) -> None:
        """Record that the subscription is lost."""
        self._added = False
        self._heard.clear()
        self._news.set()

    async def aclose(self) -> None:
        """Leave the subscription."""
        if self._added:
            self._added = False
            self._subscription.remove(self)


class GatewayConnections(AsyncConnections):
    """The stores of a fleet, shared by all keys of a gateway."""

    lines_of: UUID | None = None
    """Batch of OpenAI requests whose lines these connections submit; refused once that batch has ended."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._subscription = Subscription(self.bus)

    def _name(self, client: str, tenant: str | None) -> None:
        super()._name(client, tenant)
        self.requests = Requests(*self._asks)

    def _accepting(self, new: Sequence[NewJob]) -> Callable[[Connection], list[Accepted | SubmitError]]:
        accept = super()._accepting(new)
        if (held_id := self.lines_of) is None:
            return accept

        def accept_lines(connection: Connection) -> list[Accepted | SubmitError]:
            check_open(connection, held_id)
            return accept(connection)

        return accept_lines

    def announcements(
        self, job_ids: Collection[UUID], deadline: Deadline
    ) -> AbstractAsyncContextManager[Any]:
        """Return announcements about these jobs."""
        return aclosing(
            SharedAnnouncements(self._subscription, job_ids, poll_s=self.poll_s, deadline=deadline)
        )

    async def close(self) -> None:
        """Close the subscription, then the stores."""
        await self._subscription.close()
        await super().close()
