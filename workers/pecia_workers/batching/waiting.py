"""Requests that wait for room: in the order of lanes, then of arrival, and no one is overtaken for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PATIENCE: Final = 64
"""How many later arrivals may start before a request whose turn it then is, whatever its lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A request that waits or runs."""

    id: str
    prompt: int
    """Tokens it reads."""
    output: int
    """Tokens it is expected to write, which its time in the engine goes by."""
    longer: Callable[[int], int] | None = None
    """Returns what it is expected to write in all once it has written so much; None: it stays at `output`."""
    rank: int
    """Of its lane: smaller is sooner."""
    arrived: float
    """Seconds, by the clock of the caller."""

    @property
    def tokens(self) -> int:
        """What it takes of the KV cache when it ends as expected."""
        return self.prompt + self.output


class Waiting:
    """Few enough to be looked through: what waits here has been claimed already, the backlog stays in Redis."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._overtaken: dict[str, int] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def mean_tokens(self) -> float:
        """Mean size of what waits."""
        return self.tokens / max(1, len(self._items))

    @property
    def oldest(self) -> Item | None:
        """The request that has waited longest."""
        return next(iter(self._items.values()), None)

    @property
    def head(self) -> Item | None:
        """The request whose turn it is."""
        return next(iter(self.in_order()), None)

    def add(self, item: Item) -> None:
        """Let a request wait, behind all that came before it."""
        self._items[item.id] = item
        self._overtaken[item.id] = 0
        self.tokens += item.tokens

    def remove(self, item_id: str) -> None:
        """Forget a request; one that is not here is no error."""
        if (item := self._items.pop(item_id, None)) is not None:
            self.tokens -= item.tokens
            del self._overtaken[item_id]

    def take(self, item: Item) -> None:
        """Remove a request that starts; those that came before it have been overtaken."""
        for earlier in self._items:
            if earlier == item.id:
                break
            self._overtaken[earlier] += 1
        self.remove(item.id)

    def in_order(self) -> list[Item]:
        """Return what waits, next first."""
        return sorted(self._items.values(), key=self._turn)

    def next_lane(self) -> list[Item]:
        """Return what waits in the lane whose turn it is, by arrival; one that was overtaken too often, alone."""
        head = self.head
        if head is None:
            return []
        if self._is_impatient(head):
            return [head]
        return [item for item in self._items.values() if item.rank == head.rank]

    def like_head(self) -> list[Item]:
        """Return the next request, then the others by how near they are to it in size."""
        if not self._items:
            return []
        head, *others = self.in_order()
        return [head, *sorted(others, key=lambda item: abs(item.tokens - head.tokens))]

    def _turn(self, item: Item) -> tuple[bool, int]:
        impatient = self._is_impatient(item)
        return (not impatient, 0 if impatient else item.rank)

    def _is_impatient(self, item: Item) -> bool:
        return self._overtaken[item.id] >= PATIENCE
