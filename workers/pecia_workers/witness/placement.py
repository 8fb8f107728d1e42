"""Misplaced values: on the page, but by the witness in another order, row or column.

Alignment matches a value with an equal one anywhere in its line, so that text may have any order. The meaning of a
value then depends on its place:

1. Values of one line have the same order on both sides: in a range, a telephone number, a date or a table row.
2. A negation is before the same word on both sides.
3. A value of a table cell is within its row and column, judged by the places of their other cells.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from statistics import median
from typing import Final, TypeAlias

from pecia_schemas.blocks import Box
from pecia_workers.layout.lines import around, is_decisive, middle
from pecia_workers.witness.alignment import Alignment

_Place: TypeAlias = tuple[int, int]
Cells: TypeAlias = Mapping[_Place, Sequence[int]]
"""Tokens of each cell, by row and column of a table."""

_Cut: TypeAlias = Mapping[_Place, tuple[int, int]]
"""Extent of each cell of a row or column, across it."""
_Spans: TypeAlias = Mapping[int, _Cut]
"""The extents of each row or column."""

_NEAR: Final = 3
"""Most tokens between a negation and its word on one side, if they are adjacent on the other."""
_LEAST_OTHERS: Final = 3
"""Least number of other cells that show where two rows or columns are."""
_BENEATH, _NOT_BENEATH = 0.5, 0.3
"""Greatest distance of two headings from the middles of their columns, and least distance from those of others, in
units of the distance of two columns."""


def out_of_order(
    aligned: Alignment, lines: Mapping[int, Sequence[int]], rows: Sequence[int], boxes: Sequence[Box]
) -> Iterator[int]:
    """Yield values whose order differs from the witness's, unless they are on successive lines.

    `rows` and `boxes`: row and place of each of the witness's tokens.
    """
    for tokens in lines.values():
        by_row: defaultdict[int, list[int]] = defaultdict(list)
        for one in tokens:
            if aligned.written[one].is_value and aligned.to_seen[one]:
                by_row[rows[aligned.to_seen[one][0]]].append(one)
        for values in by_row.values():
            places = [aligned.to_seen[one][0] for one in values]
            kept = _in_order(places)
            for number, one in enumerate(values):
                if number not in kept and not _is_between_lines(number, places, boxes):
                    yield one
        yield from _moved_negations(aligned, tokens, rows)


def _is_between_lines(number: int, places: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Return whether a value is below or above all tokens that the witness has on its other side, as in the text."""
    own = boxes[places[number]]
    before = [boxes[place] for place in places[:number] if place > places[number]]
    behind = [boxes[place] for place in places[number:] if place < places[number]]
    return all(other.bottom <= middle(own)[1] for other in before) and all(
        own.bottom <= middle(other)[1] for other in behind
    )


def _in_order(places: Sequence[int]) -> set[int]:
    """Return the indices of a longest non-decreasing subsequence."""
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


def misplaced(cells: Cells, boxes: Mapping[_Place, Box], aligned: Alignment) -> Iterator[int]:
    """Yield values of table cells that are in the place of other cells.

    `boxes`: places of cells by the witness.
    """
    first = min((row for row, column in boxes if row and not column), default=1)
    slim = {place for place, box in boxes.items() if _is_slim(box, cells[place], aligned)}
    elsewhere = {place for row in range(first) for place in _heads_elsewhere(row, boxes) if place in slim}
    for axis in range(2):
        spans = _spans(boxes, axis)
        rows = boxes if axis == 0 else [place for place in boxes if place[0] >= first]
        elsewhere.update(place for place in rows if place[0] and _is_elsewhere(place, axis, spans))
    for place in elsewhere:
        yield from (one for one in cells[place] if aligned.written[one].is_value)


def _is_slim(box: Box, tokens: Sequence[int], aligned: Alignment) -> bool:
    """Return whether a box is at most as wide as its characters may be; otherwise its ends are unreliable."""
    signs = sum(len(aligned.written[one].text) for one in tokens)
    return box.right - box.left <= signs * (box.bottom - box.top)


def _spans(boxes: Mapping[_Place, Box], axis: int) -> _Spans:
    spans: defaultdict[int, dict[_Place, tuple[int, int]]] = defaultdict(dict)
    for place, box in boxes.items():
        ends = (box.left, box.right) if axis else (box.top, box.bottom)
        spans[place[axis]][place] = ends
    return spans


