"""What an asynchronous client says to Redis, and never fails by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from uuid import UUID

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pecia.aio.cancellation import attentive
from pecia.publishing import RETRIES, Breaker, announce, open_redis
from pecia_schemas.messages import PartMessage, enqueue
from pecia_schemas.states import JobState

_CONNECTING = 10
"""Subscriptions that connect at a time: among hundreds at once, each would wait for the others until it times out."""


class AsyncBus(Breaker):
    """Redis as a client uses it: part messages go out, announcements come in; both may be missing for a while."""

    def __init__(self, redis_url: str, *, connect_timeout: timedelta) -> None:
        super().__init__(redis_url)
        self.connecting = asyncio.Semaphore(_CONNECTING)
        """To be held while a subscription connects."""
        retry = Retry(NoBackoff(), RETRIES)
        self._redis = open_redis(Redis.from_url, redis_url, connect_timeout, retry)

    async def publish(self, messages: Iterable[PartMessage]) -> bool:
        """Queue the messages for the fleet; return whether Redis has them for certain."""
        return await self._send(lambda pipe: enqueue(pipe, messages))

    async def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Tell whoever waits for these jobs, and the workers that run them if they were cancelled."""
        await self._send(lambda pipe: announce(pipe, job_ids, state))

    async def _send(self, fill: Callable[[Pipeline], None]) -> bool:
        if self.resting:
            return False
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                fill(pipe)
                await attentive(pipe.execute())
        except (RedisError, OSError) as error:
            self.failed(error)
            return False
        return True

    def subscription(self) -> PubSub | None:
        """Return a connection to listen on, None while Redis rests from a failure."""
        if self.resting:
            return None
        pubsub: PubSub = self._redis.pubsub()
        return pubsub

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()
