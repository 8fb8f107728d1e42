"""How long the output of a workload is: learned from what was written, forgetting slowly.

Lengths are counted on a logarithmic grid, four steps to the doubling, so that an expectation is at most a fifth too
high and a count of many workers is the sum of theirs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS

STEPS: Final = 69
"""Steps of the grid; the last ends at 131,072 tokens."""
HALF_LIFE: Final = 2_000
"""Observations after which an older one counts half."""
ENOUGH: Final = 20
"""Observations before what was learned is believed."""
_STEPS_PER_DOUBLING: Final = 4
_LENGTHS: Final = tuple(math.floor(2 ** (step / _STEPS_PER_DOUBLING) + 1e-9) for step in range(STEPS))
_SOME: Final = 0.5
"""Observations, the oldest of which count less than one."""


def step_of(tokens: int) -> int:
    """Return the step that a length falls into."""
    return min(STEPS - 1, bisect_left(_LENGTHS, tokens))


def length_of(step: int) -> int:
    """Return the longest length of a step."""
    return _LENGTHS[step]


def quantile(sums: Sequence[float], share: float, first: int = 0) -> int:
    """Return the length that `share` of what was counted does not exceed, of what fell into `first` or a later step.

    `sums` has for each step what fell into those before it, and last what was counted. There must be something.
    """
    wanted = sums[first] + share * (sums[-1] - sums[first])
    return length_of(bisect_left(sums, wanted - 1e-9, lo=first + 1) - 1)


class LearnedLengths:
    """What one worker knows: what the fleet has learned, and what it has seen itself since."""

    def __init__(self, share: float) -> None:
        """Expect the length that `share` of a workload's output does not exceed."""
        self._share = share
        self._known: dict[str, list[float]] = {}
        self._seen: dict[str, list[float]] = {}
        self._expected: dict[str, list[int]] = {}

    def observe(self, workload: str, tokens: int) -> None:
        """Take note of an output that came to its own end."""
        self._seen.setdefault(workload, [0.0] * STEPS)[step_of(tokens)] += 1
        self._expected.pop(workload, None)

    def expected(self, workload: str, written: int = 0) -> int:
        """Return the length to reckon with, in tokens, for an output that has so many already.

        One that is longer than what was seen goes on for a quarter of what it has.
        """
        known = self._expected.get(workload)
        if known is None:
            known = self._expected[workload] = self._expectations(workload)
        expected = known[
            bisect_left(_LENGTHS, written + 1)
        ]  # as `step_of`, which hundreds of calls would feel
        return expected if expected > written else written + written // 4

    def _expectations(self, workload: str) -> list[int]:
        """Return what is expected of an output that falls into each step or a later one; 0 where none was seen."""
        known, seen = self._known.get(workload), self._seen.get(workload)
        pairs = zip(known or [0.0] * STEPS, seen or [0.0] * STEPS, strict=True)
        sums = [0.0, *accumulate(sum(pair) for pair in pairs)]
        if sums[-1] < ENOUGH:
            return [EXPECTED_OUTPUT_TOKENS[workload]] * (STEPS + 1)
        return [
            quantile(sums, self._share, step) if sums[-1] - sums[step] >= _SOME else 0
            for step in range(STEPS + 1)
        ]

    def take_seen(self) -> dict[str, list[float]]:
        """Return what was seen since the last call, to be shared."""
        seen, self._seen = self._seen, {}
        self._expected.clear()
        return seen

    def learn(self, known: Mapping[str, list[float]]) -> None:
        """Replace what the fleet knew of these workloads."""
        self._known.update(known)
        self._expected.clear()

    def put_back(self, seen: Mapping[str, list[float]]) -> None:
        """Keep what could not be shared."""
        self._expected.clear()
        for workload, weights in seen.items():
            mine = self._seen.setdefault(workload, [0.0] * STEPS)
            self._seen[workload] = [sum(pair) for pair in zip(mine, weights, strict=True)]
