"""Counts of keys shared by all processes of a gateway, through Redis. Without Redis each process counts alone.

Redis counts requests. Each process announces its own waits and bytes in transfer by Pub/Sub.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from pecia.aio.connections import AsyncPublisher
from pecia_schemas.threads import end

log = logging.getLogger(__name__)

CHANNEL: Final = "pecia:gateway"
_EVERY_S: Final = 1.0
_STALE_S: Final = 3.5
"""Age after which a process's announcement is dropped."""
_RETRY_S: Final = 30.0
_MOST_PROCESSES: Final = 256
_PATIENCE_S: Final = 1.0
"""Time that a request waits for its count."""


class Taken(NamedTuple):
    """Resources that a key uses."""

    waits: int = 0
    uploading: int = 0
    """Bytes of request bodies with documents."""


class SharedRate:
    """Limits a key's requests over all processes together. After a failure Redis is not used for a while."""

    def __init__(self, bus: AsyncPublisher, rate: float) -> None:
        self._bus = bus
        window = max(2, math.ceil(1 / rate))
        self._limit = RateLimitItemPerSecond(max(1, round(window * rate)), window, namespace="rate")
        self._redis: Redis | None = None
        self._rests_until = 0.0

    async def take(self, key: UUID) -> bool:
        """Count a request; return whether it is allowed. If Redis does not answer, every request is."""
        if time.monotonic() < self._rests_until or (redis := await self._bus.reach()) is None:
            return True
        if redis is not self._redis:
            self._redis = redis
            pool: Any = redis.connection_pool  # this pool verifies servers and follows failovers
            self._limiter = FixedWindowRateLimiter(
                RedisStorage("redis://", implementation="redispy", key_prefix=CHANNEL, connection_pool=pool)
            )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._limiter.hit(self._limit, str(key))
        except (RedisError, OSError, TimeoutError):
            self._rests_until = time.monotonic() + _RETRY_S
            return True


class SharedCounts:
    """Announces this process's counts, and receives those of the others."""

    def __init__(self, bus: AsyncPublisher, count: Callable[[], Mapping[UUID, Taken]]) -> None:
        self._bus, self._count = bus, count
        self._name = str(uuid4())
        self._heard: dict[str, tuple[float, dict[str, Taken]]] = {}
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    def elsewhere(self, key: UUID) -> Taken:
        """Return the resources that a key uses at other processes, by their recent announcements."""
        fresh = time.monotonic() - _STALE_S
        known = [counts[str(key)] for at, counts in self._heard.values() if at > fresh and str(key) in counts]
        return Taken(*(sum(numbers) for numbers in zip(*known, strict=True))) if known else Taken()

    def start(self) -> None:
        """Begin to announce and to receive."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop announcing and receiving."""
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while True:
            pubsub: PubSub = self._bus.redis.pubsub()
            try:
                await pubsub.subscribe(CHANNEL)
                while True:
                    await self._announce()
                    await self._hear(pubsub)
            except (RedisError, OSError) as error:
                if not self._complained:
                    self._complained = True
                    log.warning(
                        "The gateway cannot share its counts by Redis (%s): each process limits keys by itself. Check "
                        "that Redis runs, and that its account may use the channel %s.",
                        type(error).__name__,
                        CHANNEL,
                    )
            finally:
                with suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(_RETRY_S)

    async def _announce(self) -> None:
        counts = {str(key): taken for key, taken in self._count().items()}
        await self._bus.redis.publish(CHANNEL, json.dumps({"process": self._name, "counts": counts}))

    async def _hear(self, pubsub: PubSub) -> None:
        """Receive announcements for a second."""
        until = time.monotonic() + _EVERY_S
        while (remaining := until - time.monotonic()) > 0:
            message: dict[str, Any] | None = await pubsub.get_message(
                ignore_subscribe_messages=True, timeout=remaining
            )
            if message is not None:
                self._take(message["data"])

    def _take(self, data: str) -> None:
        """Store another process's announcement. Invalid messages are ignored."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            said = json.loads(data)
            name = str(said["process"])
            counts = {
                str(key): Taken(*(max(0, int(number)) for number in taken))
                for key, taken in said["counts"].items()
            }
            now = time.monotonic()
            for gone in [other for other, (at, _) in self._heard.items() if at < now - _STALE_S]:
                del self._heard[gone]
            if name != self._name and len(self._heard) < _MOST_PROCESSES:
                self._heard[name] = now, counts
