"""What runs, and the most KV cache that it will come to if each request ends where it is expected to.

All that write write one token an iteration, so what they hold grows together and falls whenever one ends: it is largest
just before an end. Source: the future required memory of LightLLM's scheduler (arXiv 2507.10150).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pecia_workers.batching.policies import Room
    from pecia_workers.batching.waiting import Item

Growth = tuple[int, int]
"""Of one request: tokens that it will still write, and those that it holds."""


def peak(growths: Iterable[Growth]) -> int:
    """Return the most tokens that requests will hold at a time, given in the order of what they will still write."""
    held = most = 0
    for number, (left, holds) in enumerate(reversed(list(growths)), start=1):
        held += holds
        most = max(most, held + number * left)
    return most


class Running:
    """The requests that have started."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._items)

    def remove(self, item_id: str) -> None:
        """Forget a request; one that has not started is no error."""
        self._items.pop(item_id, None)

    def admission(self, room: Room) -> Admission:
        """Return what may start now. For one moment: `room` tells how far each has come."""
        return Admission(self._items, room)


class Admission:
    """Starts what fits beside all that runs, at one moment."""

    def __init__(self, items: dict[str, Item], room: Room) -> None:
        self._items = items
        self._room = room
        self._growths: list[Growth] | None = None

    def start(self, item: Item) -> bool:
        """Start a request if it fits, or is alone; return whether it has started."""
        if len(self._items) >= self._room.slots or not self._fits(item):
            return False
        self._items[item.id] = item
        return True

    def _fits(self, item: Item) -> bool:
        if self._room.tokens is None:
            return True
        if self._growths is None:
            self._growths = sorted(_growths(self._items.values(), self._room.written))
        (growth,) = _growths([item], self._room.written)
        insort(self._growths, growth)
        if not self._items or peak(self._growths) <= self._room.tokens:
            return True
        self._growths.remove(growth)
        return False


def _growths(items: Iterable[Item], written: Mapping[str, int]) -> list[Growth]:
    """Return how each request grows; in a loop without further calls, for it runs whenever one of hundreds ends."""
    growths = []
    for item in items:
        done = written.get(item.id, 0)
        total = item.longer(done) if done and item.longer else item.output
        growths.append((total - done if total > done else 0, item.prompt + done))
    return growths
