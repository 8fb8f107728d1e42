"""What this process has taken: from Redis through a gate, under numbered calls, or straight from Postgres.

What is claimed from Postgres comes by lane and age, without turns and shares. Suspects wait for Redis, and Celery and
Flower see nothing of these parts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Protocol
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog
from redis import Redis, RedisError

from pecia_schemas import tracing
from pecia_schemas.connecting import name_of
from pecia_workers import metrics
from pecia_workers.ledger.claim import ClaimedPart
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import Claim, Claimed, Ended, LaneRules, Lists, hand_back

_log = logging.getLogger(__name__)

CLAIM_LIMIT = 256
"""Most parts that one call takes or lets go of, so that the script never keeps Redis for long."""

_RETRY_S = 1.0

_keepers: WeakValueDictionary[str, Keeper] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What may be claimed now."""

    slots: int
    tokens: int | None
    """None: only the slots count."""
    idle: bool
    """Whether nothing is in flight, so that a part larger than the budget may run alone."""

    @property
    def is_open(self) -> bool:
        """Whether anything at all fits."""
        return self.slots > 0 and (self.tokens is None or self.tokens > 0)


_CLOSED: Final = Capacity(slots=0, tokens=0, idle=False)


class Gate(Protocol):
    """Who takes the parts, and how many."""

    def capacity(self) -> Capacity:
        """Return what fits now."""
        ...

    def dispatch(self) -> None:
        """Begin with what came; called after all parts of one claim were delivered."""


class Keeper:
    """The parts that one process has taken from Redis. Claims and settles on the thread of Celery's event loop.

    It outlives connections and channels: what is in flight stays taken while Celery reconnects. Each call to Redis has
    a number, and one whose reply was lost is made again until it has come.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        hold_limit: timedelta,
        rules: LaneRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        waited_s: Callable[[str], float] = lambda _part: 0.0,
    ) -> None:
        """Report a part to `on_overdue` that has been held for longer than `hold_limit`.

        `clock` tells how long parts are held: it stands still while they wait for Postgres. `waited_s` tells how long
        one of them has waited for others besides.
        """
        self.key = uuid4().hex
        _keepers[self.key] = self
        self.worker = self.key
        """The name under which the worker takes parts, in Redis and in Postgres: the pool sets it before the gate."""
        self.gate: Gate | None = None
        self.on_overdue: Callable[[str], None] = lambda _part: None
        self._redis = redis
        self._lists = Lists(redis, rules)
        self._hold_limit_s = hold_limit.total_seconds()
        self._clock = clock
        self._waited_s = waited_s
        self._held: dict[str, float] = {}
        self._overdue: set[str] = set()
        self.moved_at = time.monotonic()
        """When a part was last claimed or finished or given back, by the monotonic clock."""
        self._finished: dict[str, None] = {}
        self._unfinished: dict[str, None] = {}
        self._number = 1
        self._telling: Ended | None = None
        """What the call under way lets go of, or the one whose reply was lost."""
        self._unseen: list[Claimed] = []
        """Parts of a call that was made to settle, because its first try had been to claim."""
        self._settle_after = 0.0

    @staticmethod
    def of(key: str) -> Keeper:
        """Return this process's keeper with that key."""
        return _keepers[key]

    @property
    def held(self) -> int:
        """How many parts this process has taken and not let go of."""
        return len(self._held)

    @property
    def is_open(self) -> bool:
        """Whether there is a gate: the worker has started and is not stopping."""
        return self.gate is not None

    @property
    def capacity(self) -> Capacity:
        """What the gate admits now; nothing while there is none."""
        return self.gate.capacity() if self.gate else _CLOSED

    def claim(self, queues: Sequence[str]) -> Claim:
        """Take what the gate admits, and tell Redis what has ended. Raises `redis.RedisError`."""
        capacity = self.capacity
        if not capacity.is_open:
            return Claim()
        if self._unseen:
            unseen, self._unseen = tuple(self._unseen), []
            return Claim(parts=unseen, more=True)
        claim = self._call(queues, capacity)
        if claim.parts:
            self._took(claim.parts, capacity.tokens)
        return claim

    def _call(self, queues: Sequence[str], capacity: Capacity) -> Claim:
        if self._telling is None:
            self._telling = self._ended
        claim = self._lists.claim(
            queues,
            worker=self.worker,
            number=self._number,
            slots=min(capacity.slots, CLAIM_LIMIT),
            tokens=capacity.tokens,
            idle=capacity.idle,
            ended=self._telling,
        )
        self._number += 1
        told, self._telling = self._telling, None
        self._forget(told)
        return claim

    @property
    def _ended(self) -> Ended:
        finished, unfinished = (islice(noted, CLAIM_LIMIT) for noted in (self._finished, self._unfinished))
        return Ended(finished=tuple(finished), unfinished=tuple(unfinished))

    def _took(self, parts: Sequence[Claimed], free: int | None) -> None:
        self.moved_at = time.monotonic()
        now = self._clock()
        self._held.update((claimed.part, now) for claimed in parts)
        # A claim serves many jobs: a trace of its own, with a link to each of theirs.
        if links := dict.fromkeys(claimed.traceparent for claimed in parts if claimed.traceparent):
            about = tracing.messaging("receive", len(parts)) | {
                "pecia.cost": sum(claimed.cost for claimed in parts)
            }
            tracing.apart("receive", about, kind=tracing.Kind.CLIENT, links=links).end()
        metrics.CLAIMS.inc()
        metrics.CLAIM_SIZE.observe(len(parts))
        if free is not None:
            metrics.CLAIM_FILL.observe(sum(claimed.cost for claimed in parts) / max(1, free))
        for claimed in parts:
            metrics.CLAIMED_PARTS.labels(claimed.stage, claimed.lane).inc()
        metrics.PARTS_HELD.set(len(self._held))

    def dispatch(self) -> None:
        """Tell the gate that a whole claim was delivered."""
        if self.gate:
            self.gate.dispatch()

    def finish(self, part: str) -> None:
        """Note that a part is finished; Redis is told with the next claim, or by `settle`."""
        self._finished[part] = None

    def give_back(self, part: str) -> None:
        """Note that a part goes back to its list."""
        self._unfinished[part] = None

    def settle(self) -> bool:
        """Tell Redis what has ended; return whether it knows all of it now. What it could not be told is told later."""
        while self._finished or self._unfinished:
            if time.monotonic() < self._settle_after:
                return False
            try:
                claim = self._call((), _CLOSED)
            except RedisError as error:
                _log.warning("could not tell Redis what ended, trying again: %s", type(error).__name__)
                self._settle_after = time.monotonic() + _RETRY_S
                return False
            if claim.parts:
                self._took(claim.parts, None)
                self._unseen += claim.parts
        return True

    def _forget(self, told: Ended) -> None:
        if not told:
            return
        for noted, parts in ((self._finished, told.finished), (self._unfinished, told.unfinished)):
            for part in parts:
                self._held.pop(part, None)
                self._overdue.discard(part)
                noted.pop(part, None)
        self.moved_at = time.monotonic()
        metrics.PARTS_HELD.set(len(self._held))

    def tend(self) -> None:
        """Settle, and report what has been held for too long. Celery's event loop calls it every second."""
        self.settle()
        since = self._clock() - self._hold_limit_s
        for part, begun in self._held.items():
            known = part in self._overdue or part in self._finished
            if not known and begun + self._waited_s(part) < since:
                self._overdue.add(part)
                metrics.OVERDUE_PARTS.inc()
                _log.error("held for too long: %s", part, extra={"part": part})
                self.on_overdue(part)

    def stop(self) -> None:
        """Hand everything back that Redis still has for this worker. If Redis is away, upkeep does it later."""
        try:
            hand_back(self._redis, self.worker)
        except RedisError as error:
            _log.warning("could not hand parts back: %s", type(error).__name__)


