"""What this process holds in Redis: taken through a gate, renewed by a thread of its own, settled in groups."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from redis import RedisError

from pecia_workers.broker.leases import Claim, Claimed, Leases
from pecia_workers.broker.owners import is_gone, new_owner
from pecia_workers.metrics import declared as metrics
from pecia_workers.tracing.stores import received

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from redis import Redis

    from pecia_workers.broker.rules import LaneRules

_log = logging.getLogger(__name__)

CLAIM_LIMIT = 256
"""Most parts that one call takes, so that the script never keeps Redis for long."""

_RETRY_S = 1.0

_keepers: WeakValueDictionary[str, LeaseKeeper] = WeakValueDictionary()


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


class Gate(Protocol):
    """Who takes the parts, and how many."""

    def capacity(self) -> Capacity:
        """Return what fits now."""
        ...

    def dispatch(self) -> None:
        """Begin with what came; called after all parts of one claim were delivered."""
        ...


class LeaseKeeper:
    """The leases of one process. Claims and settles on one thread; renewal runs on another.

    It outlives connections and channels: what is in flight stays leased while Celery reconnects.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        lease: timedelta,
        hold_limit: timedelta,
        rules: LaneRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        waited_s: Callable[[str], float] = lambda _part: 0.0,
    ) -> None:
        """Keep leases of this length. None is renewed for longer than `hold_limit`: a hung part goes on elsewhere.

        `clock` tells how long parts are held: it stands still while they wait for Postgres. `waited_s` tells how long
        one of them has waited for others besides.
        """
        self.owner = new_owner()
        _keepers[self.owner] = self
        self.gate: Gate | None = None
        self.on_lost: Callable[[str], None] = _ignore
        self._leases = Leases(redis, rules)
        self._lease = lease
        self._hold_limit_s = hold_limit.total_seconds()
        self._clock = clock
        self._waited_s = waited_s
        self._held: dict[str, float] = {}
        self._moved_at = time.monotonic()
        self._finished: dict[str, None] = {}
        self._unfinished: dict[str, None] = {}
        self._suspects: dict[str, None] = {}
        self._settle_after = 0.0
        self._in_doubt = False
        self._stopping = threading.Event()
        self._renewer: threading.Thread | None = None

    @staticmethod
    def of(owner: str) -> LeaseKeeper:
        """Return this process's keeper of that name."""
        return _keepers[owner]

    @property
    def held(self) -> int:
        """How many leases there are."""
        return len(self._held)

    @property
    def moved_at(self) -> float:
        """When a part was last claimed or finished or given back, by the monotonic clock."""
        return self._moved_at

    @property
    def is_open(self) -> bool:
        """Whether there is a gate: the worker has started and is not stopping."""
        return self.gate is not None

    @property
    def capacity(self) -> Capacity:
        """What the gate admits now; nothing while there is none."""
        return self.gate.capacity() if self.gate else Capacity(slots=0, tokens=0, idle=False)

    def claim(self, queues: Sequence[str]) -> Claim:
        """Take what the gate admits. Raises `redis.RedisError`; parts taken unseen are found by `tend`."""
        capacity = self.capacity
        if not capacity.is_open:
            return Claim()
        try:
            claim = self._leases.claim(
                queues,
                owner=self.owner,
                slots=min(capacity.slots, CLAIM_LIMIT),
                tokens=capacity.tokens,
                idle=capacity.idle,
            )
        except RedisError:
            self._in_doubt = True
            raise
        if claim.parts:
            self._took(claim.parts, capacity.tokens)
        return claim

    def _took(self, parts: Sequence[Claimed], free: int | None) -> None:
        self._moved_at = time.monotonic()
        now = self._clock()
        self._held.update((claimed.part, now) for claimed in parts)
        received(parts)
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

    def ack(self, part: str) -> None:
        """Note that a part is finished; `settle` tells Redis. Its lease is renewed until then."""
        self._finished[part] = None

    def give_back(self, part: str) -> None:
        """Note that a part goes back to its list, or to quarantine if it is suspect; `settle` tells Redis."""
        if part not in self._suspects:
            self._unfinished[part] = None

    def suspect(self, part: str) -> None:
        """Note that a part goes to quarantine: the engine died on it."""
        self._suspects[part] = None

    def settle(self) -> bool:
        """Tell Redis what was acknowledged and given back; return whether it knows all of it now.

        What it could not be told is kept and told later.
        """
        if not self._finished and not self._unfinished and not self._suspects:
            return True
        if time.monotonic() < self._settle_after:
            return False
        try:
            self._settle()
        except RedisError as error:
            _log.warning("could not settle leases, trying again: %s", type(error).__name__)
            self._settle_after = time.monotonic() + _RETRY_S
            return False
        return True

    def _settle(self) -> None:
        finished, unfinished, suspects = map(list, (self._finished, self._unfinished, self._suspects))
        if finished:
            late = len(finished) - self._leases.ack(self.owner, finished)
            self._forget(finished, self._finished)
            if late:
                _log.warning("%d late acknowledgements ignored: the leases were no longer ours", late)
        if unfinished:
            self._leases.give_back(self.owner, unfinished)
            self._forget(unfinished, self._unfinished)
        if suspects:
            self._leases.give_back(self.owner, suspects, died=True)
            self._forget(suspects, self._suspects)

    def _forget(self, parts: list[str], noted: dict[str, None]) -> None:
        for part in parts:
            self._held.pop(part, None)
            noted.pop(part, None)
        self._moved_at = time.monotonic()
        metrics.PARTS_HELD.set(len(self._held))

    def tend(self) -> None:
        """Settle, return what was taken unseen, and quarantine what dead workers held. Raises `redis.RedisError`."""
        self.settle()
        if self._in_doubt:
            self._return_unseen()
        if reaped := self._leases.reap(self._lease):
            metrics.LEASES_REAPED.inc(reaped)
            _log.warning("%d leases ran out: their parts are in quarantine", reaped)

    def _return_unseen(self) -> None:
        unseen = self._leases.owned(self.owner) - self._held.keys()
        self._leases.give_back(self.owner, sorted(unseen))
        self._in_doubt = False

    def start(self) -> None:
        """Start to renew; before, quarantine what a process held that died on this machine, as its successor knows."""
        try:
            self._inherit()
        except RedisError as error:
            _log.warning("could not look for leases of the dead: %s", type(error).__name__)
        self._stopping.clear()
        self._renewer = threading.Thread(target=self._renew_for_ever, name="lease-renewer", daemon=True)
        self._renewer.start()

    def _inherit(self) -> None:
        for owner in filter(is_gone, self._leases.owners()):
            lost = self._leases.give_back(owner, sorted(self._leases.owned(owner)), died=True)
            _log.warning("%d leases of a process that is gone: their parts are in quarantine", lost)

    def stop(self) -> None:
        """Stop to renew; what is still held runs out by itself."""
        self._stopping.set()
        if self._renewer:
            self._renewer.join()
            self._renewer = None

    def _renew_for_ever(self) -> None:
        while not self._stopping.wait(self._lease.total_seconds() / 6):
            try:
                self.renew()
            except Exception as error:  # noqa: BLE001  without this thread every part runs out, again and again
                _log.warning("could not renew leases: %s", type(error).__name__)

    def renew(self) -> None:
        """Renew once; parts that were lost or held for too long are reported to `on_lost`."""
        since = self._clock() - self._hold_limit_s
        held = self._held.copy()
        overdue = [part for part, begun in held.items() if begun + self._waited_s(part) < since]
        lost = self._leases.renew(self.owner, [part for part in held if part not in overdue])
        for part in lost + overdue:
            if self._held.get(part) == held[part] and part not in self._finished:
                self._held.pop(part, None)
                metrics.LEASES_LOST.inc()
                _log.error("lease lost: %s", part, extra={"part": part})
                self.on_lost(part)


def _ignore(_part: str) -> None:
    """Nobody to tell."""
