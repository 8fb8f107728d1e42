"""Redis as a worker's loop uses it: tells that jobs moved, hears that jobs were cancelled, publishes new parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from pecia_schemas import JobState
from pecia_schemas.messages import CANCEL_CHANNEL, PartMessage, enqueue, job_channel
from pecia_workers.broker.connection import HEALTH_CHECK_S, SOCKET_TIMEOUT_S

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_REST_S = 5.0
"""How long a Redis that failed is told nothing: commits do not wait for it again and again."""
_NOTHING = "pecia:nothing"
"""A key that is never there."""


class Bus:
    """A best effort on top of Postgres: who misses an announcement looks there. Ids, states and costs only."""

    def __init__(self, redis_url: str) -> None:
        self._redis: Redis = Redis.from_url(
            redis_url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            health_check_interval=HEALTH_CHECK_S,
        )
        self._rests_until = 0.0

    async def tell(self, jobs: Mapping[UUID, JobState]) -> None:
        """Announce each job's state to whoever waits for it. Never raises for want of Redis."""
        if not jobs or monotonic() < self._rests_until:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id, state in jobs.items():
                    pipe.publish(job_channel(job_id), state)
                await pipe.execute()
        except (RedisError, OSError):
            self._rests_until = monotonic() + _REST_S

    async def answers(self) -> bool:
        """Return whether Redis does. Takes seconds if it hangs."""
        with suppress(RedisError, OSError):
            await self._redis.get(_NOTHING)
            return True
        return False

    async def publish(self, messages: Iterable[PartMessage]) -> None:
        """Queue the messages for whoever serves their stage. Raises `redis.RedisError`."""
        async with self._redis.pipeline(transaction=False) as pipe:
            enqueue(pipe, messages)
            await pipe.execute()

    async def hear_cancelled(self, cancelled: Callable[[UUID], None]) -> None:
        """Call `cancelled` with the id of every job that is cancelled, until this is itself cancelled."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(CANCEL_CHANNEL)
                    await _pass_on(pubsub, cancelled)
            except Exception as error:  # noqa: BLE001  a deaf worker would finish what nobody wants
                log.debug("cancellations_unheard", error=type(error).__name__)
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Give the connections back."""
        await self._redis.aclose()


async def _pass_on(pubsub: PubSub, cancelled: Callable[[UUID], None]) -> None:
    while True:
        message = await pubsub.get_message(timeout=SOCKET_TIMEOUT_S - 1)
        if message is None:
            await pubsub.ping()  # a half-open connection fails here
            continue
        if message["type"] == "message":
            with suppress(ValueError):
                cancelled(UUID(message["data"].decode()))
