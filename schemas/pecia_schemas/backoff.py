"""Exponential backoff: the waits between tries of whatever may succeed later."""

import random
from dataclasses import dataclass
from typing import Final

_MOST_STEPS: Final = 64
"""By then the longest wait is reached; a float holds the product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """`first_s * factor ** (failed - 1)` seconds, at most `longest_s`, times a random number from `spread`.

    The spread keeps callers that failed together from returning together.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    spread: tuple[float, float] = (1.0, 1.0)

    def wait_s(self, failed: int) -> float:
        """Return the seconds to wait after `failed` tries, counted from 1."""
        return self.spread_s(self.first_s * self.factor ** min(max(0, failed - 1), _MOST_STEPS))

    def spread_s(self, wait_s: float) -> float:
        """Return this wait, bounded and spread, where a server names one."""
        return min(wait_s, self.longest_s) * random.uniform(*self.spread)  # noqa: S311  spreading load, no secret
