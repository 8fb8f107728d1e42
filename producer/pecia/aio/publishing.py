"""Messages of a client to Redis, and announcements from it. Redis failures fail no call: Postgres is the truth."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub

from pecia.aio.waiting import Semaphore, attentive, sleep
from pecia.configuration import no_redis_url
from pecia.waiting import CONFIRMATION_S, LOOK_AT, Breaker, Channels, Deadline
from pecia_schemas.messages import CANCEL_CHANNEL, PartMessage, enqueue, job_channel, refused
from pecia_schemas.redis_connections import connect_async
from pecia_schemas.states import JobState

_CONNECT_S = 1.0
_CONNECTIONS = 10_000
"""Maximum number of connections: each wait holds one, and the library's own limit is 100."""
_CONNECTING = 10
"""Subscriptions that connect at a time. Among hundreds at once, each would time out waiting for the others."""


class AsyncPublisher(Breaker):
    """Redis for a client: part messages go out, announcements come in. Either may fail for a while."""

    def __init__(self, locate: Callable[[], str], *, connect_timeout: timedelta, window: int) -> None:
        """`locate` returns the URL; it is called again after each failure."""
        super().__init__(locate)
        self._window = window
        self._connect_s = min(_CONNECT_S, connect_timeout.total_seconds())
        self.connecting = Semaphore(_CONNECTING)
        """Held while a subscription connects."""
        self.redis = self._opened()

    def _opened(self) -> Redis:
        try:
            return connect_async(
                self.url,
                connect_timeout_s=self._connect_s,
                max_connections=_CONNECTIONS,
                decode_responses=True,
            )
        except ValueError:
            raise no_redis_url() from None

    async def reach(self) -> Redis | None:
        """Return the connection to the current Redis, or None during the pause after a failure."""
        if self.resting:
            return None
        if self.has_moved():
            former, self.redis = self.redis, self._opened()
            await former.aclose()
        return self.redis

    async def publish(self, messages: Sequence[PartMessage]) -> Sequence[PartMessage]:
        """Queue the messages for the fleet; return those that Redis may not have."""
        packed: list[list[PartMessage]] = []
        replies = await self._send(lambda pipe: packed.extend(enqueue(pipe, messages, window=self._window)))
        return messages if replies is None else refused(packed, replies)

    async def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Notify all clients that wait for these jobs, and, of cancelled jobs, the workers that run them."""

        def fill(pipe: Pipeline) -> None:
            for job_id in job_ids:
                if state is JobState.CANCELLED:
                    pipe.publish(CANCEL_CHANNEL, str(job_id))
                pipe.publish(job_channel(job_id), state)

        await self._send(fill)

    async def _send(self, fill: Callable[[Pipeline], None]) -> list[Any] | None:
        """Return the replies to the commands that `fill` adds to a pipeline, or None if Redis is unavailable."""
        if (redis := await self.reach()) is None:
            return None
        try:
            async with redis.pipeline(transaction=False) as pipe:
                fill(pipe)
                replies: list[Any] = await attentive(pipe.execute())
        except (RedisError, OSError) as error:
            self.failed(error)
            return None
        return replies

    async def close(self) -> None:
        """Close all connections."""
        await self.redis.aclose()


class AsyncAnnouncements:
    """Announcements about some jobs. If Redis is unavailable, only the polling interval passes."""

    def __init__(
        self, bus: AsyncPublisher, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline
    ) -> None:
        self._bus = bus
        self._channels = Channels(job_ids)
        self._poll_s = poll_s
        self._deadline = deadline
        self._pubsub: PubSub | None = None

    async def wait(self) -> set[UUID]:
        """Return the announced jobs; an empty set means that the caller must check all of them.

        The first call subscribes and returns at once, because earlier announcements were missed.
        """
        heard: set[UUID] = set()
        if self._pubsub is None and await self._subscribe():
            return heard
        pause = self._deadline.within(self._poll_s)
        if (pubsub := self._pubsub) is None:
            await sleep(pause)
            return heard
        try:
            message = await attentive(pubsub.get_message(timeout=pause))
            while message is not None and len(heard) < LOOK_AT:
                heard |= self._channels.announced(message)
                message = await attentive(pubsub.get_message(timeout=0))
        except (RedisError, OSError):
            await self._give_up()
        return heard

    async def _subscribe(self) -> bool:
        if (redis := await self._bus.reach()) is None:
            return False
        pubsub: PubSub = redis.pubsub()
        self._pubsub = pubsub
        try:
            async with self._bus.connecting:
                await attentive(pubsub.subscribe(*self._channels.reset()))
                deadline = Deadline(CONFIRMATION_S)
                while not self._channels.confirmed and (left := deadline.within(CONFIRMATION_S)):
                    self._channels.confirm(await attentive(pubsub.get_message(timeout=left)))
                return self._channels.confirmed or await self._give_up()
        except (RedisError, OSError):
            return await self._give_up()

    async def _give_up(self) -> bool:
        self._bus.rest()
        await self.aclose()
        return False

    async def aclose(self) -> None:
        """End the subscription."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(RedisError, OSError):
                await pubsub.aclose()
