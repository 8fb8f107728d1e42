"""Tables: a grid from ruling lines, or from how pieces of text line up where no lines are drawn.

Lengths are in heights of a line, as in `order`. Needs OpenCV (pecia[cpu]).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Cell, Line, Table
from pecia_workers.reading.lines import Mask, around, joined, middle, rows_of, words_of
from pecia_workers.reading.marks import SIGNS

Rule: TypeAlias = tuple[float, float, float]
"""Where a ruling line lies, and from where to where it goes."""

_CONTRAST: Final = 16
"""Grey levels by which a ruling line differs from what is above and below it."""
_RUN_ACROSS, _RUN_DOWN = 2.5, 1.3
"""Shortest ruling lines; no letter has such long strokes."""
_MIN_FILLED: Final = 0.5
"""Share of a grid's cells with text in them; less is a frame or a picture."""
_MAX_CUT: Final = 0.4
"""Share of its pieces that lines run through; more is a pattern behind text."""
_FRAME_LINES, _FRAME_CELLS = 4, 9
"""Few cells with many lines each are boxes round paragraphs."""
_MIN_UNSPANNED: Final = 0.5
"""Share of a table's cells that are one row high and one column wide; less is a form."""
_MIN_ROWS, _MIN_COLUMNS = 3, 2
_NEAR: Final = 2.0
"""Widest white space between two rows of a table without ruling lines."""
_GAP: Final = 0.3
"""Narrowest white space between its columns."""
_CROSSED: Final = 0.12
"""Share of its rows that may cross that space, such as a heading of two columns."""
_MAX_CELL: Final = 12.0
"""Median length of its pieces; longer ones are prose."""
_JUMP: Final = 1.3
"""How much farther it is to the next row than to the next line of a cell."""
_PITCH: Final = 1.6
"""Widest step from line to line of one cell."""
_MAX_OPTIONS: Final = 0.3
"""Share of its pieces that are boxes to be ticked with their labels."""
_UNCLEAR_PIECES: Final = 3
"""Pieces a row from which rows look like a table, though no white space goes down between them."""
_NUMBER: Final = re.compile(r"[^\w]*\d[\d.,:/%()\s+-]*[^\w]*|[-\u2013\u2014]")
_SIGN: Final = re.compile(r"[^\w\s]{1,2}")


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


# Ruling lines


@dataclass(frozen=True, slots=True)
class Rules:
    """The ruling lines of a page, as masks of its pixels."""

    across: Mask
    down: Mask

    def between(self, upper: float, lower: float, left: float, right: float) -> bool:
        """Return whether a line goes across at least half of this white space."""
        strip = self.across[
            max(0, round(upper)) : max(0, round(lower)) + 1, max(0, round(left)) : round(right)
        ]
        return bool(strip.size) and float(strip.any(axis=0).mean()) > 0.5  # noqa: PLR2004