log = structlog.get_logger(__name__)

_LOOK_S = 1.0


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has let go of what it holds, a connection for one."""
    while not task.done():  # a library may swallow the first: redis-py does while it connects
        task.cancel()
        await asyncio.wait([task], timeout=_LOOK_S)


class DirectClaims:
    """Looks after Redis every second, and begins waiting parts while it does not answer."""

    def __init__(
        self,
        bus: Bus,
        *,
        claim: Callable[[int], Awaitable[Sequence[ClaimedPart]]],
        free: Callable[[], int],
        run: Callable[[ClaimedPart], Awaitable[None]],
    ) -> None:
        """`claim` claims up to so many, `free` tells how many may begin, `run` runs one to its end without raising."""
        self._bus = bus
        self._claim = claim
        self._claiming = asyncio.Lock()
        self._free = free
        self._run = run
        self._running: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._running)

    def start(self) -> None:
        """Begin to look after Redis."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Begin nothing more, and cancel what runs: `run` gives it back."""
        if self._looking:
            await end(self._looking)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def idle(self) -> None:
        """Return once no claim is under way: a message's claim beside it could take the same part."""
        if self._claiming.locked():
            async with self._claiming:
                pass

    async def _look(self) -> None:
        away = False
        while True:
            await asyncio.sleep(_LOOK_S)
            was_away, away = away, not await self._bus.answers()
            if away != was_away:
                log.warning("claiming_directly" if away else "claiming_through_redis", running=len(self))
            try:
                while away and await self._begin():
                    pass
            except Exception as error:  # noqa: BLE001  the next look may succeed, and nothing else claims now
                log.warning("direct_claim_failed", error=name_of(error))

    async def _begin(self) -> bool:
        """Begin what fits; return whether more may."""
        if (slots := self._free()) <= 0:
            return False
        async with self._claiming:
            parts = await self._claim(slots)
        for part in parts:
            task = asyncio.ensure_future(self._run(part))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        await asyncio.sleep(0)  # they begin, and so take their room
        return bool(parts)
