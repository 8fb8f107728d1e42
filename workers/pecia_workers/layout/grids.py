"""Grids of tables: filled with text, and divided where their text is, even without drawn lines.

Lengths are in heights of a line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Cell, Line, Table
from pecia_workers.layout.lines import around, box_of, joined, levels_of, middle, rows_of, words_of
from pecia_workers.layout.parting import atoms_of, is_number, looks_joined, walls_of

_MIN_FILLED: Final = 0.5
"""Share of a grid's cells with text in them; less is a frame or a picture."""
_LEAST_FILLED: Final = 0.2
"""The same for a table whose head or names are complete."""
_MAX_CUT: Final = 0.4
"""Most pieces crossed by lines; more means a pattern behind text."""
_FRAME_LINES, _FRAME_CELLS = 4, 9
"""Few cells with many lines each are boxes around paragraphs."""
_MIN_UNSPANNED: Final = 0.5
"""Share of a table's cells that are one row high and one column wide; less is a form."""
_MIN_PARTED, _PARTED = 2, 0.4
"""Number and share of text lines with a gap at one place from which their rows are split there."""
_SAME_PITCH: Final = 0.85
"""Step between lines, relative to that between rows, from which lines are separate rows."""
_MIN_SPLIT_ROWS, _MIN_BESIDE = 3, 0.8
"""Lines of text between two ruling lines that are rows, and the share of them with text in several cells."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its place on the page."""

    box: Box
    table: Table | None
    """None: it resembles a table, but its grid is unclear."""
    lines: tuple[Line, ...]
    """Lines of its cells, cell by cell."""
    members: frozenset[int]
    """Indices of the pieces in it."""
    is_form: bool = False
    """Whether it is a grid of fields rather than rows and columns, best read in the order of the page."""
    is_unclear: bool = False
    """Whether another reading of its rows is about as good."""