def place_equals(
    cells: Cells, doubtful: AbstractSet[int], aligned: Alignment, boxes: Sequence[Box]
) -> Iterator[int]:
    """Match doubtful values, and values equal to them, with equal tokens in their own row and column; yield these.

    The alignment cannot tell one `1` from another: where the witness misses one, that of the next row takes its place.
    `boxes`: of the witness's tokens.
    """
    written = aligned.written
    keys = {written[one].key for tokens in cells.values() for one in tokens if one in doubtful}
    sought = {
        one
        for (_, column), tokens in cells.items()
        for one in tokens
        if column and written[one].key in keys and written[one].is_value and aligned.is_apart(one)
    }
    if not sought:
        return
    known = {
        place: around(there)
        for place, tokens in cells.items()
        if (there := [boxes[other] for one in tokens if one not in sought for other in aligned.to_seen[one]])
    }
    rows, columns = _spans(known, 0), _spans(known, 1)
    free = defaultdict[str, list[int]](list)
    for other, to in enumerate(aligned.to_written):
        if sought.issuperset(to):
            free[aligned.seen[other].key].append(other)
    found: dict[int, int] = {}
    for (row, column), tokens in cells.items():
        beside, above = rows.get(row, {}), columns.get(column, {})
        for one in (one for one in tokens if one in sought):
            alike = free[written[one].key]
            fits = [other for other in alike if _is_in_cell(boxes[other], beside, above)]
            if fits:
                found[one] = next((other for other in fits if other in aligned.to_seen[one]), fits[0])
                alike.remove(found[one])
    for one in {*found, *(one for other in found.values() for one in aligned.to_written[other])}:
        aligned.release(one)
    for one, other in found.items():
        aligned.match((one,), (other,))
    yield from found


def _is_in_cell(box: Box, row: _Cut, column: _Cut) -> bool:
    return _is_among((box.top, box.bottom), row) and _is_among((box.left, box.right), column)


def _is_among(span: tuple[int, int], others: _Cut) -> bool:
    """Return whether an extent overlaps most of the others."""
    return 2 * sum(_overlap(span, other) for other in others.values()) > len(others)


def _is_elsewhere(place: _Place, axis: int, spans: _Spans) -> bool:
    """Return whether a cell is outside of its own row or column, and inside another one.

    A single cell shows the place of a row or column that is empty there.
    """
    own = place[axis]
    span = spans[own][place]
    others = [other for at, other in spans[own].items() if at != place]
    if not others or any(_overlap(span, other) for other in others):
        return False
    return any(
        (len(there) + len(others) >= _LEAST_OTHERS or _moved(place, axis, number) not in there)
        and _is_among(span, there)
        for number, there in spans.items()
        if number != own
    )


def _moved(place: _Place, axis: int, number: int) -> _Place:
    """Return the place of the same column in this row, or of the same row in this column."""
    return (place[0], number) if axis else (number, place[1])


def _heads_elsewhere(row: int, boxes: Mapping[_Place, Box]) -> Iterator[_Place]:
    """Yield the headings of a row that would fit the middles of their columns better if they began at another column.

    A heading spans its own column, with or without the empty ones after it.
    """
    heads = sorted(column for other, column in boxes if other == row)
    if len(heads) == len({column for _, column in boxes}):
        return
    below = _spans({place: box for place, box in boxes.items() if place[0] != row}, 1)
    usual = {column: median(sum(span) / 2 for span in spans.values()) for column, spans in below.items()}
    middles: dict[int, float] = {}
    for column, spans in below.items():
        others = [place for other, place in usual.items() if other != column]
        ends = [span for span in spans.values() if not any(span[0] < place < span[1] for place in others)]
        if ends:  # what reaches over the middle of another column is of both
            middles[column] = (min(start for start, _ in ends) + max(stop for _, stop in ends)) / 2

    def away(head: int, start: int, stop: int) -> float:
        """Return the distance of a heading from the middle of these columns, or of the first."""
        at, _ = middle(boxes[row, head])
        return min(abs(at - (middles[start] + middles[last]) / 2) for last in (start, stop - 1))

    for number, head in enumerate(heads):
        before = heads[number - 1] if number else -1
        stop = heads[number + 1] if number + 1 < len(heads) else max(column for _, column in boxes) + 1
        columns = range(max(before, 0), stop)
        if not middles.keys() >= set(columns):
            continue
        steps = [middles[other] - middles[one] for one, other in pairwise(columns)]
        pitch = median(steps or [0])
        costs = {
            start: away(head, start, stop) + (away(before, before, start) if number else 0.0)
            for start in range(before + 1, stop)
        }
        least = min(costs.values())
        if least <= _BENEATH * pitch and costs[head] - least > _NOT_BENEATH * pitch:
            yield row, head


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two extents overlap by half of the shorter one."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return 2 * shared >= min(one[1] - one[0], other[1] - other[0])
