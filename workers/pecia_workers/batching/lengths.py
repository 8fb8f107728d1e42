"""How long the output of a workload is: learned from what was written, forgetting slowly.

Lengths are counted on a logarithmic grid, four steps to the doubling, so that an expectation is at most a fifth too
high and a count of many workers is the sum of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pecia_schemas.cost import EXPECTED_OUTPUT_TOKENS

STEPS: Final = 69
"""Steps of the grid; the last ends at 131,072 tokens."""
HALF_LIFE: Final = 2_000
"""Observations after which an older one counts half."""
ENOUGH: Final = 20
"""Observations before what was learned is believed."""
_STEPS_PER_DOUBLING: Final = 4


def step_of(tokens: int) -> int:
    """Return the step that a length falls into."""
    return min(STEPS - 1, max(0, math.ceil(math.log2(max(1, tokens)) * _STEPS_PER_DOUBLING)))


def length_of(step: int) -> int:
    """Return the longest length of a step."""
    return math.floor(2 ** (step / _STEPS_PER_DOUBLING) + 1e-9)


def quantile(weights: list[float], share: float) -> int:
    """Return the length that `share` of what was counted does not exceed. There must be something."""
    wanted, seen = share * sum(weights), 0.0
    for step, weight in enumerate(weights):
        seen += weight
        if weight and seen >= wanted - 1e-9:
            return length_of(step)
    return length_of(max(step for step, weight in enumerate(weights) if weight))


class LearnedLengths:
    """What one worker knows: what the fleet has learned, and what it has seen itself since."""

    def __init__(self, share: float) -> None:
        """Expect the length that `share` of a workload's output does not exceed."""
        self._share = share
        self._known: dict[str, list[float]] = {}
        self._seen: dict[str, list[float]] = {}

    def observe(self, workload: str, tokens: int) -> None:
        """Take note of an output that came to its own end."""
        self._seen.setdefault(workload, [0.0] * STEPS)[step_of(tokens)] += 1

    def expected(self, workload: str) -> int:
        """Return the length to reckon with, in tokens."""
        known, seen = self._known.get(workload), self._seen.get(workload)
        weights = [sum(pair) for pair in zip(known or [0.0] * STEPS, seen or [0.0] * STEPS, strict=True)]
        if sum(weights) < ENOUGH:
            return EXPECTED_OUTPUT_TOKENS[workload]
        return quantile(weights, self._share)

    def take_seen(self) -> dict[str, list[float]]:
        """Return what was seen since the last call, to be shared."""
        seen, self._seen = self._seen, {}
        return seen

    def learn(self, known: Mapping[str, list[float]]) -> None:
        """Replace what the fleet knew of these workloads."""
        self._known.update(known)

    def put_back(self, seen: Mapping[str, list[float]]) -> None:
        """Keep what could not be shared."""
        for workload, weights in seen.items():
            mine = self._seen.setdefault(workload, [0.0] * STEPS)
            self._seen[workload] = [sum(pair) for pair in zip(mine, weights, strict=True)]
