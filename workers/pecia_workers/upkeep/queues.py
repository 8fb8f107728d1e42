"""What Redis holds of parts: waiting in the lists, or leased to a worker."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

from redis import Redis

from pecia_workers.broker.leases import LEASED, QUEUES

_MESSAGES_PER_CALL = 5_000


def count_held(redis: Redis) -> int:
    """Return how many messages and leases there are: cheap, and never less than the parts that Redis holds."""
    with redis.pipeline(transaction=False) as pipe:
        for queue in QUEUES:
            pipe.llen(queue)
        pipe.hlen(LEASED)
        return sum(pipe.execute())


def held_parts(redis: Redis) -> set[str]:
    """Return the ids of all parts that wait in a list or are leased.

    Lists come first: what is claimed meanwhile is then found among the leases.
    """
    held = {part for queue in QUEUES for part in _waiting(redis, queue)}
    leased: Any = redis.hkeys(LEASED)
    return held.union(leased)


def without_lease(redis: Redis, parts: Collection[UUID]) -> set[UUID]:
    """Return those of the parts that no worker holds."""
    asked = list(parts)
    if not asked:
        return set()
    leases: Any = redis.hmget(LEASED, [str(part) for part in asked])
    return {part for part, lease in zip(asked, leases, strict=True) if lease is None}


def _waiting(redis: Redis, queue: str) -> Iterator[str]:
    # From the end that producers push to: a part that moves meanwhile is met twice rather than missed.
    start = 0
    while messages := _slice(redis, queue, start):
        for message in messages:
            with suppress(ValueError, KeyError, TypeError):  # the claim sorts such messages out
                yield str(json.loads(message)["part"])
        start += len(messages)


def _slice(redis: Redis, queue: str, start: int) -> list[str]:
    messages: Any = redis.lrange(queue, start, start + _MESSAGES_PER_CALL - 1)
    return list(messages)
