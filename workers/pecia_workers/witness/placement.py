"""Values that are on the page, and that a witness reads in another place: in another order, row or column.

Alignment lays a value upon its like wherever its line has it, so that a page may be written in whatever order. What a
value is about is then judged by its place:

1. Values of one line stand in one order on both sides: in a range, a telephone number, a date or a row of a table.
2. A negation stands before the same word on both sides.
3. A value of a table's cell stands within its row and its column, as the other cells of these have their places.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from pecia_schemas.blocks import Box
from pecia_workers.layout.lines import is_decisive
from pecia_workers.witness.alignment import Alignment

Cells = Mapping[tuple[int, int], tuple[Box, Sequence[int]]]
"""By row and column of a table, where a cell stands by the witness, and its tokens."""

_Spans = Mapping[int, Mapping[tuple[int, int], tuple[int, int]]]
"""Of the cells of each row, or column, where they begin and end across it."""

_NEAR: Final = 3
"""Tokens from a negation to its word on one side, if it is the next on the other."""
_LEAST_OTHERS: Final = 3
"""Cells of two rows or columns that show where these are."""


def out_of_order(
    aligned: Alignment, lines: Mapping[int, Sequence[int]], rows: Sequence[int]
) -> Iterator[int]:
    """Yield values that stand in another order than the witness has them. `rows`: of which row its tokens are."""
    for tokens in lines.values():
        by_row: defaultdict[int, list[int]] = defaultdict(list)
        for one in tokens:
            if aligned.written[one].is_value and aligned.to_seen[one]:
                by_row[rows[aligned.to_seen[one][0]]].append(one)
        for values in by_row.values():
            kept = _in_order([aligned.to_seen[one][0] for one in values])
            yield from (one for number, one in enumerate(values) if number not in kept)
        yield from _moved_negations(aligned, tokens, rows)


def _in_order(places: Sequence[int]) -> set[int]:
    """Return the numbers of the longest run of places that do not fall."""
    least: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, place in enumerate(places):
        at = bisect_left(least, place + 1)
        before.append(ends[at - 1] if at else -1)
        least[at : at + 1], ends[at : at + 1] = [place], [number]
    kept, number = set(), ends[-1] if ends else -1
    while number >= 0:
        kept.add(number)
        number = before[number]
    return kept


def _moved_negations(aligned: Alignment, tokens: Sequence[int], rows: Sequence[int]) -> Iterator[int]:
    for one, following in pairwise(tokens):
        to, then = aligned.to_seen[one], aligned.to_seen[following]
        if not to or not then or rows[to[-1]] != rows[then[0]]:
            continue
        if is_decisive(aligned.written[one].text) and not 0 < then[0] - to[-1] <= _NEAR:
            yield one


def misplaced(cells: Cells, aligned: Alignment) -> Iterator[int]:
    """Yield values of a table's cells, but for those of its first row, that stand in the place of others."""
    first = min((row for row, column in cells if row and not column), default=0)
    for axis, sides in enumerate((("top", "bottom"), ("left", "right"))):
        spans: defaultdict[int, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
        for place, (box, _) in cells.items():
            spans[place[axis]][place] = getattr(box, sides[0]), getattr(box, sides[1])
        for place, (_, tokens) in cells.items():
            values = [one for one in tokens if aligned.written[one].is_value]
            is_head = axis == 1 and place[0] < first
            is_judged = place[0] and values and not (is_head and _is_amid(place, spans))
            if is_judged and _is_elsewhere(place, place[axis], spans):
                yield from values


def _is_elsewhere(place: tuple[int, int], own: int, spans: _Spans) -> bool:
    """Return whether a cell stands beside all others of its row or column, and among those of another one."""
    span = spans[own][place]
    others = [other for at, other in spans[own].items() if at != place]
    if not others or any(_overlap(span, other) for other in others):
        return False
    return any(
        len(there) + len(others) >= _LEAST_OTHERS
        and 2 * sum(_overlap(span, other) for other in there.values()) > len(there)
        for number, there in spans.items()
        if number != own
    )


def _is_amid(place: tuple[int, int], spans: _Spans) -> bool:
    """Return whether a cell stands above the middle of its column and the empty ones that follow it in its row."""
    row, column = place
    end = min(
        (other for other in spans if other > column and (row, other) in spans[other]), default=max(spans) + 1
    )
    below = [span for other in range(column, end) for at, span in spans.get(other, {}).items() if at != place]
    left, right = spans[column][place]
    return left < (min(start for start, _ in below) + max(stop for _, stop in below)) / 2 < right


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two stretches share half of the shorter one."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return 2 * shared >= min(one[1] - one[0], other[1] - other[0])
