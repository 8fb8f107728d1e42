"""Parts in Redis: claimed, renewed, acknowledged, given back and reaped, each in one atomic script.

Keys, beside the lists `<stage>.<lane>` and the bells of `pecia_schemas.messages`:

    pecia:leases      sorted set: part, time of its last renewal by the clock of Redis
    pecia:leased      hash: part, its list and message
    pecia:owners      hash: part, the process that holds it
    pecia:deliveries  hash: part, deliveries that ended because the lease ran out
    pecia:again       hash: part, its list and the message that came while it was leased
    pecia:dead        list: the last thousand messages that were none
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pecia_schemas import Lane, Stage
from pecia_schemas.messages import BELL_TTL_MS, bell_name, queue_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from redis import Redis

QUEUES: dict[str, tuple[Stage, Lane]] = {
    queue_name(stage, lane): (stage, lane) for lane in Lane for stage in Stage
}
"""Every list there is, in the order in which they are served."""

AGAIN = "pecia:again"
DEAD = "pecia:dead"
DELIVERIES = "pecia:deliveries"
LEASED = "pecia:leased"
LEASES = "pecia:leases"
OWNERS = "pecia:owners"

_BELL_PREFIX = "pecia:bell:"
_PARTS_PER_CALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """One part that this process holds now."""

    part: str
    stage: Stage
    lane: Lane
    cost: int
    delivery: int
    """1, and one more for every lease on it that ran out."""

    @property
    def queue(self) -> str:
        """The list it came from."""
        return queue_name(self.stage, self.lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one call brought, in the order of service."""

    parts: tuple[Claimed, ...] = ()
    more: bool = False
    """Whether another call may bring more at once."""


class Leases:
    """The lists and leases of one Redis. The client must decode responses."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._claim = redis.register_script(_source("claim"))
        self._ack = redis.register_script(_source("ack"))
        self._renew = redis.register_script(_source("renew"))
        self._give_back = redis.register_script(_source("give_back"))
        self._reap = redis.register_script(_source("reap"))

    def claim(
        self, queues: Sequence[str], *, owner: str, slots: int, tokens: int | None, idle: bool
    ) -> Claim:
        """Take parts in the order of `queues` while slots and tokens last.

        Stops at the first part that does not fit; one that costs more than `tokens` is taken alone, if `idle`.
        """
        keys = [LEASES, LEASED, OWNERS, DELIVERIES, AGAIN, DEAD]
        for queue in queues:
            keys += queue, bell_name(QUEUES[queue][0])
        taken, more = self._claim(keys, [owner, slots, -1 if tokens is None else tokens, int(idle)])
        parts = tuple(_claimed(*taken[i : i + 4]) for i in range(0, len(taken), 4))
        return Claim(parts=parts, more=bool(more) or len(parts) == slots)

    def ack(self, owner: str, parts: Sequence[str]) -> int:
        """Forget finished parts; return how many of them the owner still held."""
        keys = [LEASES, LEASED, OWNERS, DELIVERIES, AGAIN]
        return sum(self._ack(keys, [owner, _BELL_PREFIX, BELL_TTL_MS, *some]) for some in _batches(parts))

    def renew(self, owner: str, parts: Sequence[str]) -> list[str]:
        """Extend the leases; return the parts that the owner has lost."""
        keys = [LEASES, LEASED, OWNERS]
        return [part for some in _batches(parts) for part in self._renew(keys, [owner, *some])]

    def give_back(self, owner: str, parts: Sequence[str]) -> int:
        """Put parts back at the head of their lists, with no delivery counted; return how many were still held."""
        keys = [LEASES, LEASED, OWNERS, AGAIN]
        later_first = list(_batches(parts))[::-1]
        return sum(self._give_back(keys, [owner, _BELL_PREFIX, BELL_TTL_MS, *some]) for some in later_first)

    def reap(self, lease: timedelta, *, limit: int = 200) -> int:
        """Put parts back whose lease ran out, at most `limit`; return how many."""
        keys = [LEASES, LEASED, OWNERS, DELIVERIES, AGAIN]
        return int(self._reap(keys, [lease.total_seconds(), limit, _BELL_PREFIX, BELL_TTL_MS]))

    def owned(self, owner: str) -> set[str]:
        """Return the parts that Redis believes this owner holds."""
        holders: Any = self._redis.hscan_iter(OWNERS, count=1000)
        return {part for part, holder in holders if holder == owner}


def reap(redis: Redis, lease: timedelta) -> int:
    """Put every part back whose lease ran out; return how many. Any client will do."""
    leases, total = Leases(redis), 0
    while reaped := leases.reap(lease):
        total += reaped
    return total


def _source(name: str) -> str:
    return files("pecia_workers.broker").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _claimed(part: str, queue: str, cost: int, delivery: int) -> Claimed:
    stage, lane = QUEUES[queue]
    return Claimed(part=part, stage=stage, lane=lane, cost=cost, delivery=delivery)


def _batches(parts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (parts[i : i + _PARTS_PER_CALL] for i in range(0, len(parts), _PARTS_PER_CALL))
