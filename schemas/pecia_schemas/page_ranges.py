"""Which pages of a document are meant, as people write it: `1-3,7,9-`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Self

from pecia_schemas import lengths

_RANGE: Final = re.compile(r"\s*([0-9]{1,9})\s*(-)?\s*([0-9]{1,9})?\s*", re.ASCII)
_FORM: Final = "pages are written like '1-3,7,9-': numbers from 1, ranges that go up, commas between them"


@dataclass(frozen=True, slots=True)
class PageRanges:
    """Pages counted from 1, in their order, each once."""

    ranges: tuple[tuple[int, int | None], ...]
    """First and last page of each; the last may be open."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what the text means, however it is ordered. Raises `ValueError`."""
        if len(text) > lengths.PAGES:
            message = f"pages have at most {lengths.PAGES:,} characters"
            raise lengths.invalid(message)
        return cls(tuple(_folded(sorted(map(_parsed, text.split(",")), key=lambda one: one[0]))))

    def __str__(self) -> str:
        return ",".join(_written(*one) for one in self.ranges)

    @property
    def last(self) -> int | None:
        """The last page; None if there is none."""
        return self.ranges[-1][1]

    def missing_from(self, count: int) -> int | None:
        """Return the first of the pages that a document of so many pages does not have; None if it has them all."""
        beyond = [
            max(first, count + 1)
            for first, last in self.ranges
            if first > count or (last is not None and last > count)
        ]
        return beyond[0] if beyond else None

    def length(self, count: int) -> int:
        """Return how many they are in a document of so many pages, which has them all."""
        return sum((count if last is None else last) - first + 1 for first, last in self.ranges)

    def indices(self, count: int) -> Iterator[int]:
        """Yield them, counted from 0, in a document of so many pages, which has them all."""
        for first, last in self.ranges:
            yield from range(first - 1, count if last is None else last)


def _parsed(text: str) -> tuple[int, int | None]:
    found = _RANGE.fullmatch(text)
    if found is None or (found[3] and not found[2]):
        raise lengths.invalid(_FORM)
    first = int(found[1])
    last = int(found[3]) if found[3] else None if found[2] else first
    if first < 1 or (last is not None and last < first):
        raise lengths.invalid(_FORM)
    return first, last


def _folded(ranges: list[tuple[int, int | None]]) -> Iterator[tuple[int, int | None]]:
    """Yield the ranges, sorted by their first page, with those as one that overlap or touch."""
    first, last = ranges[0]
    for other, end in ranges[1:]:
        if last is None or other <= last + 1:
            last = None if last is None or end is None else max(last, end)
        else:
            yield first, last
            first, last = other, end
    yield first, last


def _written(first: int, last: int | None) -> str:
    if last is None:
        return f"{first}-"
    return str(first) if first == last else f"{first}-{last}"


def written(ordinals: Collection[int], most: int) -> str:
    """Return pages, counted from 0, as ranges: as many of the first ones as so many characters hold."""
    runs: list[list[int]] = []
    for number in sorted(one + 1 for one in ordinals):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(_written(*run) for run in runs)
    return text if len(text) <= most else text[:most].rpartition(",")[0]
