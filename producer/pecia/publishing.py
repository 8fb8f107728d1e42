"""What a client says to Redis and hears from it. None of it can fail a call: Postgres is the truth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from uuid import UUID

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.client import Pipeline, PubSub
from redis.retry import Retry

from pecia.completion import CONFIRMATION_S, LOOK_AT, Channels, Deadline
from pecia.configuration import no_redis_url
from pecia_schemas import refusals
from pecia_schemas.messages import CANCEL_CHANNEL, PartMessage, job_channel, publish
from pecia_schemas.states import JobState

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline as AsyncPipeline

R = TypeVar("R")

log = logging.getLogger(__name__)

_CONNECT_S = 1.0
_SOCKET_S = 5.0
RETRIES = 1
"""Of a command: a pooled connection may have gone stale."""
_REST_S = 5.0
"""How long a Redis that failed is left alone."""


class Breaker:
    """A circuit breaker before Redis: one that failed is left alone for a while, and a refusal is told once."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._rests_until = 0.0
        self._complained = False

    @property
    def resting(self) -> bool:
        """Whether Redis is left alone at this moment."""
        return time.monotonic() < self._rests_until

    def rest(self) -> None:
        """Leave Redis alone for a while: it has just failed."""
        self._rests_until = time.monotonic() + _REST_S

    def failed(self, error: Exception) -> None:
        """Leave Redis alone. Say once if it refuses us: that, unlike an outage, does not mend, and fails no call."""
        self.rest()
        if not self._complained and (refusal := refusals.of_redis(error, self._url)):
            self._complained = True
            log.warning("%s Until then work waits for the fleet's relay.", refusal)


class Bus(Breaker):
    """Redis as a client uses it: part messages go out, announcements come in; both may be missing for a while."""

    def __init__(self, redis_url: str, *, connect_timeout: timedelta, window: int) -> None:
        super().__init__(redis_url)
        self._window = window
        self._redis = open_redis(Redis.from_url, redis_url, connect_timeout, Retry(NoBackoff(), RETRIES))

    def publish(self, messages: Sequence[PartMessage]) -> Sequence[PartMessage]:
        """Queue the messages for the fleet; return those that Redis may not have."""
        left: list[PartMessage] = []
        done = self._try(lambda: left.extend(publish(self._redis, messages, window=self._window)))
        return left if done else messages

    def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Notify all that wait for these jobs, and the workers that run them if they were cancelled."""
        self._try(lambda: self._announce(job_ids, state))

    def _announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            announce(pipe, job_ids, state)
            pipe.execute()

    def _try(self, call: Callable[[], object]) -> bool:
        if self.resting:
            return False
        try:
            call()
        except (RedisError, OSError) as error:
            self.failed(error)
            return False
        return True

    def subscription(self) -> PubSub | None:
        """Return a connection to listen on, None while Redis rests from a failure."""
        if self.resting:
            return None
        pubsub: PubSub = self._redis.pubsub()  # type: ignore[no-untyped-call]
        return pubsub

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()


class Announcements:
    """News about some jobs. Redis may be away: then only the polling interval passes."""

    def __init__(self, bus: Bus, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline) -> None:
        self._bus = bus
        self._channels = Channels(job_ids)
        self._poll_s = poll_s
        self._deadline = deadline
        self._pubsub: PubSub | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    def wait(self) -> set[UUID]:
        """Return which jobs were announced; an empty set says: look at all of them.

        The first call subscribes and returns at once, for what happened before was not heard.
        """
        if self._pubsub is None and self._subscribe():
            return set()
        pause = self._deadline.within(self._poll_s)
        if self._pubsub is None:
            time.sleep(pause)
            return set()
        return self._listen(self._pubsub, pause)

    def _subscribe(self) -> bool:
        self._pubsub = self._bus.subscription()
        if self._pubsub is None:
            return False
        try:
            self._pubsub.subscribe(*self._channels.ask())
            return self._confirmed(self._pubsub) or self._give_up()
        except (RedisError, OSError):
            return self._give_up()

    def _confirmed(self, pubsub: PubSub) -> bool:
        patience = Deadline(CONFIRMATION_S)
        while not self._channels.confirmed and (left := patience.within(CONFIRMATION_S)):
            self._channels.confirm(pubsub.get_message(timeout=left))
        return self._channels.confirmed

    def _listen(self, pubsub: PubSub, pause: float) -> set[UUID]:
        heard: set[UUID] = set()
        try:
            message = pubsub.get_message(timeout=pause)
            while message is not None and len(heard) < LOOK_AT:
                heard |= self._channels.announced(message)
                message = pubsub.get_message(timeout=0)
        except (RedisError, OSError):
            self._give_up()
        return heard

    def _give_up(self) -> bool:
        self._bus.rest()
        self._hang_up()
        return False

    def _hang_up(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(RedisError, OSError):
                pubsub.close()


def announce(pipe: Pipeline | AsyncPipeline, job_ids: Collection[UUID], state: JobState) -> None:
    """Put on a pipeline what tells of jobs that they are in this state now."""
    for job_id in job_ids:
        if state is JobState.CANCELLED:
            pipe.publish(CANCEL_CHANNEL, str(job_id))
        pipe.publish(job_channel(job_id), state)


def open_redis(create: Callable[..., R], redis_url: str, connect_timeout: timedelta, retry: object) -> R:
    """Return a Redis as a client wants it, made by redis-py's `Redis.from_url` or its asynchronous twin."""
    try:
        return create(
            redis_url,
            decode_responses=True,
            encoding_errors="replace",  # a publisher can send what is no text
            socket_connect_timeout=min(_CONNECT_S, connect_timeout.total_seconds()),
            socket_timeout=_SOCKET_S,
            retry=retry,
        )
    except ValueError:
        raise no_redis_url() from None
