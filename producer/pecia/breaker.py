"""What keeps a client from waiting for a Redis that is away, and what both kinds say to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from pecia.configuration import no_redis_url
from pecia_schemas import refusals
from pecia_schemas.messages import CANCEL_CHANNEL, job_channel
from pecia_schemas.states import JobState

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

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
