"""Places: the concurrent calls of one webhook worker, shared among receivers.

A receiver whose last call succeeded never waits behind others: receivers without an answer so far, and failing ones,
have one bounded share each, and one place each. Within a share a tenant occupies at most as many places as stay free in
it: one tenant half of them, two a third each, so that the next tenant always finds some.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Standing(StrEnum):
    """State of a receiver, by its last call."""

    WELL = "well"
    NEW = "new"
    """It has not answered yet."""
    FAILING = "failing"


_PARTS: Final[Mapping[Standing, int]] = {Standing.WELL: 1, Standing.NEW: 2, Standing.FAILING: 4}
"""Number of equal shares of the places; receivers of one state may use one share."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A receiver for which deliveries are due."""

    receiver: str
    tenant: str
    """Tenant of the deliveries; empty: none, or several."""
    standing: Standing


class Places:
    """Occupied places, and the allotment of free ones. A claimed delivery has one until its outcome is recorded."""

    def __init__(self, number: int, *, each: int) -> None:
        """Set the number of places, and the most that one healthy receiver may have."""
        self._number = number
        self._each = each
        self._by_receiver: Counter[str] = Counter()
        self._by_tenant: Counter[tuple[Standing, str]] = Counter()
        self._by_standing: Counter[Standing] = Counter()

    def take(self, turn: Turn) -> None:
        """Occupy a place for a call to that receiver."""
        self._by_receiver[turn.receiver] += 1
        self._by_tenant[turn.standing, turn.tenant] += 1
        self._by_standing[turn.standing] += 1

    def release(self, turn: Turn) -> None:
        """Release a place. `turn`: the one that occupied it, since the receiver's state may have changed."""
        self._by_receiver -= Counter([turn.receiver])  # forgets receivers that have none
        self._by_tenant -= Counter([(turn.standing, turn.tenant)])
        self._by_standing -= Counter([turn.standing])

    @property
    def taken(self) -> int:
        """Number of occupied places."""
        return self._by_standing.total()

    def allot(self, turns: Iterable[Turn], *, most: int) -> dict[str, int]:
        """Return how many deliveries to claim for each receiver, up to `most` in all, without receivers that get none.

        Healthy receivers come first, then the others in the order of `turns`, longest wait first. All get their first
        place before any gets a second.
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
        """Return whether another call to that receiver may start."""
        standing = turn.standing
        own = self._each if standing is Standing.WELL else 1
        free = min(self._number - self.taken, self._number // _PARTS[standing] - self._by_standing[standing])
        return self._by_receiver[turn.receiver] < own and self._by_tenant[standing, turn.tenant] < free