class Draft:
    """A grid that is being filled."""

    def __init__(self, xs: list[float], ys: list[float], owners: NDArray[np.intp]) -> None:
        self.xs, self.ys, self.owners = xs, ys, owners
        self.content: dict[int, list[Line]] = {}
        self.members: set[int] = set()
        self.cut = 0
        """Number of pieces crossed by lines."""

    def fill(self, pieces: Sequence[Line], near: float) -> None:
        """Put each piece whose middle is inside into its cell; a piece that crosses a line is split there."""
        for number, piece in enumerate(pieces):
            x, y = middle(piece.box)
            if self.xs[0] - near < x < self.xs[-1] + near and self.ys[0] < y < self.ys[-1]:
                self.cut += self._place(piece, near)
                self.members.add(number)

    def _place(self, piece: Line, near: float) -> bool:
        """Put a piece into its cell, or its parts into theirs; return whether it was split."""
        row = int(np.searchsorted(self.ys[1:-1], middle(piece.box)[1]))
        walls = np.flatnonzero(np.diff(self.owners[row])) + 1
        parts = list(cut(piece, [self.xs[wall] for wall in walls], near))
        for part in parts:
            column = int(np.searchsorted(self.xs[1:-1], middle(part.box)[0]))
            self.content.setdefault(int(self.owners[row, column]), []).append(part)
        return len(parts) > 1

    def part(self, height: float) -> None:
        """Split cells at white space or aligned numbers, where no line is drawn.

        For tables with lines only in their head, between groups of rows, or around them.
        """
        pieces = [line for lines in self.content.values() for line in lines]
        atoms = [atom for piece in pieces for atom in atoms_of(piece, height)]
        levels = levels_of(atoms)
        self._add_walls(levels, height)
        self._part_heads(levels, height)
        self._part_cells(levels, height)
        self._part_rows(levels)
        self.content = {}
        for piece in pieces:
            self._place(piece, 0.25 * height)

    def _drop_places(self, narrow: float) -> None:
        """Drop narrow rows and columns without text, as between double rules, and places that divide no cells."""
        for axis, places in enumerate((self.ys, self.xs)):
            for number in reversed(range(len(places) - 1)):
                owners = np.take(self.owners, number, axis)
                is_empty = self.content.keys().isdisjoint(owners.tolist())
                parts_none = number > 0 and np.array_equal(owners, np.take(self.owners, number - 1, axis))
                if parts_none or (is_empty and places[number + 1] - places[number] < narrow):
                    self.owners = np.delete(self.owners, number, axis)
                    del places[max(number, 1)]

    def _add_walls(self, levels: Sequence[Sequence[Line]], height: float) -> None:
        """Add the columns divided by white space."""
        added = [
            (column, wall)
            for column, (left, right) in enumerate(pairwise(self.xs))
            for wall in walls_of(levels, left, right, height)
            if left + height < wall < right - height
        ]
        for column, wall in reversed(added):
            self.xs.insert(column + 1, wall)
            self.owners = np.insert(self.owners, column + 1, self.owners[:, column], axis=1)

    def _bands(self, levels: Sequence[Sequence[Line]]) -> list[int]:
        """Return the row of each level of text."""
        middles = [float(np.mean([middle(piece.box)[1] for piece in level])) for level in levels]
        bands: list[int] = np.searchsorted(self.ys[1:-1], middles).tolist()
        return bands

    def _sides(self, level: Sequence[Line], row: int, column: int, slack: float) -> tuple[int, int, int]:
        """Return how many pieces of a cell are before a wall, across it, and after it."""
        first, last = np.flatnonzero(self.owners[row] == self.owners[row, column])[[0, -1]]
        inside = [piece.box for piece in level if self.xs[first] < middle(piece.box)[0] < self.xs[last + 1]]
        before = sum(box.right < self.xs[column] + slack for box in inside)
        after = sum(box.left > self.xs[column] - slack for box in inside)
        return before, len(inside) - before - after, after

    def _is_merged(self, row: int, column: int) -> bool:
        """Return whether a cell of only this row continues across the wall before this column."""
        owner = self.owners[row, column]
        is_joined = owner == self.owners[row, column - 1]
        return bool(is_joined) and np.count_nonzero((self.owners == owner).any(axis=1)) == 1

    def _divide(self, row: int, column: int) -> None:
        """Split a cell at a wall."""
        behind = np.arange(self.owners.shape[1]) >= column
        self.owners[row, behind & (self.owners[row] == self.owners[row, column])] = self.owners.max() + 1

    def _part_heads(self, levels: Sequence[Sequence[Line]], height: float) -> None:
        """Split a heading of several columns from the lines below it."""
        slack = 0.35 * height
        bands = self._bands(levels)
        for row in reversed(range(len(self.ys) - 1)):
            inside = [level for band, level in zip(bands, levels, strict=True) if band == row]
            parted: dict[int, list[int]] = {}
            for column in range(1, len(self.xs) - 1):
                if not self._is_merged(row, column):
                    continue
                sides = [self._sides(level, row, column, slack) for level in inside]
                across = [number for number, (_, crossing, _) in enumerate(sides) if crossing]
                beside = [number for number, (before, _, after) in enumerate(sides) if before and after]
                if across and beside and across[-1] < beside[0]:
                    parted.setdefault(beside[0], []).append(column)
            if not parted:
                continue
            start = max(parted, key=lambda start: len(parted[start]))
            upper = max(piece.box.bottom for piece in inside[start - 1])
            lower = min(piece.box.top for piece in inside[start])
            below = self.owners[row].copy()
            for owner in {int(self.owners[row, column]) for column in parted[start]}:
                below[below == owner] = max(self.owners.max(), below.max()) + 1
            self.owners = np.insert(self.owners, row + 1, below, axis=0)
            self.ys.insert(row + 1, (upper + lower) / 2)
            for column in parted[start]:
                self._divide(row + 1, column)

    def _part_cells(self, levels: Sequence[Sequence[Line]], height: float) -> None:
        """Split cells of one row where most similar rows have a gap."""
        bands = self._bands(levels)
        for column in range(1, len(self.xs) - 1):
            merged = {row: 0 for row in range(len(self.ys) - 1) if self._is_merged(row, column)}
            for row, level in zip(bands, levels, strict=True):
                if row in merged:
                    before, crossing, after = self._sides(level, row, column, 0.35 * height)
                    if crossing:
                        del merged[row]
                    else:
                        merged[row] += bool(before and after)
            walls = int((self.owners[:, column] != self.owners[:, column - 1]).sum())
            if sum(merged.values()) < max(_MIN_PARTED, _PARTED * len(merged)):
                least = 1 if walls > len(self.owners) / 2 else _MIN_PARTED
                merged = {row: parted for row, parted in merged.items() if parted >= least}
            for row in merged:
                self._divide(row, column)

    def _part_rows(self, levels: Sequence[Sequence[Line]]) -> None:
        """Split rows with several numbers below each other, or with equally many lines in most cells."""
        bands = self._bands(levels)
        for row in reversed(range(len(self.ys) - 1)):
            rows = [level for band, level in zip(bands, levels, strict=True) if band == row]
            starts = self._starts(rows)
            if len(starts) < 2:  # noqa: PLR2004
                continue
            boxes = [
                around(piece.box for level in rows[start:end] for piece in level)
                for start, end in pairwise([*starts, len(rows)])
            ]
            cuts = [(upper.bottom + lower.top) / 2 for upper, lower in pairwise(boxes)]
            alone = [np.count_nonzero((self.owners == owner).any(axis=1)) == 1 for owner in self.owners[row]]
            for number, _ in enumerate(cuts):
                fresh = self.owners[row].copy()
                base = int(self.owners.max()) + 1
                fresh[alone] += base
                self.owners = np.insert(self.owners, row + 1 + number, fresh, axis=0)
            self.ys[row + 1 : row + 1] = cuts

    def _starts(self, rows: Sequence[Sequence[Line]]) -> list[int]:
        """Return the levels of text in one row that start separate rows."""
        columns = [
            {int(np.searchsorted(self.xs[1:-1], middle(piece.box)[0])): piece for piece in level}
            for level in rows
        ]
        numbers = [
            {column for column, piece in level.items() if is_number(piece.text) and piece.text[0] not in "(["}
            for level in columns
        ]  # in brackets stands what belongs to the number above
        counts = [sum(column in level for level in numbers) for column in range(len(self.xs) - 1)]
        if max(counts, default=0) > 1:
            anchors = [
                number for number, level in enumerate(numbers) if any(counts[one] > 1 for one in level)
            ]
        else:
            beside = sum(len(level) > 1 for level in columns)
            if len(rows) <= max(_MIN_SPLIT_ROWS, len(self.ys)) or beside <= _MIN_BESIDE * len(rows):
                return [0]
            anchors = list(range(len(rows)))
        middles = [float(np.mean([middle(piece.box)[1] for piece in level])) for level in rows]
        pitches = [
            middles[after] - middles[before] for before, after in pairwise(anchors) if after == before + 1
        ]
        pitch = min(pitches, default=np.inf)
        starts = [0]
        for anchor, following in pairwise(anchors):
            steps = [lower - upper for upper, lower in pairwise(middles[anchor : following + 1])]
            if min(steps) > _SAME_PITCH * pitch:  # names without values
                starts += range(anchor + 1, following + 1)
            else:  # what stands between two rows of values goes with the nearer one, a second line with the upper one
                starts.append(
                    anchor
                    + 1
                    + max(range(len(steps)), key=lambda step: (round(float(steps[step]) / 4), step))
                )
        return starts

    def ruled_grid(self, narrow: float) -> Grid | None:
        """Return the filled grid if its lines are a table's or form's, rather than frames or a pattern.

        `narrow`: rows and columns without text that are narrower are dropped.
        """
        cells = [np.argwhere(self.owners == owner) for owner in np.unique(self.owners)]
        filled = len(self.content)
        heads = (self.owners[0], self.owners[:, 0])
        has_heads = any(np.mean([owner in self.content for owner in head]) > 0.8 for head in heads)  # noqa: PLR2004
        lines = np.median([len(rows_of(content)) for content in self.content.values()] or [0])
        if (
            len(cells) < 4  # noqa: PLR2004  two by two
            or filled < 3  # noqa: PLR2004
            or self.cut > _MAX_CUT * len(self.members)
            or filled < _LEAST_FILLED * len(cells)
            or (filled < _MIN_FILLED * len(cells) and not (has_heads and len(cells) > _FRAME_CELLS))
            or (lines > _FRAME_LINES and len(cells) < _FRAME_CELLS)
        ):
            return None
        unspanned = sum(len(cell) == 1 for cell in cells)
        self._drop_places(narrow)
        grid = self.grid(is_form=unspanned < _MIN_UNSPANNED * len(cells))
        is_chart = filled < _MIN_FILLED * len(cells) and grid.table is not None and looks_joined(grid.table)
        return None if is_chart else grid

    def grid(self, *, is_form: bool = False, is_unclear: bool = False) -> Grid:
        """Return the filled grid."""
        cells: list[Cell] = []
        lines: list[Line] = []
        for owner in dict.fromkeys(self.owners.ravel().tolist()):
            rows, columns = np.nonzero(self.owners == owner)
            inside = [joined(row) for row in rows_of(self.content.get(owner, []))]
            lines += inside
            text = "\n".join(line.text for line in inside)
            top, bottom = int(rows.min()), int(rows.max()) + 1
            left, right = int(columns.min()), int(columns.max()) + 1
            box = box_of(self.xs[left], self.ys[top], self.xs[right], self.ys[bottom])
            high, wide = bottom - top, right - left
            cells.append(Cell(row=top, column=left, row_span=high, column_span=wide, text=text, box=box))
        outline = box_of(self.xs[0], self.ys[0], self.xs[-1], self.ys[-1])
        return Grid(
            box=around([outline, *(line.box for line in lines)]),
            table=Table(rows=len(self.ys) - 1, columns=len(self.xs) - 1, cells=tuple(cells)),
            lines=tuple(lines),
            members=frozenset(self.members),
            is_form=is_form,
            is_unclear=is_unclear,
        )


def cut(piece: Line, places: Iterable[float], near: float) -> Iterator[Line]:
    """Yield the parts of a piece split at these places, between its words."""
    cuts = [place for place in places if piece.box.left + near < place < piece.box.right - near]
    words = words_of(piece) if cuts else ()
    sides = np.searchsorted(cuts, [middle(word.box)[0] for word in words])
    parts = [[word for word, of in zip(words, sides, strict=True) if of == side] for side in np.unique(sides)]
    if len(parts) < 2:  # noqa: PLR2004
        yield piece
        return
    for part in parts:
        text, box = " ".join(word.text for word in part), around(word.box for word in part)
        known = tuple(part) if piece.words else ()
        yield Line(text=text, box=box, confidence=piece.confidence, words=known)
