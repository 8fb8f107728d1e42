"""How full the engine is kept while there is work for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pecia_workers.batching.policies import Room
    from pecia_workers.batching.waiting import Item


class Packing:
    """Used share of the room, over the time in which something waited for it."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._tokens = 0
        self._room: Room | None = None
        self._backlog = False
        self._since = 0.0
        self._used_s = 0.0
        self._waited_s = 0.0

    @property
    def share(self) -> float | None:
        """Mean share of the tokens, or of the slots where they are what is full; None before anything waited."""
        return self._used_s / self._waited_s if self._waited_s else None

    @property
    def requests(self) -> int:
        """How many run."""
        return len(self._running)

    @property
    def token_share(self) -> float | None:
        """Share of the room's tokens that they take; None where only slots count, or before the first."""
        if self._room is None or self._room.tokens is None:
            return None
        return self._tokens / max(1, self._room.tokens)

    def started(self, item: Item, room: Room, now: float, waiting: int) -> None:
        """Take note that a request entered; so many still wait."""
        self._pass(now)
        self._running[item.id] = item.tokens
        self._tokens += item.tokens
        self._room = room
        self._backlog = waiting > 0

    def ended(self, item_id: str, now: float, waiting: int) -> None:
        """Take note that a request left, or gave up waiting."""
        self._pass(now)
        self._tokens -= self._running.pop(item_id, 0)
        self._backlog = waiting > 0

    def _pass(self, now: float) -> None:
        if self._backlog and self._room:
            passed = now - self._since
            self._waited_s += passed
            self._used_s += passed * self._used(self._room)
        self._since = now

    def _used(self, room: Room) -> float:
        slots = len(self._running) / room.slots
        return slots if room.tokens is None else max(slots, min(1.0, self._tokens / max(1, room.tokens)))
