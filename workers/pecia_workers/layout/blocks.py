"""Builds the blocks of a page, in reading order, from pieces of text with places."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Cell,
    Doubt,
    DoubtReason,
    Line,
    Mark,
    Source,
    mean_confidence,
)
from pecia_workers.layout.aligned import aligned_grids
from pecia_workers.layout.grids import Grid
from pecia_workers.layout.lines import (
    around,
    box_of,
    corners_of,
    cues_of,
    joined,
    levels_of,
    middle,
    rows_of,
    struck_doubts,
)
from pecia_workers.layout.marks import find_marks, signature_lines, with_signs
from pecia_workers.layout.order import reading_order
from pecia_workers.layout.paragraphs import Kinds, printed
from pecia_workers.layout.parting import is_number, looks_double, looks_joined, looks_shifted
from pecia_workers.layout.ruled import Rules, coloured_grids, find_rules, ruled_grids
from pecia_workers.layout.strikes import with_strikes

Row: TypeAlias = Sequence[Line]
"""Pieces of text that stand side by side."""

_PAIR_GAP, _PAIR_WIDTH, _MIN_PAIRS, _MAX_LABELS = 2.0, 4.0, 3, 0.5
"""White space in a row and width of its pieces, in heights of a line; number of rows; share with a label."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of a page, and the doubts about them."""

    blocks: tuple[Block, ...]
    doubts: tuple[Doubt, ...] = ()


def layout(pieces: Sequence[Line], pixels: NDArray[np.uint8], *, source: Source) -> Layout:
    """Return the page's blocks in reading order; every piece is in exactly one of them.

    `pieces` may have any order. `pixels`: the page in RGB, whatever the source of the text.
    """
    if not pieces:
        return Layout(())
    height = float(np.median([piece.box.bottom - piece.box.top for piece in pieces]))
    pieces = with_strikes(pieces, pixels)
    marks = find_marks(pixels, pieces, height, source=source)
    pieces = with_signs(pieces, marks, height)
    rules = find_rules(pixels, height, pieces)
    marks += signature_lines(rules.across, pieces, height)
    found = _found(pieces, rules, height)
    columns = [part for part in found if isinstance(part, list)]
    lines = iter(printed([joined(row) for column in columns for row in column], pixels))
    kinds = Kinds([list(islice(lines, len(column))) for column in columns], pixels, rules)
    blocks = list(_blocks(found, kinds, pieces, source))
    unclear = [part.box for part in found if isinstance(part, Grid) and part.is_unclear]
    doubts = [
        Doubt(
            reason=DoubtReason.TABLE_UNCLEAR,
            box=block.box,
            text=block.text,
            on_value=any(map(str.isdigit, block.text)),
        )
        for block in blocks
        if block.kind is BlockKind.TABLE
        and (
            block.table is None
            or block.box in unclear
            or looks_joined(block.table)
            or looks_double(block.table)
            or looks_shifted(block.table)
        )
    ]
    doubts += chain.from_iterable(_unclear_orders(rows, height) for rows in columns)
    doubts += struck_doubts(blocks)
    return Layout(_with_marks(blocks, marks), tuple(doubts))


def _unclear_orders(column: Sequence[Row], height: float) -> Iterator[Doubt]:
    """Yield rows of two pieces that may equally be two blocks of text side by side.

    They are certainly rows if they start with a label or end with a number.
    """

    def is_pair(row: Row) -> bool:
        return len(row) == 2 and row[1].box.left - row[0].box.right > _PAIR_GAP * height  # noqa: PLR2004

    for are_pairs, group in groupby(column, is_pair):
        rows = list(group)
        if not are_pairs or len(rows) < _MIN_PAIRS:
            continue
        sides = list(zip(*rows, strict=True))
        corners = [corners_of(piece.box for piece in side) for side in sides]
        lefts, _, rights, _ = np.moveaxis(np.array(corners), -1, 0)
        flush = (np.ptp(lefts, axis=1) < height).all()
        long = (np.median(rights - lefts, axis=1) > _PAIR_WIDTH * height).all()
        labels = sum(":" in row[0].text or any(map(str.isdigit, row[1].text)) for row in rows)
        if flush and long and labels < _MAX_LABELS * len(rows):
            lines = [joined(row) for row in rows]
            yield Doubt(
                reason=DoubtReason.ORDER_UNCLEAR,
                box=around(line.box for line in lines),
                text="\n".join(line.text for line in lines),
                on_value=True,  # which belongs to which is not known
            )