def find_rules(pixels: NDArray[np.uint8], height: float) -> Rules:
    """Return the lines that are thin, long and darker than the ground beside them."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    thick = np.ones((max(5, round(0.45 * height)) | 1,) * 2, dtype=np.uint8)
    thin = (cv2.morphologyEx(grey, cv2.MORPH_BLACKHAT, thick) > _CONTRAST).view(np.uint8)
    return Rules(
        across=_long_runs(thin, height, _RUN_ACROSS * height),
        down=np.ascontiguousarray(_long_runs(np.ascontiguousarray(thin.T), height, _RUN_DOWN * height).T),
    )


def _long_runs(thin: Mask, height: float, least: float) -> Mask:
    """Return runs from left to right; small gaps are bridged, but not those between letters."""

    def run(length: float, depth: int = 1) -> NDArray[np.uint8]:
        return np.ones((depth, max(1, round(length))), dtype=np.uint8)

    strokes = cv2.morphologyEx(thin, cv2.MORPH_OPEN, run(0.8 * height))
    bridged = cv2.morphologyEx(strokes, cv2.MORPH_CLOSE, run(0.5 * height, 3))
    return np.asarray(cv2.morphologyEx(bridged, cv2.MORPH_OPEN, run(least)), dtype=np.uint8)


def ruled_grids(pieces: Sequence[Line], rules: Rules, height: float) -> list[Grid]:
    """Return the grids that ruling lines make, the smaller ones first."""
    touching = cv2.dilate(rules.across | rules.down, np.ones((5, 5), dtype=np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(touching, connectivity=8)
    order = 1 + np.argsort(stats[1:, cv2.CC_STAT_WIDTH] * stats[1:, cv2.CC_STAT_HEIGHT], kind="stable")
    grids: list[Grid] = []
    for label in order.tolist():
        left, top, width, depth = stats[label, :4].tolist()
        if width < 6 * height or depth < 2 * height:
            continue
        window = np.s_[top : top + depth, left : left + width]
        part = (labels[window] == label).view(np.uint8)
        lines = _Lines(
            across=[(y + top, x0 + left, x1 + left) for y, x0, x1 in _segments(rules.across[window] & part)],
            down=[(x + left, y0 + top, y1 + top) for x, y0, y1 in _segments((rules.down[window] & part).T)],
        )
        grid = lines.grid(pieces, 0.5 * height)
        if grid is not None:
            grids.append(grid)
    return grids


def _segments(mask: Mask) -> list[Rule]:
    _, _, stats, centres = cv2.connectedComponentsWithStats(np.ascontiguousarray(mask), connectivity=8)
    return [
        (float(centre[1]), float(left), float(left + width))
        for (left, _, width, _, _), centre in zip(stats[1:].tolist(), centres[1:], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Ruling lines that touch one another."""

    across: list[Rule]
    down: list[Rule]

    def grid(self, pieces: Sequence[Line], near: float) -> Grid | None:
        """Return the grid that they make with the text in it; None if it is no table and no form."""
        ys, xs = _places(self.across, near), _places(self.down, near)
        if len(ys) < 2 or not xs:  # noqa: PLR2004  a row has two sides
            return None
        long = [rule for rule in self.across if rule[2] - rule[1] > 0.6 * (xs[-1] - xs[0])]
        if long:  # a table that is open at its sides
            left, right = np.median([rule[1:] for rule in long], axis=0).tolist()
            xs = [
                *([left] if xs[0] - left > 4 * near else []),
                *xs,
                *([right] if right - xs[-1] > 4 * near else []),
            ]
        if len(ys) <= 2 or len(xs) <= 2:  # noqa: PLR2004  one row or one column
            return None
        draft = _Draft(xs, ys, self._owners(xs, ys, near))
        draft.fill(pieces, near)
        return draft.ruled_grid()

    def _owners(self, xs: list[float], ys: list[float], near: float) -> NDArray[np.intp]:
        """Return which cell each place of the grid belongs to: places that no line parts are one cell."""
        rows, columns = len(ys) - 1, len(xs) - 1
        owners = np.arange(rows * columns).reshape(rows, columns)
        for row in range(rows):
            for column in range(columns):
                if column and not _is_drawn(self.down, xs[column], ys[row], ys[row + 1], near):
                    owners[owners == owners[row, column]] = owners[row, column - 1]
                if row and not _is_drawn(self.across, ys[row], xs[column], xs[column + 1], near):
                    owners[owners == owners[row, column]] = owners[row - 1, column]
        return _rectangular(owners)


def _places(rules: list[Rule], near: float) -> list[float]:
    """Return where lines lie, those of one place together."""
    groups: list[list[Rule]] = []
    for rule in sorted(rules):
        if groups and rule[0] - groups[-1][-1][0] <= near:
            groups[-1].append(rule)
        else:
            groups.append([rule])
    return [
        float(np.average([rule[0] for rule in group], weights=[rule[2] - rule[1] for rule in group]))
        for group in groups
    ]


def _is_drawn(rules: list[Rule], place: float, start: float, end: float, near: float) -> bool:
    covered = sum(
        max(0.0, min(end, rule[2]) - max(start, rule[1])) for rule in rules if abs(rule[0] - place) <= near
    )
    return covered > 0.5 * (end - start)


