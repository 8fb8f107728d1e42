"""The places of one webhook worker: how many calls it has out at a time, and whose.

A receiver that took what it was sent last never waits behind others: those that have not answered yet, and those that
fail, have a share each that they cannot exceed, and one place each. Within a share a tenant has at most as many places
as are left free in it: one tenant half of them, two a third each, and some are always left for the next one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Standing(StrEnum):
    """How a receiver stands, by the last call."""

    WELL = "well"
    NEW = "new"
    """It has not answered yet."""
    FAILING = "failing"


_PARTS: Final[Mapping[Standing, int]] = {Standing.WELL: 1, Standing.NEW: 2, Standing.FAILING: 4}
"""Into how many parts all places are divided, of which receivers of a standing may have one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A receiver for which deliveries are due."""

    receiver: str
    tenant: str
    """Whose deliveries; empty: no tenant's, or several tenants'."""
    standing: Standing


class Places:
    """Which are taken, and who gets the others. Each claim of a delivery takes one, until its outcome is recorded."""

    def __init__(self, number: int, *, each: int) -> None:
        """Take how many there are, and how many of them a receiver that is well may have."""
        self._number = number
        self._each = each
        self._by_receiver: Counter[str] = Counter()
        self._by_tenant: Counter[tuple[Standing, str]] = Counter()
        self._by_standing: Counter[Standing] = Counter()

    def take(self, turn: Turn) -> None:
        """Take a place for a call to that receiver."""
        self._by_receiver[turn.receiver] += 1
        self._by_tenant[turn.standing, turn.tenant] += 1
        self._by_standing[turn.standing] += 1

    def release(self, turn: Turn) -> None:
        """Release it. `turn` is the one by which it was taken: the receiver may stand otherwise since."""
        self._by_receiver -= Counter([turn.receiver])  # forgets receivers that have none
        self._by_tenant -= Counter([(turn.standing, turn.tenant)])
        self._by_standing -= Counter([turn.standing])

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._by_standing.total()

    def allot(self, turns: Iterable[Turn], *, most: int) -> dict[str, int]:
        """Return how many deliveries to claim for each receiver, `most` in all; a receiver without a place is left out.

        Receivers that are well come first, of the others those that wait for longest, as `turns` has them. All get
        their first place before any gets a second.
        """
        trial = deepcopy(self)
        allotted: Counter[str] = Counter()
        for standing in Standing:
            waiting = deque(turn for turn in turns if turn.standing is standing)
            while waiting and allotted.total() < most:
                turn = waiting.popleft()
                if trial.admits(turn):
                    trial.take(turn)
                    allotted[turn.receiver] += 1
                    waiting.append(turn)
        return dict(allotted)

    def admits(self, turn: Turn) -> bool:
        """Return whether another call to that receiver may go out."""
        standing = turn.standing
        own = self._each if standing is Standing.WELL else 1
        free = min(self._number - self.taken, self._number // _PARTS[standing] - self._by_standing[standing])
        return self._by_receiver[turn.receiver] < own and self._by_tenant[standing, turn.tenant] < free
