"""Exponential backoff: waits between attempts at something that may succeed later."""

import random
from dataclasses import dataclass
from typing import Final

_MOST_STEPS: Final = 64
"""Number of steps by which the longest wait is always reached, small enough for a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A wait of `first_s * factor ** (failed - 1)` seconds, at most `longest_s`, times a random number from `spread`.

    The spread keeps callers that failed together from retrying together.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    spread: tuple[float, float] = (1.0, 1.0)

    def wait_s(self, failed: int) -> float:
        """Return the seconds to wait after `failed` attempts, counted from 1."""
        return self.spread_s(self.first_s * self.factor ** min(max(0, failed - 1), _MOST_STEPS))

    def spread_s(self, wait_s: float) -> float:
        """Return a wait that a server names, bounded and spread."""
        return min(wait_s, self.longest_s) * random.uniform(*self.spread)  # noqa: S311  spreading load, no secret