def _rectangular(owners: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the cells grown until each is a rectangle."""
    while True:
        before = owners.copy()
        for owner in np.unique(owners):
            rows, columns = np.nonzero(owners == owner)
            if rows.size:
                window = owners[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
                owners[np.isin(owners, window)] = owner
        if (owners == before).all():
            return owners


# Without ruling lines


def aligned_grids(
    pieces: Sequence[Line], rows: Sequence[Sequence[int]], rules: Rules, height: float
) -> list[Grid]:
    """Return the grids of pieces that line up. `rows`: which pieces stand side by side, in reading order."""
    grids = (_Aligned(pieces, run, rules, height).grid() for run in _runs(pieces, rows, height))
    return [grid for grid in grids if grid is not None]


def _runs(pieces: Sequence[Line], rows: Sequence[Sequence[int]], height: float) -> Iterator[list[list[int]]]:
    """Yield neighbouring rows of several pieces each, and of single short pieces between these."""
    run: list[list[int]] = []
    for row in rows:
        boxes = [pieces[one].box for one in row]
        below = (
            min(box.top for box in boxes) - max((pieces[one].box.bottom for one in run[-1]), default=0)
            if run
            else 0
        )
        near = not run or -0.6 * height < below < _NEAR * height
        is_apart = any(right.left - left.right > 0.8 * height for left, right in pairwise(boxes))
        if run and not (near and (is_apart or (len(row) == 1 and _is_short(boxes[0], pieces, run)))):
            yield from _ended(pieces, run, height)
            run = []
        if is_apart or run:
            run.append(list(row))
    yield from _ended(pieces, run, height)


def _is_short(box: Box, pieces: Sequence[Line], run: list[list[int]]) -> bool:
    whole = around(pieces[one].box for row in run for one in row)
    return box.right - box.left < 0.65 * (whole.right - whole.left) and box.left < whole.right


def _ended(pieces: Sequence[Line], run: list[list[int]], height: float) -> Iterator[list[list[int]]]:
    """Yield the run without what only follows it: a last single piece is of the table if it is of a column."""
    if sum(len(row) > 1 for row in run) < _MIN_ROWS:
        return
    rows = [[pieces[one].box for one in row] for row in run]
    count = max(number for number, row in enumerate(rows, 1) if len(row) > 1)
    names = max(row[0].right for row in rows[:count] if len(row) > 1)
    pitch = float(np.median(np.diff([middle(row[0])[1] for row in rows[:count]])))
    later = [box.left for row in rows[:count] for box in row[1:]]
    for [box] in rows[count:]:
        is_name = box.right <= names
        is_cell = any(abs(box.left - left) < 0.5 * height for left in later)
        if middle(box)[1] - middle(rows[count - 1][0])[1] > 1.3 * pitch or not (is_name or is_cell):
            break
        count += 1
    yield run[:count]


class _Aligned:
    """Rows of pieces that may be a table."""

    def __init__(self, pieces: Sequence[Line], run: list[list[int]], rules: Rules, height: float) -> None:
        self.rows = [[pieces[one] for one in row] for row in run]
        self.members = frozenset(one for row in run for one in row)
        self.rules, self.height = rules, height
        self.box = around(piece.box for row in self.rows for piece in row)

    def grid(self) -> Grid | None:
        walls = self._walls()
        starts = [self._start(wall) for wall in walls]
        placed = [self._placed(row, walls, starts) for row in self.rows]
        columns = len(walls) + 1
        full = sum(len({place for place, _, _ in row}) >= max(2, 0.5 * columns) for row in placed)
        if not self._are_cells(placed):
            return None
        pieces = float(np.mean([len(row) for row in self.rows]))
        if columns < _MIN_COLUMNS or full < 0.5 * len(placed) or pieces > columns + 1:
            return self._unclear() if pieces >= _UNCLEAR_PIECES and len(self.rows) > _MIN_ROWS else None
        if columns == _MIN_COLUMNS and not self._ends_in_numbers(placed):
            return None
        groups = self._groups(placed)
        tops = [min(piece.box.top for row in group for _, _, piece in row) for group in groups]
        ends = [max(piece.box.bottom for row in group for _, _, piece in row) for group in groups]
        ys = [tops[0], *((end + top) / 2 for end, top in zip(ends, tops[1:], strict=False)), ends[-1]]
        owners = np.arange(len(groups) * columns).reshape(len(groups), columns)
        draft = _Draft([self.box.left, *walls, self.box.right], ys, owners)
        draft.members = set(self.members)
        for number, group in enumerate(groups):
            for first, last, piece in (place for row in group for place in row):
                if len(set(owners[number, first : last + 1].tolist()) & draft.content.keys()) == 0:
                    owners[number, first : last + 1] = owners[number, first]
                draft.content.setdefault(int(owners[number, first]), []).append(piece)
        return draft.grid()

    def _unclear(self) -> Grid:
        return Grid(box=self.box, table=None, lines=(), members=self.members)

    def _walls(self) -> list[float]:
        """Return where white space goes down between columns."""
        most = np.percentile([len(row) for row in self.rows], 80)
        rows = [row for row in self.rows if len(row) >= max(2, 0.6 * most)]
        crossed = np.zeros(self.box.right - self.box.left + 2, dtype=np.intp)
        for piece in (piece for row in rows for piece in row if not _SIGN.fullmatch(piece.text.strip())):
            crossed[piece.box.left - self.box.left] += 1
            crossed[piece.box.right - self.box.left] -= 1
        free = np.concatenate([[0], np.cumsum(crossed) <= int(_CROSSED * len(rows)), [0]])
        edges = np.flatnonzero(np.diff(free)).reshape(-1, 2)
        return [
            float(start + end) / 2 + self.box.left
            for start, end in edges.tolist()
            if start > 0 and end < crossed.size - 1 and end - start > _GAP * self.height
        ]

    def _start(self, wall: float) -> float:
        """Return where the column behind the wall starts in most rows."""
        lefts = [
            min((piece.box.left for piece in row if piece.box.left > wall), default=None) for row in self.rows
        ]
        known = [left for left in lefts if left is not None]
        return float(np.median(known)) if known else wall

    def _placed(
        self, row: Sequence[Line], walls: list[float], starts: list[float]
    ) -> list[tuple[int, int, Line]]:
        """Return the parts of a row's pieces with the first and the last column of each."""
        parts = [part for piece in row for part in self._parts(piece, list(zip(walls, starts, strict=True)))]
        slack = 0.3 * self.height
        firsts = np.searchsorted(walls, [min(part.box.left + slack, middle(part.box)[0]) for part in parts])
        lasts = np.searchsorted(walls, [max(part.box.right - slack, middle(part.box)[0]) for part in parts])
        return list(zip(firsts.tolist(), lasts.tolist(), parts, strict=True))

    def _parts(self, piece: Line, walls: list[tuple[float, float]]) -> Iterable[Line]:
        """Cut a piece that is two cells: at a wide space by a wall, or where a word starts as its column does."""
        spaces = [
            (left.box.right + right.box.left) / 2
            for left, right in pairwise(piece.words)
            for wall, start in walls
            if left.box.right - 0.5 * self.height < wall < right.box.left + 0.5 * self.height
            and (
                right.box.left - left.box.right > 0.45 * self.height
                or abs(right.box.left - start) < 0.3 * self.height
            )
        ]
        return cut(piece, spaces, 0)

    def _are_cells(self, placed: list[list[tuple[int, int, Line]]]) -> bool:
        """Return whether these are cells of a table, rather than prose or boxes to be ticked with their labels."""
        pieces = [piece for row in placed for _, _, piece in row]
        options = sum(piece.text[:1] in SIGNS for piece in pieces)
        width = float(np.median([piece.box.right - piece.box.left for piece in pieces]))
        return options <= _MAX_OPTIONS * len(pieces) and width <= _MAX_CELL * self.height

    def _ends_in_numbers(self, placed: list[list[tuple[int, int, Line]]]) -> bool:
        last = [piece.text.strip() for row in placed for first, _, piece in row if first > 0]
        return sum(bool(_NUMBER.fullmatch(text)) for text in last) > 0.7 * len(last)

    def _groups(self, placed: list[list[tuple[int, int, Line]]]) -> list[list[list[tuple[int, int, Line]]]]:
        """Return the rows of text that are one row of the table, together."""
        boxes = [around(piece.box for _, _, piece in row) for row in placed]
        pitches = [middle(lower)[1] - middle(upper)[1] for upper, lower in pairwise(boxes)]
        ruled = [
            self.rules.between(upper.bottom - 2, lower.top + 2, self.box.left, self.box.right)
            for upper, lower in pairwise(boxes)
        ]
        tight = _tight(pitches, [len({first for first, _, _ in row}) for row in placed], self.height)
        by_rules = sum(ruled) >= max(_MIN_ROWS - 1, 0.3 * len(pitches))
        groups = [[placed[0]]]
        for row, pitch, rule in zip(placed[1:], pitches, ruled, strict=True):
            closely = pitch <= max(tight, _PITCH * self.height if by_rules else 0)
            if not rule and self._goes_on(groups[-1], row, closely=closely):
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def _goes_on(
        self, group: list[list[tuple[int, int, Line]]], row: list[tuple[int, int, Line]], *, closely: bool
    ) -> bool:
        """Return whether a row of text is more of the cells above it, rather than a row of the table."""
        above = {first for one in group for first, _, _ in one}
        here = {first for first, _, _ in row}
        if _numbers(row) & {column for one in group for column in _numbers(one)}:
            return False
        if closely:
            return here <= above or not here & above
        return len(here) == 1 and here <= above and 0 not in here and not _numbers(row)


def _tight(pitches: list[float], cells: list[int], height: float) -> float:
    """Return the widest step from line to line of one cell; 0 if cells have one line each.

    Steps come in two widths then, and of the lines between two wide ones one has more cells than the others.
    """
    jumps = [
        (wide / max(narrow, 1), narrow)
        for narrow, wide in pairwise(sorted(pitches))
        if narrow < _PITCH * height
    ]
    jump, tight = max(jumps, default=(0.0, 0.0))
    starts = [0, *(k + 1 for k, pitch in enumerate(pitches) if pitch > tight), len(cells)]
    groups = [cells[start:end] for start, end in pairwise(starts) if end - start > 1]
    anchored = sum(group.count(max(group)) == 1 for group in groups)
    return tight if jump > _JUMP and anchored > 0.6 * len(groups) else 0.0


def _numbers(row: list[tuple[int, int, Line]]) -> set[int]:
    return {first for first, _, piece in row if _NUMBER.fullmatch(piece.text.strip())}


# A grid that is being filled


class _Draft:
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
            if len(rows) > max(_MIN_ROWS, len(self.ys)) and np.mean([len(line) > 1 for line in rows]) > 0.8:  # noqa: PLR2004
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
