"""Tables by their ruling lines. Lengths are in heights of a line. Needs OpenCV (pecia[cpu])."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Cell, Line, Table
from pecia_workers.layout.lines import Mask, around, box_of, joined, middle, rows_of, words_of

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
            if len(rows) <= max(_MIN_SPLIT_ROWS, len(self.ys)) or beside <= _MIN_BESIDE * len(rows):
                continue
            middles = [np.mean([middle(line.box)[1] for line in one]) for one in rows]
            cuts = [float(upper + lower) / 2 for upper, lower in pairwise(middles)]
            fresh = self.owners.max() + 1 + np.arange(len(cuts))[:, None] * self.owners.size + owners
            for owner in np.unique(owners).tolist():
                for line in self.content.pop(owner, []):
                    place = int(np.searchsorted(cuts, middle(line.box)[1]))
                    key = owner if place == 0 else int(fresh[place - 1][owners == owner][0])
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
            text = "\n".join(line.text for line in inside)
            top, bottom = int(rows.min()), int(rows.max()) + 1
            left, right = int(columns.min()), int(columns.max()) + 1
            box = box_of(self.xs[left], self.ys[top], self.xs[right], self.ys[bottom])
            high, wide = bottom - top, right - left
            cells.append(Cell(row=top, column=left, row_span=high, column_span=wide, text=text, box=box))
        whole = box_of(self.xs[0], self.ys[0], self.xs[-1], self.ys[-1])
        return Grid(
            box=around([whole, *(line.box for line in lines)]),
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
        text, box = " ".join(word.text for word in part), around(word.box for word in part)
        known = tuple(part) if piece.words else ()
        yield Line(text=text, box=box, confidence=piece.confidence, words=known)


Rule: TypeAlias = tuple[float, float, float]
"""Where a ruling line lies, and from where to where it goes."""

_CONTRAST: Final = 16
"""Grey levels by which a ruling line differs from what is above and below it."""
_RUN_ACROSS, _RUN_DOWN = 2.5, 1.3
"""Shortest ruling lines; no letter has such long strokes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The ruling lines of a page, as masks of its pixels."""

    across: Mask
    down: Mask

    def between(self, upper: float, lower: float, left: float, right: float) -> bool:
        """Return whether a line goes across at least half of this white space."""
        rows = slice(max(0, round(upper)), max(0, round(lower)) + 1)
        strip = self.across[rows, max(0, round(left)) : round(right)]
        return bool(strip.size) and float(strip.any(axis=0).mean()) > 0.5  # noqa: PLR2004

    def part(self, above: Box, below: Box) -> bool:
        """Return whether such a line lies between two lines of text, one below the other."""
        left, right = min(above.left, below.left), max(above.right, below.right)
        return self.between(middle(above)[1], middle(below)[1], left, right)


def find_rules(pixels: NDArray[np.uint8], height: float) -> Rules:
    """Return the lines that are thin, long and darker than the ground beside them."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    thick = np.ones((max(5, round(0.45 * height)) | 1,) * 2, dtype=np.uint8)
    thin = (cv2.morphologyEx(grey, cv2.MORPH_BLACKHAT, thick) > _CONTRAST).view(np.uint8)
    down = _long_runs(np.ascontiguousarray(thin.T), height, _RUN_DOWN * height).T
    return Rules(_long_runs(thin, height, _RUN_ACROSS * height), np.ascontiguousarray(down))


def _long_runs(thin: Mask, height: float, least: float) -> Mask:
    """Return runs from left to right; small gaps are bridged, but not those between letters."""

    def run(length: float, depth: int = 1) -> NDArray[np.uint8]:
        return np.ones((depth, max(1, round(length))), dtype=np.uint8)

    strokes = cv2.morphologyEx(thin, cv2.MORPH_OPEN, run(0.8 * height))
    bridged = cv2.morphologyEx(strokes, cv2.MORPH_CLOSE, run(0.5 * height, 3))
    return np.asarray(cv2.morphologyEx(bridged, cv2.MORPH_OPEN, run(least)), dtype=np.uint8)


def ruled_grids(pieces: Sequence[Line], rules: Rules, height: float) -> list[Grid]:
    """Return the tables and forms that ruling lines make which touch, with the text in them, the smaller ones first."""
    touching = cv2.dilate(rules.across | rules.down, np.ones((5, 5), dtype=np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(touching, connectivity=8)
    order = 1 + np.argsort(stats[1:, cv2.CC_STAT_WIDTH] * stats[1:, cv2.CC_STAT_HEIGHT], kind="stable")
    grids: list[Grid] = []
    near = 0.5 * height
    for label in order.tolist():
        left, top, width, depth = stats[label, :4].tolist()
        if width < 6 * height or depth < 2 * height:
            continue
        window = np.s_[top : top + depth, left : left + width]
        part = (labels[window] == label).view(np.uint8)
        across = _segments(rules.across[window] & part, top, left)
        down = _segments((rules.down[window] & part).T, left, top)
        ys, xs = _places(across, near), _places(down, near)
        if len(ys) <= 2 or not xs:  # noqa: PLR2004  one row
            continue
        long = [rule for rule in across if rule[2] - rule[1] > 0.6 * (xs[-1] - xs[0])]
        if long:  # a table that is open at its sides
            start, end = np.median([rule[1:] for rule in long], axis=0).tolist()
            is_open = xs[0] - start > 4 * near, end - xs[-1] > 4 * near
            xs = [*[start] * is_open[0], *xs, *[end] * is_open[1]]
        if len(xs) <= 2:  # noqa: PLR2004  one column
            continue
        draft = Draft(xs, ys, _owners(across, down, xs, ys, near))
        draft.fill(pieces, near)
        grid = draft.ruled_grid()
        if grid is not None:
            grids.append(grid)
    return grids


def _segments(mask: Mask, place: int, start: int) -> list[Rule]:
    _, _, stats, centres = cv2.connectedComponentsWithStats(np.ascontiguousarray(mask), connectivity=8)
    return [
        (float(centre[1]) + place, float(left) + start, float(left + width) + start)
        for (left, _, width, _, _), centre in zip(stats[1:].tolist(), centres[1:], strict=True)
    ]


def _owners(
    across: list[Rule], down: list[Rule], xs: list[float], ys: list[float], near: float
) -> NDArray[np.intp]:
    """Return which cell each place of the grid belongs to: places that no line parts are one cell, a rectangle."""
    rows, columns = len(ys) - 1, len(xs) - 1
    owners = np.arange(rows * columns).reshape(rows, columns)
    for row in range(rows):
        for column in range(columns):
            if column and not _is_drawn(down, xs[column], ys[row], ys[row + 1], near):
                owners[owners == owners[row, column]] = owners[row, column - 1]
            if row and not _is_drawn(across, ys[row], xs[column], xs[column + 1], near):
                owners[owners == owners[row, column]] = owners[row - 1, column]
    before = None
    while before is None or (owners != before).any():
        before = owners.copy()
        for owner in np.unique(owners):
            inside = np.nonzero(owners == owner)
            if inside[0].size:
                window = owners[tuple(slice(side.min(), side.max() + 1) for side in inside)]
                owners[np.isin(owners, window)] = owner
    return owners


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
    near_by = (rule for rule in rules if abs(rule[0] - place) <= near)
    return sum(max(0.0, min(end, to) - max(start, begin)) for _, begin, to in near_by) > 0.5 * (end - start)
