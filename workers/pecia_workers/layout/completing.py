"""What belongs to a table and stands outside its grid or was not read: names beside its rows, dashes in empty cells."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import cv2
import numpy as np

from pecia_schemas.blocks import Box, Cell, Line
from pecia_workers.layout.grids import Grid
from pecia_workers.layout.lines import around, box_of, joined, middle
from pecia_workers.layout.parting import is_number_text, levels_of
from pecia_workers.layout.ruled import Rules

_NUMBERS, _NAMED, _LINES = 0.6, 0.6, 1.5
"""Share of numbers in the first column, of rows with a name beside them, and how many lines these have at most."""
_AWAY, _WIDEST = 60.0, 30.0
"""How far names stand from the numbers, and how long they are, in heights of a line."""
_DASH_WIDTH, _DASH_DEPTH = (0.15, 0.9), 0.2
"""Width and depth of a dash, in heights of a line."""


def with_names(grid: Grid, pieces: Sequence[Line], free: AbstractSet[int], height: float) -> Grid:
    """Return a table of numbers with the names that stand level with its rows, to the left of it."""
    table = grid.table
    if table is None or grid.is_form:
        return grid
    first = [cell for cell in table.cells if cell.column == 0 and cell.text]
    if sum(is_number_text(cell.text) for cell in first) < _NUMBERS * max(1, len(first)):
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
    """Return a table with a dash in each cell whose only ink is one: recognition passes over a stroke by itself."""
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
    """Return where a dash stands alone in a cell; None if there is other ink, or none."""
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
