"""Redis as the clients of a fake fleet see it: announcements within the process, and nothing while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol, cast
from uuid import UUID

from redis.asyncio.client import PubSub as AsyncPubSub
from redis.client import PubSub

from pecia.aio.publishing import AsyncBus
from pecia.publishing import Bus
from pecia.testing.memory import Memory
from pecia_schemas.messages import WINDOW, PartMessage, job_channel
from pecia_schemas.states import JobState

Message = dict[str, Any]


class Listener(Protocol):
    """Who waits for announcements."""

    channels: set[str]

    def hear(self, message: Message) -> None:
        """Take in a message, from any thread."""
        ...


class Switchboard:
    """Who listens to what."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._lock = Lock()

    def announce(self, job_id: UUID, state: JobState) -> None:
        """Tell everybody who listens for this job."""
        channel = job_channel(job_id)
        with self._lock:
            for listener in self._listeners:
                if channel in listener.channels:
                    listener.hear({"type": "message", "channel": channel, "data": str(state)})

    def connect(self, listener: Listener, channels: Collection[str]) -> None:
        """Subscribe a listener to these channels, each of which is confirmed."""
        with self._lock:
            listener.channels.update(channels)
            self._listeners.append(listener)
            for channel in channels:
                listener.hear({"type": "subscribe", "channel": channel, "data": None})

    def drop(self, listener: Listener) -> None:
        """Note that a listener is gone."""
        with self._lock, suppress(ValueError):  # who never subscribed
            self._listeners.remove(listener)


class MemoryPubSub:
    """What a client asks of a `redis.client.PubSub`."""

    def __init__(self, switchboard: Switchboard) -> None:
        self.channels: set[str] = set()
        self._switchboard = switchboard
        self._heard: SimpleQueue[Message] = SimpleQueue()

    def subscribe(self, *channels: str) -> None:
        """Listen to these channels."""
        self._switchboard.connect(self, channels)

    def hear(self, message: Message) -> None:
        """Take in a message."""
        self._heard.put(message)

    def get_message(self, timeout: float = 0.0) -> Message | None:
        """Return the next message; None if none comes within so many seconds."""
        try:
            return self._heard.get(block=timeout > 0, timeout=timeout or None)
        except Empty:
            return None

    def close(self) -> None:
        """Hang up."""
        self._switchboard.drop(self)


class AsyncMemoryPubSub:
    """What an asynchronous client asks of a `redis.asyncio.client.PubSub`."""

    def __init__(self, switchboard: Switchboard) -> None:
        self.channels: set[str] = set()
        self._switchboard = switchboard
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[Message] = asyncio.Queue()

    async def subscribe(self, *channels: str) -> None:
        """Listen to these channels."""
        self._switchboard.connect(self, channels)

    def hear(self, message: Message) -> None:
        """Take in a message."""
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(self._heard.put_nowait, message)

    async def get_message(self, timeout: float = 0.0) -> Message | None:  # noqa: ASYNC109  redis-py's name
        """Return the next message; None if none comes within so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._heard.get()
        except TimeoutError:
            return None

    async def aclose(self) -> None:
        """Hang up."""
        self._switchboard.drop(self)


class MemoryBus(Bus):
    """Announcements go out and come in; parts need no queue, for the fleet looks into the same memory."""

    def __init__(self, memory: Memory, switchboard: Switchboard) -> None:
        super().__init__("redis://fake", connect_timeout=timedelta(), window=WINDOW)
        self._memory = memory
        self._switchboard = switchboard

    def publish(self, messages: Sequence[PartMessage]) -> Sequence[PartMessage]:
        """Let the fleet begin, if it can: the parts are in the memory."""
        if self._away:
            return messages
        with self._memory.transaction():
            return ()

    def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Notify all that wait for these jobs."""
        if not self._away:
            for job_id in job_ids:
                self._switchboard.announce(job_id, state)

    def subscription(self) -> PubSub | None:
        """Return something to listen on, None while Redis is away."""
        return None if self._away else cast("PubSub", MemoryPubSub(self._switchboard))

    @property
    def _away(self) -> bool:
        return self._memory.lacks("redis")


class AsyncMemoryBus(AsyncBus):
    """The same for an asynchronous client."""

    def __init__(self, bus: MemoryBus, switchboard: Switchboard) -> None:
        super().__init__("redis://fake", connect_timeout=timedelta(), window=WINDOW)
        self._bus = bus
        self._switchboard = switchboard

    async def publish(self, messages: Sequence[PartMessage]) -> Sequence[PartMessage]:
        """Let the fleet begin, if it can."""
        return self._bus.publish(messages)

    async def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Notify all that wait for these jobs."""
        self._bus.announce(job_ids, state)

    def subscription(self) -> AsyncPubSub | None:
        """Return something to listen on, None while Redis is away."""
        return cast("AsyncPubSub", AsyncMemoryPubSub(self._switchboard)) if self._bus.subscription() else None
