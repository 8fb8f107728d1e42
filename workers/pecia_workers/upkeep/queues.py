"""What Redis holds of parts: waiting in the lists, or leased to a worker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.resources import files
from typing import Any
from uuid import UUID

from redis import Redis

from pecia_schemas.messages import BELL_TTL_MS, bell_name, marker, rest_name
from pecia_workers.broker.leases import LEASED, QUARANTINES, QUEUES

_LISTS = (*QUEUES, *QUARANTINES)
_MESSAGES_PER_CALL = 5_000
_KEYS_PER_CALL = 1_000
_MEND = files("pecia_workers.upkeep").joinpath("mend.lua").read_text(encoding="utf-8")


def count_waiting(redis: Redis) -> dict[str, int]:
    """Return how many messages wait in the list of each stage and lane, and in each quarantine."""
    rests = list(_rests(redis))
    with redis.pipeline(transaction=False) as pipe:
        for queue in (*_LISTS, *(rest_name(*rest) for rest in rests)):
            pipe.llen(queue)
        lengths = pipe.execute()
    counts = dict(zip(_LISTS, lengths, strict=False))
    for (queue, _), length in zip(rests, lengths[len(_LISTS) :], strict=True):
        counts[queue] += length - 1  # its marker was counted too
    return counts


def count_leased(redis: Redis) -> Counter[str]:
    """Return how many parts that were taken from each list are leased."""
    held: Any = redis.hvals(LEASED)
    return Counter(lease.partition("\n")[0] for lease in held)


def count_held(redis: Redis) -> int:
    """Return how many messages and leases there are: cheap, and as a rule no less than the parts that Redis holds."""
    waiting = sum(count_waiting(redis).values())
    leased: Any = redis.hlen(LEASED)
    return waiting + int(leased)


def held_parts(redis: Redis) -> set[str]:
    """Return the ids of all parts that wait in a list or are leased.

    In the order in which they move, so that none is missed: behind a turn, in a list, leased.
    """
    rests = [rest_name(*rest) for rest in _rests(redis)]
    held = {part for queue in (*rests, *_LISTS) for part in _waiting(redis, queue)}
    leased: Any = redis.hkeys(LEASED)
    return held.union(leased)


def mend_turns(redis: Redis) -> int:
    """Set the marker of every flow for which messages wait and none stands in the list; return how many were missing.

    Nothing but a hand in Redis can make that so; but then nobody else would find them.
    """
    mended = 0
    for queue, flow in _rests(redis):
        keys = (queue, rest_name(queue, flow), bell_name(QUEUES[queue][0]))
        missing: Any = redis.eval(_MEND, len(keys), *keys, marker(flow), str(BELL_TTL_MS))
        mended += missing
    return mended


def without_lease(redis: Redis, parts: Collection[UUID]) -> set[UUID]:
    """Return those of the parts that no worker holds."""
    asked = list(parts)
    if not asked:
        return set()
    leases: Any = redis.hmget(LEASED, [str(part) for part in asked])
    return {part for part, lease in zip(asked, leases, strict=True) if lease is None}


def _rests(redis: Redis) -> Iterator[tuple[str, str]]:
    """Yield list and flow of what waits behind a turn. Looks through the keys, which are few: parts have none."""
    found: Any = redis.scan_iter("*.*:*", count=_KEYS_PER_CALL, _type="list")
    for name in set(found):
        queue, _, flow = name.partition(":")
        if queue in QUEUES:
            yield queue, flow


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
