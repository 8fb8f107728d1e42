"""The grid of a table while its cells are filled with pieces of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Cell, Line, Table
from pecia_workers.reading.lines import around, joined, middle, rows_of, words_of

_MIN_FILLED: Final = 0.5
"""Share of a grid's cells with text in them; less is a frame or a picture."""
_MAX_CUT: Final = 0.4
"""Share of its pieces that lines run through; more is a pattern behind text."""
_FRAME_LINES, _FRAME_CELLS = 4, 9
"""Few cells with many lines each are boxes round paragraphs."""
_MIN_UNSPANNED: Final = 0.5
"""Share of a table's cells that are one row high and one column wide; less is a form."""
_MIN_SPLIT_ROWS, _MIN_BESIDE = 3, 0.8
"""Lines of text between two ruling lines that are rows, and the share of them with text in several cells."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as it stands on the page."""

    box: Box
    table: Table | None
    """None: it looks like a table, but its grid is not clear."""
    lines: tuple[Line, ...]
    """Those of its cells, cell by cell."""
    members: frozenset[int]
    """Which pieces its text is of."""
    is_form: bool = False
    """A grid of fields rather than of rows and columns: its text is best read as the page has it."""


class Draft:
    """A grid that is being filled."""

    def __init__(self, xs: list[float], ys: list[float], owners: NDArray[np.intp]) -> None:
        self.xs, self.ys, self.owners = xs, ys, owners
        self.content: dict[int, list[Line]] = {}
        self.members: set[int] = set()
        self.cut = 0
        """How many pieces lines run through."""

    def fill(self, pieces: Sequence[Line], near: float) -> None:
        """Put each piece whose middle is inside into its cell; what runs through a line is cut there."""
        for number, piece in enumerate(pieces):
            x, y = middle(piece.box)
            if self.xs[0] - near < x < self.xs[-1] + near and self.ys[0] < y < self.ys[-1]:
                row = int(np.searchsorted(self.ys[1:-1], y))
                walls = np.flatnonzero(np.diff(self.owners[row])) + 1
                parts = list(cut(piece, [self.xs[wall] for wall in walls], near))
                self.cut += len(parts) > 1
                for part in parts:
                    column = int(np.searchsorted(self.xs[1:-1], middle(part.box)[0]))
                    self.content.setdefault(int(self.owners[row, column]), []).append(part)
                self.members.add(number)

    def ruled_grid(self) -> Grid | None:
        """Return it if its lines are those of a table or a form, rather than of frames or a pattern."""
        cells = [np.argwhere(self.owners == owner) for owner in np.unique(self.owners)]
        filled = len(self.content)
        heads = (self.owners[0], self.owners[:, 0])
        has_heads = any(np.mean([owner in self.content for owner in head]) > 0.8 for head in heads)  # noqa: PLR2004
        lines = np.median([len(rows_of(content)) for content in self.content.values()] or [0])
        if (
            len(cells) < 4  # noqa: PLR2004  two by two
            or filled < 3  # noqa: PLR2004
            or self.cut > _MAX_CUT * len(self.members)
            or (filled < _MIN_FILLED * len(cells) and not (has_heads and len(cells) > _FRAME_CELLS))
            or (lines > _FRAME_LINES and len(cells) < _FRAME_CELLS)
        ):
            return None
        unspanned = sum(len(cell) == 1 for cell in cells)
        if unspanned >= _MIN_UNSPANNED * len(cells):
            self._split_rows()
        return self.grid(is_form=unspanned < _MIN_UNSPANNED * len(cells))

    def _split_rows(self) -> None:
        """Part rows that no line parts, as in a table with lines round its head and its body alone."""
        for row in reversed(range(len(self.ys) - 1)):
            owners = self.owners[row]
            if (np.count_nonzero(np.isin(self.owners, owners), axis=1) > 0).sum() > 1:
                continue
            rows = rows_of([line for owner in np.unique(owners) for line in self.content.get(int(owner), [])])
            beside = sum(len(line) > 1 for line in rows)
            if len(rows) > max(_MIN_SPLIT_ROWS, len(self.ys)) and beside > _MIN_BESIDE * len(rows):
                self._split_row(row, rows)

    def _split_row(self, row: int, rows: list[list[Line]]) -> None:
        middles = [np.mean([middle(line.box)[1] for line in one]) for one in rows]
        cuts = [float(upper + lower) / 2 for upper, lower in pairwise(middles)]
        fresh = self.owners.max() + 1 + np.arange(len(cuts))[:, None] * self.owners.size + self.owners[row]
        for owner in np.unique(self.owners[row]).tolist():
            for line in self.content.pop(owner, []):
                place = int(np.searchsorted(cuts, middle(line.box)[1]))
                key = owner if place == 0 else int(fresh[place - 1][self.owners[row] == owner][0])
                self.content.setdefault(key, []).append(line)
        self.owners = np.insert(self.owners, row + 1, fresh, axis=0)
        self.ys[row + 1 : row + 1] = cuts

    def grid(self, *, is_form: bool = False) -> Grid:
        """Return it as it is filled."""
        cells: list[Cell] = []
        lines: list[Line] = []
        for owner in dict.fromkeys(self.owners.ravel().tolist()):
            rows, columns = np.nonzero(self.owners == owner)
            inside = [joined(row) for row in rows_of(self.content.get(owner, []))]
            lines += inside
            top, bottom = int(rows.min()), int(rows.max()) + 1
            left, right = int(columns.min()), int(columns.max()) + 1
            cells.append(
                Cell(
                    row=top,
                    column=left,
                    row_span=bottom - top,
                    column_span=right - left,
                    text="\n".join(line.text for line in inside),
                    box=_box(self.xs[left], self.ys[top], self.xs[right], self.ys[bottom]),
                )
            )
        return Grid(
            box=around(
                [_box(self.xs[0], self.ys[0], self.xs[-1], self.ys[-1]), *(line.box for line in lines)]
            ),
            table=Table(rows=len(self.ys) - 1, columns=len(self.xs) - 1, cells=tuple(cells)),
            lines=tuple(lines),
            members=frozenset(self.members),
            is_form=is_form,
        )


def cut(piece: Line, places: Iterable[float], near: float) -> Iterator[Line]:
    """Yield the parts of a piece that runs through these places, cut between its words."""
    cuts = [place for place in places if piece.box.left + near < place < piece.box.right - near]
    words = words_of(piece) if cuts else ()
    sides = np.searchsorted(cuts, [middle(word.box)[0] for word in words])
    parts = [[word for word, of in zip(words, sides, strict=True) if of == side] for side in np.unique(sides)]
    if len(parts) < 2:  # noqa: PLR2004
        yield piece
        return
    for part in parts:
        yield Line(
            text=" ".join(word.text for word in part),
            box=around(word.box for word in part),
            confidence=piece.confidence,
            words=tuple(part) if piece.words else (),
        )


def _box(left: float, top: float, right: float, bottom: float) -> Box:
    return Box(left=round(left), top=round(top), right=round(right), bottom=round(bottom))
