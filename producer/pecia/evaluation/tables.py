"""Compares read tables with true ones: by pairs of neighbouring cells, and by cells in their place.

Pairs of neighbours tolerate a missing row and penalise joined cells; a missing table counts as wrong: M. Göbel, T.
Hassan, E. Oro, G. Orsi, "A Methodology for Evaluating Algorithms for Table Understanding in PDF Documents", DocEng
(2012).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple, TypeAlias

from pecia.evaluation.metrics import Share, plain
from pecia_schemas.blocks import Cell, Doubt, DoubtReason, Table

Pair: TypeAlias = tuple[str, str, str]
"""`right` or `below`, the text of a cell, and that of its neighbour in this direction."""

_NUMERIC: Final = re.compile(r"\W*\d[\d\W]*")
_LEADER: Final = re.compile(r"\.{3,}")
_HALF: Final = 0.5


class Overlap(NamedTuple):
    """Number of read pairs that are true, of all read pairs and of all true pairs."""

    right: int = 0
    read: int = 0
    true: int = 0

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall, or None without pairs."""
        return 2 * self.right / (self.read + self.true) if self.read + self.true else None


def adjacency(read: Sequence[Table], true: Sequence[Table]) -> Overlap:
    """Return how many pairs of neighbouring cells agree. Empty cells between neighbours are skipped."""
    pairs, expected = (Counter(chain.from_iterable(map(_pairs, tables))) for tables in (read, true))
    return Overlap((pairs & expected).total(), pairs.total(), expected.total())


def in_place(read: Sequence[Table], true: Sequence[Table]) -> list[tuple[Share, Share]]:
    """Return, for each true table, the cells with text in the right row and column: all, and those with numbers.

    Each true table is compared with the read table that shares most cells with it; each read table is used once.
    """
    remaining = [_texts(table) for table in read]
    shares: list[tuple[Share, Share]] = []
    for expected in map(_texts, true):
        best = max(remaining, key=lambda table: len(table & expected), default=set())
        right = best & expected
        if right:
            remaining.remove(best)
        numeric = [_is_numeric(text) for _, _, text in expected]
        numbers = sum(_is_numeric(text) for _, _, text in right)
        shares.append((Share(len(right), len(expected)), Share(numbers, sum(numeric))))
    return shares


def destroyed(shares: Sequence[Share], doubts: Sequence[Doubt]) -> Share:
    """Return the undoubted tables with less than half of their cells in place, out of all tables of the page."""
    doubted = any(doubt.reason is DoubtReason.TABLE_UNCLEAR for doubt in doubts)
    lost = sum(share.part < _HALF * share.whole for share in shares)
    return Share(0 if doubted else lost, len(shares))


def _pairs(table: Table) -> Iterator[Pair]:
    """Yield the pairs of each cell with text and its neighbours on the right and below, each pair once."""
    owners: dict[tuple[int, int], Cell] = {}
    for cell in table.cells:
        if _plain(cell.text):
            rows = range(cell.row, cell.row + cell.row_span)
            columns = range(cell.column, cell.column + cell.column_span)
            owners |= {(row, column): cell for row in rows for column in columns}
    by_row, by_column = sorted(owners), sorted(owners, key=lambda place: place[::-1])
    for way, line, places in (("right", 0, by_row), ("below", 1, by_column)):
        neighbours = {
            (owners[first], owners[second]): None
            for first, second in pairwise(places)
            if first[line] == second[line] and owners[first] is not owners[second]
        }
        for one, other in neighbours:
            yield way, _plain(one.text), _plain(other.text)


def _texts(table: Table) -> set[tuple[int, int, str]]:
    """Return the texts of a table with their rows and columns, counted from the first row and column with text."""
    filled = [(cell.row, cell.column, text) for cell in table.cells if (text := _plain(cell.text))]
    top = min((row for row, _, _ in filled), default=0)
    left = min((column for _, column, _ in filled), default=0)
    return {(row - top, column - left, text) for row, column, text in filled}


def _is_numeric(text: str) -> bool:
    return _NUMERIC.fullmatch(text) is not None


def _plain(text: str) -> str:
    """Return a text without white space and leaders."""
    return _LEADER.sub("", plain(text).replace(" ", ""))