def _found(pieces: Sequence[Line], rules: Rules, height: float) -> list[Grid | list[Row]]:
    """Return the tables, and the rows of text between them, in reading order."""
    grids: list[Grid] = []
    for grid in ruled_grids(pieces, rules, height):
        if not any(grid.members & other.members for other in grids):  # of a grid in a cell, the inner one
            grids.append(grid)
    loose = _outside(len(pieces), grids)
    stretches = _ordered([pieces[one] for one in loose], [])
    rows = [[loose[one] for one in row] for row in chain.from_iterable(stretches)]
    aligned = aligned_grids(pieces, rows, rules, height)
    for grid in coloured_grids(pieces, rules, height):  # a ground may be that of some columns alone
        rivals = [other for other in aligned if other.members & grid.members]
        is_largest = all(len(grid.members) >= len(other.members) for other in rivals)
        if is_largest and not any(grid.members & other.members for other in grids):
            aligned = [other for other in aligned if other not in rivals]
            grids.append(grid)
    grids += aligned
    for number, grid in enumerate(grids):
        named = with_names(grid, pieces, set(_outside(len(pieces), grids)), height)
        grids[number] = with_dashes(named, rules, height)
    texts = [pieces[one] for one in _outside(len(pieces), grids)]
    found: list[Grid | list[Row]] = []
    for stretch in _ordered(texts, grids):
        for is_table, some in groupby(stretch, lambda row: row[0] >= len(texts)):
            if is_table:
                found += [grids[one - len(texts)] for [one] in some]
            else:
                found.append([[texts[one] for one in row] for row in some])
    return found


def _blocks(
    found: Sequence[Grid | list[Row]], kinds: Kinds, pieces: Sequence[Line], source: Source
) -> Iterator[Block]:
    texts_of = iter(kinds.columns)
    parts = [part for one in found for part in ([one] if isinstance(one, Grid) else next(texts_of))]
    for part, following in zip(parts, [*parts[1:], []], strict=True):
        if not isinstance(part, Grid):
            kind = kinds.of(part, [] if isinstance(following, Grid) else following)
            level = {BlockKind.TITLE: 1, BlockKind.HEADING: 2}.get(kind)
            yield _block([one.line for one in part], source, kind, level=level)
        elif part.is_form or part.table is None:  # as text in the page's order, or lines alone
            rows = [joined(row) for row in rows_of([pieces[one] for one in sorted(part.members)])]
            kind = BlockKind.TEXT if part.is_form else BlockKind.TABLE
            yield _block(rows, source, kind, table=part.table)
        else:
            further = {"box": part.box, "text": part.table.text, "table": part.table}
            yield _block(part.lines, source, BlockKind.TABLE, **further)


def _with_marks(blocks: Sequence[Block], marks: Sequence[Mark]) -> tuple[Block, ...]:
    """Return the blocks, each with the marks that are nearest to it."""
    if not marks:
        return tuple(blocks)
    left, top, right, bottom = corners_of(block.box for block in blocks if block.box).T
    nearest: list[list[Mark]] = [[] for _ in blocks]
    for mark in sorted(marks, key=lambda mark: (mark.box.top, mark.box.left)):
        x, y = middle(mark.box)
        away = np.maximum(0, np.maximum(left - x, x - right)) + np.maximum(0, np.maximum(top - y, y - bottom))
        nearest[int(away.argmin())].append(mark)
    pairs = zip(blocks, nearest, strict=True)
    return tuple(block.model_copy(update={"marks": tuple(own)}) if own else block for block, own in pairs)


def _ordered(texts: Sequence[Line], grids: Sequence[Grid]) -> list[list[list[int]]]:
    """Return texts and, counted after them, grids in reading order."""
    boxes = corners_of([*(text.box for text in texts), *(grid.box for grid in grids)])
    is_grid = np.arange(len(boxes)) >= len(texts)
    return reading_order(boxes, is_grid, cues_of([*(text.text for text in texts), *("" for _ in grids)]))


def _outside(count: int, grids: Sequence[Grid]) -> list[int]:
    inside = {one for grid in grids for one in grid.members}
    return [one for one in range(count) if one not in inside]


def _block(lines: Sequence[Line], source: Source, kind: BlockKind, **further: Any) -> Block:
    text = "\n".join(line.text for line in lines)
    given = {"box": around(line.box for line in lines), "text": text, **further}
    return Block(kind=kind, lines=tuple(lines), confidence=mean_confidence(lines), source=source, **given)


_NUMBERS, _NAMED, _LINES = 0.6, 0.6, 1.5
"""Share of numbers in the first column, of rows with a name beside them, and most lines of a name."""
_AWAY, _WIDEST = 60.0, 30.0
"""Greatest distance of names from numbers, and their greatest length, in heights of a line."""
_DASH_WIDTH, _DASH_DEPTH = (0.15, 0.9), 0.2
"""Width and depth of a dash, in heights of a line."""


