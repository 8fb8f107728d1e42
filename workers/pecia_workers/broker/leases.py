"""Parts in Redis: claimed, renewed, acknowledged, given back and reaped, each in one atomic script.

Keys, beside the lists and bells of `pecia_schemas.messages`:

    pecia:leases           sorted set: part, time of its last renewal by the clock of Redis
    pecia:leased           hash: part, its list and message
    pecia:owners           hash: part, the process that holds it
    pecia:deliveries       hash: part, how many workers died on it or fell silent
    pecia:again            hash: part, its list and the message that came while it was leased
    pecia:dead             list: the last thousand messages that were none
    pecia:standing:<list>  hash: flow, how many of its messages stand in that list
    pecia:credit           hash: list of a lower lane, tokens that are due to it
    pecia:served           hash: list of a lower lane, or quarantine, when it was served last; gone when it is empty
    pecia:warden:<stage>   the process that alone may take parts out of that stage's quarantine; `!` before it: it has
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from pecia_schemas import Lane, Stage
from pecia_schemas.messages import (
    BELL_PREFIX,
    BELL_TTL_MS,
    DELIVERIES,
    STANDING_PREFIX,
    bell_name,
    quarantine_name,
    queue_name,
)
from pecia_workers.broker.rules import LaneRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta

    from redis import Redis

QUEUES: dict[str, tuple[Stage, Lane]] = {
    queue_name(stage, lane): (stage, lane) for lane in Lane for stage in Stage
}
"""The list of every stage and lane, in the order in which they are served."""

QUARANTINES: dict[str, Stage] = {quarantine_name(stage): stage for stage in Stage}
"""The lists of parts on which a worker died."""

AGAIN = "pecia:again"
CREDIT = "pecia:credit"
DEAD = "pecia:dead"
LEASED = "pecia:leased"
LEASES = "pecia:leases"
OWNERS = "pecia:owners"
SERVED = "pecia:served"

_PARTS_PER_CALL = 500
_FIELDS = 6
"""Of each part that a claim brings."""
_NAMES = (
    f"local BELL_PREFIX, BELL_TTL_MS = '{BELL_PREFIX}', {BELL_TTL_MS}\n"
    f"local STANDING_PREFIX, DELIVERIES = '{STANDING_PREFIX}', '{DELIVERIES}'\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """One part that this process holds now."""

    part: str
    stage: Stage
    lane: Lane
    cost: int
    delivery: int
    """1, and one more for every worker that died on it or fell silent."""
    suspect: bool = False
    """Whether it came out of quarantine: nothing that was not may run beside it."""
    traceparent: str | None = None
    """What its message says of its job's trace. Whoever writes to Redis can say anything: it makes a link, no more."""

    @property
    def queue(self) -> str:
        """The list of its stage and lane."""
        return queue_name(self.stage, self.lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one call brought, in the order of service."""

    parts: tuple[Claimed, ...] = ()
    more: bool = False
    """Whether another call may bring more at once."""


class Leases:
    """The lists and leases of one Redis. The client must decode responses."""

    def __init__(self, redis: Redis, rules: LaneRules | None = None) -> None:
        self._redis = redis
        self._rules = rules or LaneRules()
        self._encoded_rules = self._rules.encode()
        self._claim = redis.register_script(_source("claim"))
        self._ack = redis.register_script(_source("ack"))
        self._renew = redis.register_script(_source("renew"))
        self._give_back = redis.register_script(_source("give_back"))
        self._reap = redis.register_script(_source("reap"))

    def claim(
        self, queues: Sequence[str], *, owner: str, slots: int, tokens: int | None, idle: bool
    ) -> Claim:
        """Take parts of these lists in the order of lanes, and of their stages' quarantines, by the rules.

        Stops at the first part that does not fit; one that costs more than `tokens` is taken alone, if `idle`.
        """
        keys = [LEASES, LEASED, OWNERS, AGAIN, DEAD, CREDIT, SERVED]
        for queue in queues:
            keys += queue, bell_name(QUEUES[queue][0])
        for stage in dict.fromkeys(QUEUES[queue][0] for queue in queues):
            keys += quarantine_name(stage), warden_name(stage)
        free = -1 if tokens is None else tokens
        taken, more = self._claim(keys, [owner, slots, free, int(idle), len(queues), self._encoded_rules])
        parts = tuple(_claimed(taken[i : i + _FIELDS]) for i in range(0, len(taken), _FIELDS))
        return Claim(parts=parts, more=bool(more) or len(parts) == slots)

    def ack(self, owner: str, parts: Sequence[str]) -> int:
        """Forget finished parts; return how many of them the owner still held."""
        keys = [LEASES, LEASED, OWNERS, AGAIN]
        return sum(self._ack(keys, [owner, *some]) for some in _batches(parts))

    def renew(self, owner: str, parts: Sequence[str]) -> list[str]:
        """Extend the leases, and the owner's watch over quarantines; return the parts that the owner has lost."""
        keys = [LEASES, LEASED, OWNERS, *map(warden_name, Stage)]
        return [
            part
            for some in _batches(parts)
            for part in self._renew(keys, [owner, self._rules.warden_ms, *some])
        ]

    def give_back(self, owner: str, parts: Sequence[str], *, died: bool = False) -> int:
        """Put parts back to the head of their lists, with no delivery counted; return how many were still held.

        Those that the owner's engine `died` on go to quarantine, and it is counted.
        """
        keys = [LEASES, LEASED, OWNERS, AGAIN]
        later_first = list(_batches(parts))[::-1]
        return sum(self._give_back(keys, [owner, int(died), *some]) for some in later_first)

    def reap(self, lease: timedelta, *, limit: int = 200) -> int:
        """Put parts into quarantine whose lease ran out, at most `limit`; return how many."""
        keys = [LEASES, LEASED, OWNERS, AGAIN]
        return int(self._reap(keys, [lease.total_seconds(), limit]))

    def owned(self, owner: str) -> set[str]:
        """Return the parts that Redis believes this owner holds."""
        return {part for part, holder in self._holders() if holder == owner}

    def owners(self) -> set[str]:
        """Return who holds parts."""
        return {holder for _, holder in self._holders()}

    def _holders(self) -> Iterable[tuple[str, str]]:
        holders: Any = self._redis.hscan_iter(OWNERS, count=1000)
        return cast("Iterable[tuple[str, str]]", holders)


def warden_name(stage: Stage) -> str:
    """Return the key that names the process which empties a stage's quarantine."""
    return f"pecia:warden:{stage}"


def reap(redis: Redis, lease: timedelta) -> int:
    """Put every part into quarantine whose lease ran out; return how many. Any client will do."""
    leases, total = Leases(redis), 0
    while reaped := leases.reap(lease):
        total += reaped
    return total


def _source(name: str) -> str:
    scripts = files("pecia_workers.broker")
    common, own = (scripts.joinpath(f"{file}.lua").read_text(encoding="utf-8") for file in ("common", name))
    return _NAMES + common + own


def _claimed(said: Sequence[Any]) -> Claimed:
    part, queue, lane, cost, delivery, trace = said
    suspect = queue in QUARANTINES
    return Claimed(
        part=part,
        stage=QUARANTINES[queue] if suspect else QUEUES[queue][0],
        lane=Lane(lane),
        cost=cost,
        delivery=delivery,
        suspect=suspect,
        traceparent=trace or None,
    )


def _batches(parts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (parts[i : i + _PARTS_PER_CALL] for i in range(0, len(parts), _PARTS_PER_CALL))
