"""What a client says to Redis. Nothing here can fail a call: Postgres is the truth, and the relay catches up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.client import Pipeline, PubSub
from redis.retry import Retry

from pecia.errors import InvalidSettingError
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

    def __init__(self, redis_url: str, *, connect_timeout: timedelta) -> None:
        super().__init__(redis_url)
        self._redis = open_redis(Redis.from_url, redis_url, connect_timeout, Retry(NoBackoff(), RETRIES))

    def publish(self, messages: Iterable[PartMessage]) -> bool:
        """Queue the messages for the fleet; return whether Redis has them for certain."""
        return self._try(lambda: publish(self._redis, messages))

    def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Tell whoever waits for these jobs, and the workers that run them if they were cancelled."""
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
            encoding_errors="replace",  # whoever can publish can say what is no text
            socket_connect_timeout=min(_CONNECT_S, connect_timeout.total_seconds()),
            socket_timeout=_SOCKET_S,
            retry=retry,
        )
    except ValueError:
        raise InvalidSettingError(
            "PECIA_REDIS_URL is no URL of a Redis: it reads redis://, rediss:// or unix://."
        ) from None
