"""Tables with only horizontal ruling lines: around them, below their head, between groups of rows, or all rows."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Final

import numpy as np

from pecia_schemas.blocks import Line
from pecia_workers.layout.aligned import FIELD, aligned_grid
from pecia_workers.layout.grids import Grid
from pecia_workers.layout.lines import levels_of, middle
from pecia_workers.layout.parting import atoms_of, is_number
from pecia_workers.layout.ruled import Rule, Rules, segments

_LEAST: Final = 6.0
"""Least length of a line of a table, in heights of a text line, as are the next two."""
_SAME, _BROKEN = 1.0, 1.5
"""Greatest difference of the ends of lines of one table, and gap in a line drawn column by column."""
_NEAR, _CLOSE = 2.0, 1.2
"""Greatest white space to the next row below the last line, and below one that has rows of values above."""
_LONG, _PROSE = 0.6, 0.34
"""Width of a piece of prose, relative to the lines; share of prose in a possible table."""
_HEADING: Final = 0.25
"""Indent of a heading of several columns, relative to the width of the lines."""
_PROSE_WIDTH, _NUMBERS = 7.0, 0.2
"""Median width of lines of prose in columns, and share of numbers in a table with such long cells."""
_MIN_LEVELS: Final = 3


def stacked_grids(pieces: Sequence[Line], free: AbstractSet[int], rules: Rules, height: float) -> list[Grid]:
    """Return the tables between lines with equal starts and ends. `free`: pieces in no other table."""
    known = {id(pieces[number]): number for number in free}
    grids: list[Grid] = []
    for left, right, ys in _stacks(rules, height):
        taken = {number for grid in grids for number in grid.members}
        inside = [
            pieces[number]
            for number in sorted(free - taken)
            if left - _SAME * height < pieces[number].box.left
            and pieces[number].box.right < right + _SAME * height
        ]
        for top, bottom in _regions(inside, left, right, ys, height):
            levels = levels_of([piece for piece in inside if top < middle(piece.box)[1] < bottom])
            if bottom == ys[-1]:
                is_closed = sum(any(is_number(one.text) for one in level) for level in levels) >= _MIN_LEVELS
                below = levels_of([piece for piece in inside if middle(piece.box)[1] > bottom])
                near, columns = (_CLOSE if is_closed else _NEAR) * height, max(map(len, levels), default=2)
                levels += _following(below, bottom, near, columns, is_closed=is_closed)
            beside = [pieces[number] for number in free if pieces[number].box.right < left + _SAME * height]
            beside = [piece for piece in beside if top < middle(piece.box)[1] < bottom]
            if len(levels_of(beside)) > len(levels) / 2:
                continue  # lines above and below sums, whose names stand beside them
            levels = _trimmed(levels, left, right)
            if len(levels) < _MIN_LEVELS or _is_prose(levels, height):
                continue
            run = [[known[id(piece)] for piece in level] for level in levels]
            grid = aligned_grid(pieces, run, rules, height)
            if grid is not None and grid.table is not None:
                grids.append(grid)
    return grids


def _stacks(rules: Rules, height: float) -> Iterator[tuple[float, float, list[float]]]:
    """Yield the start and end of several lines of equal width, and their places."""
    joined: list[Rule] = []
    for y, left, right in sorted(segments(rules.across, 0, 0)):
        for number, (other, start, end) in enumerate(joined):
            if abs(other - y) < 0.3 * height and max(left - end, start - right) < _BROKEN * height:
                joined[number] = (other, min(start, left), max(end, right))
                break
        else:
            joined.append((y, left, right))
    stacks: list[list[Rule]] = []
    for rule in sorted(rule for rule in joined if rule[2] - rule[1] > _LEAST * height):
        for stack in stacks:
            if all(abs(rule[end] - stack[0][end]) < _SAME * height for end in (1, 2)):
                stack.append(rule)
                break
        else:
            stacks.append([rule])
    for stack in stacks:
        ys = [stack[0][0]]
        ys += [rule[0] for above, rule in pairwise(stack) if rule[0] - above[0] > 0.5 * height]
        if len(ys) > 1:
            yield stack[0][1], stack[0][2], ys


def _regions(
    inside: Sequence[Line], left: float, right: float, ys: Sequence[float], height: float
) -> Iterator[tuple[float, float]]:
    """Yield the first and last line between which text is arranged like a table."""
    start: float | None = None
    for top, bottom in [*pairwise(ys), (ys[-1], ys[-1])]:
        levels = levels_of([piece for piece in inside if top < middle(piece.box)[1] < bottom])
        prose = sum(
            piece.box.right - piece.box.left > _LONG * (right - left) for level in levels for piece in level
        )
        several = sum(
            len([atom for piece in level for atom in atoms_of(piece, height)]) > 1 for level in levels
        )
        texts = [piece.text for level in levels for piece in level]
        fields = sum(bool(FIELD.search(text)) for text in texts)  # as those of a patient, above the table
        is_table = prose <= _PROSE * len(levels) and 2 * fields <= len(texts)
        if levels and is_table and (several or len(levels) == 1):
            start = top if start is None else start
        elif start is not None:
            yield start, top
            start = None


def _trimmed(levels: list[list[Line]], left: float, right: float) -> list[list[Line]]:
    """Return rows without lines of prose above and below them, between the same ruling lines."""
    several = [number for number, level in enumerate(levels) if len(level) > 1]
    if not several:
        return []
    first, last = several[0], several[-1]
    while first and levels[first - 1][0].box.left > left + _HEADING * (right - left):
        first -= 1
    while last + 1 < len(levels):
        box = levels[last + 1][0].box
        if box.right - box.left > _LONG * (right - left):
            break
        last += 1
    return levels[first : last + 1]


def _is_prose(levels: Sequence[Sequence[Line]], height: float) -> bool:
    """Return whether these are lines of several columns of prose rather than cells."""
    texts = [piece for level in levels for piece in level]
    numbers = sum(is_number(piece.text) for piece in texts)
    width = float(np.median([piece.box.right - piece.box.left for piece in texts]))
    return width > _PROSE_WIDTH * height and numbers < _NUMBERS * len(texts)


def _following(
    below: Sequence[list[Line]], bottom: float, near: float, columns: int, *, is_closed: bool
) -> list[list[Line]]:
    """Return the rows below the last line of a table in which only the head has lines, or the last row.

    `is_closed`: rows of values are above that line, so that only further values continue the table; otherwise the first
    row may name a group of rows, if `columns` are below it.
    """
    rows: list[list[Line]] = []
    for level, after in zip(below, [*below[1:], []], strict=False):
        is_group = len(level) == 1 and len(after) >= columns and not is_closed
        has_numbers = any(is_number(piece.text) for piece in level[1:])
        is_row = has_numbers if is_closed else len(level) > 1 or bool(rows) or is_group
        ends = len(level) == 1 and level[0].text.rstrip().endswith((".", ":"))
        if min(piece.box.top for piece in level) - bottom > near or not is_row or ends:
            break
        rows.append(level)
        bottom = max(piece.box.bottom for piece in level)
    while rows and len(rows[-1]) == 1:
        rows.pop()
    return rows
