"""How much of the engine's budget is used, by what the engine says of its KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pecia_workers.engines.base import Load

_BACK_OFF: Final = 0.95
_LEAST: Final = 0.5
_GROWTH: Final = 0.02
"""Of the budget, for each second in which the cache is not full."""
_FULL: Final = 0.95


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
