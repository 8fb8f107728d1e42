"""What happens when, all of it drawn from a seed: the same seed breaks the same things in the same order."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ROOM_BEFORE = 0.04
_ROOM_AFTER = 0.1
"""Shares of the pages before the first fault and after the last."""
_HASTY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault and when it strikes."""

    number: int
    fault: str
    mark: int
    """As soon as so many pages are over."""
    hasty: bool
    """Whether it does not wait until the fleet has recovered from the one before."""


def plan(seed: int, *, pages: int, faults: Sequence[str], count: int) -> list[Strike]:
    """Return `count` strikes of these faults while so many pages are read: each once, in any order, then all again."""
    chance = random.Random(f"plan {seed}")  # noqa: S311  a plan, no secret
    first, last = int(pages * _ROOM_BEFORE), int(pages * (1 - _ROOM_AFTER))
    marks = sorted(chance.randint(first, last) for _ in range(count))
    drawn = _shuffled(chance, faults)
    return [
        Strike(number=number, fault=next(drawn), mark=mark, hasty=number > 0 and chance.random() < _HASTY)
        for number, mark in enumerate(marks)
    ]


def _shuffled(chance: random.Random, faults: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(faults, len(faults))