def with_names(grid: Grid, pieces: Sequence[Line], free: AbstractSet[int], height: float) -> Grid:
    """Return a table of numbers with the names beside its rows, to the left of it."""
    table = grid.table
    if table is None or grid.is_form:
        return grid
    first = [cell for cell in table.cells if cell.column == 0 and cell.text]
    if sum(is_number(cell.text) for cell in first) < _NUMBERS * max(1, len(first)):
        return grid
    boxes = [
        around(cell.box for cell in table.cells if cell.row == row and cell.row_span == 1 and cell.box)
        if any(cell.row == row and cell.row_span == 1 for cell in table.cells)
        else None
        for row in range(table.rows)
    ]
    left = min(cell.box.left for cell in table.cells if cell.box)
    beside = [
        number
        for number in sorted(free)
        if left - _AWAY * height < pieces[number].box.right < left + 0.5 * height
        and pieces[number].box.right - pieces[number].box.left < _WIDEST * height
        and grid.box.top < middle(pieces[number].box)[1] < grid.box.bottom
    ]
    rows: dict[int, list[int]] = {}
    for number in beside:
        y = middle(pieces[number].box)[1]
        row = next((row for row, box in enumerate(boxes) if box and box.top <= y <= box.bottom), None)
        if row is not None:
            rows.setdefault(row, []).append(number)
    count = sum(map(len, rows.values()))
    if len(rows) < max(2, _NAMED * table.rows) or count > _LINES * len(rows):
        return grid
    start = min(pieces[number].box.left for number in beside)
    cells: list[Cell] = []
    lines: list[Line] = []
    covered = {
        row
        for cell in table.cells
        if cell.column == 0
        for row in range(cell.row, cell.row + cell.row_span)
        if boxes[row] is None
    }
    for row, box in enumerate(boxes):
        inside = [joined(level) for level in levels_of([pieces[number] for number in rows.get(row, [])])]
        lines += inside
        place = box or grid.box
        cells.append(
            Cell(
                row=row,
                column=0,
                text="\n".join(line.text for line in inside),
                box=None if row in covered else box_of(start, place.top, left, place.bottom),
            )
        )
    moved = [cell.model_copy(update={"column": cell.column + 1}) for cell in table.cells]
    every = sorted([*cells, *moved], key=lambda cell: (cell.row, cell.column))
    members = grid.members | {number for numbers in rows.values() for number in numbers}
    return replace(
        grid,
        box=around([grid.box, *(line.box for line in lines)]),
        table=table.model_copy(update={"columns": table.columns + 1, "cells": tuple(every)}),
        lines=tuple(sorted([*grid.lines, *lines], key=lambda line: (middle(line.box)[1], line.box.left))),
        members=members,
    )


def with_dashes(grid: Grid, rules: Rules, height: float) -> Grid:
    """Return a table with a dash in each cell whose only ink is one: recognition skips isolated strokes."""
    if grid.table is None or grid.is_form:
        return grid
    cells: list[Cell] = []
    lines = list(grid.lines)
    for cell in grid.table.cells:
        dash = None if cell.text or cell.box is None else _dash(cell.box, rules, height)
        if dash:
            lines.append(Line(text="-", box=dash))
            cells.append(cell.model_copy(update={"text": "-"}))
        else:
            cells.append(cell)
    if len(lines) == len(grid.lines):
        return grid
    table = grid.table.model_copy(update={"cells": tuple(cells)})
    return replace(grid, table=table, lines=tuple(lines))


def _dash(cell: Box, rules: Rules, height: float) -> Box | None:
    """Return the place of an isolated dash in a cell, or None if it has other ink, or none."""
    edge = round(0.2 * height)
    top, left = max(0, cell.top + edge), max(0, cell.left + edge)
    ink = np.ascontiguousarray(rules.strokes[top : cell.bottom - edge, left : cell.right - edge])
    if not ink.size or not ink.any():
        return None
    count, _, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    if count != 2:  # noqa: PLR2004  the ground is one
        return None
    x, y, width, depth, _ = stats[1].tolist()
    least, most = _DASH_WIDTH
    is_inside = x > 0 and y > 0 and x + width < ink.shape[1] and y + depth < ink.shape[0]
    if not (is_inside and least * height < width < most * height and depth < _DASH_DEPTH * height):
        return None
    return Box(left=left + x, top=top + y, right=left + x + width, bottom=top + y + depth)
