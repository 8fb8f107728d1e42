"""How much of the engine's budget is used: less after it ran out of memory or preempted requests, forgotten slowly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pecia_workers.batching.policies import Room
from pecia_workers.engines.base import Budget, Load

_REGROWTH: Final = 0.002
"""Of the room, for each second since the engine ran out of memory: all of it is back after eight minutes."""

_BACK_OFF: Final = 0.95
_LEAST: Final = 0.5
_GROWTH: Final = 0.02
"""Of the budget, for each second in which the cache is not full."""
_FULL: Final = 0.95


@dataclass(slots=True, kw_only=True)
class _Guest:
    part: UUID | None
    tokens: int
    shortages: int
    """How many there had been when it entered."""
    alone: bool


class Memory:
    """A share of the room: half of what was in use when memory ran out, and larger again with time.

    A request that ran out of memory waits for room once more, so its part neither fails nor has to be decoded again.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.engine_died = False
        """Whether the engine ended with several requests in it, perhaps for want of memory."""
        self._inside: dict[str, _Guest] = {}
        self._shortages = 0
        self._looked: float | None = None

    def room(self, budget: Budget, now: float) -> Room:
        """Return what is left of the budget at `now`, in seconds; never less than one request needs."""
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        self.share = min(1.0, self.share + _REGROWTH * passed)
        if budget.tokens is None:
            return Room(slots=max(1, math.floor(budget.slots * self.share)), tokens=None)
        return Room(slots=budget.slots, tokens=max(1, math.floor(budget.tokens * self.share)))

    @property
    def parts(self) -> frozenset[UUID]:
        """Parts whose requests are in the engine."""
        return frozenset(guest.part for guest in self._inside.values() if guest.part)

    def enter(self, request_id: str, tokens: int, part: UUID | None = None) -> None:
        """Take note that a request, of a part, entered the engine."""
        for guest in self._inside.values():
            guest.alone = False
        self._inside[request_id] = _Guest(
            part=part, tokens=tokens, shortages=self._shortages, alone=not self._inside
        )

    def leave(self, request_id: str) -> None:
        """Forget a request; one that is not inside is no error."""
        self._inside.pop(request_id, None)

    def ran_out(self, request_id: str, budget: Budget) -> bool:
        """Take note that there was no memory for a request that is still inside; return whether fewer may do better.

        All that were inside together run out together: the share shrinks once for all of them.
        """
        guest = self._inside[request_id]
        if guest.alone:
            return False
        if guest.shortages == self._shortages:
            self._shortages += 1
            self.share = min(self.share, self._used(budget)) / 2
        return True

    def died(self, request_id: str) -> None:
        """Take note that the engine died on a request that is still inside: the share is for the next one then.

        It is halved whatever was in use, for memory need not have been the cause; if it was alone, the page was.
        """
        guest = self._inside[request_id]
        if not guest.alone and guest.shortages == self._shortages:
            self._shortages += 1
            self.share /= 2
            self.engine_died = True

    def _used(self, budget: Budget) -> float:
        if budget.tokens is None:
            return len(self._inside) / budget.slots
        return sum(guest.tokens for guest in self._inside.values()) / budget.tokens


class Headroom:
    """A share of the token budget: smaller after each preemption, larger again while there is air.

    Admission rests on expected lengths; where answers turn out longer, as when a fleet has learned none yet, the cache
    overflows, and whatever the engine preempts it computes twice.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._preempted = 0
        self._looked: float | None = None

    def look(self, load: Load, now: float) -> None:
        """Take note of what the engine says at `now`, in seconds."""
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        if load.preemptions > self._preempted:
            self.share = max(_LEAST, self.share * _BACK_OFF)
        elif (load.kv_used or 0) < _FULL:
            self.share = min(1.0, self.share + _GROWTH * passed)
        self._preempted = load.preemptions
