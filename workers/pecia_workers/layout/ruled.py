"""Tables by their ruling lines. Lengths are in heights of a line. Needs OpenCV (pecia[cpu])."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Line
from pecia_workers.layout.grids import Draft, Grid
from pecia_workers.layout.lines import Mask, levels_of, middle
from pecia_workers.layout.parting import atoms_of

Rule: TypeAlias = tuple[float, float, float]
"""A ruling line: its place, start and end."""

_WALL: Final = 0.12
"""Share of a table's height from which a vertical line is a wall."""
_MIN_BODY: Final = 3
"""Least rows of several cells, from which title and notes are separated."""
_SPACER: Final = 1.2
"""Width below which a ruled row or column has no space for text."""
_EDGE: Final = 9
"""Least contrast of a coloured ground with its surroundings, in grey levels."""
_ASIDE, _ACROSS = 0.15, 0.85
"""Margin of recognition boxes beside their text; share of a pixel row that letters never fill."""
_COLOURED: Final = 0.004
"""Share of the page from which coloured ground is examined."""
_CONTRAST: Final = 16
"""Least contrast of a ruling line with the pixels above and below, in grey levels."""
_RUN_ACROSS, _RUN_DOWN = 2.5, 1.3
"""Shortest horizontal and vertical ruling lines; no letter has such long strokes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The ruling lines of a page, as masks of its pixels."""

    across: Mask
    down: Mask
    edges_across: Mask
    """Edges of coloured grounds, and white lines on them; only those of tables."""
    edges_down: Mask
    strokes: Mask
    """All thin dark strokes, letters included."""

    def between(self, upper: float, lower: float, left: float, right: float) -> bool:
        """Return whether a line crosses at least half of this white space."""
        rows = slice(max(0, round(upper)), max(0, round(lower)) + 1)
        strip = self.across[rows, max(0, round(left)) : round(right)]
        return bool(strip.size) and float(strip.any(axis=0).mean()) > 0.5  # noqa: PLR2004

    def part(self, above: Box, below: Box) -> bool:
        """Return whether such a line is between two lines of text, one below the other."""
        left, right = min(above.left, below.left), max(above.right, below.right)
        return self.between(middle(above)[1], middle(below)[1], left, right)


def find_rules(pixels: NDArray[np.uint8], height: float, pieces: Sequence[Line] = ()) -> Rules:
    """Return the thin, long lines that are darker than their ground, and the edges of coloured grounds.

    `pieces`: text, whose edges are ignored.
    """
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    thick = np.ones((max(5, round(0.45 * height)) | 1,) * 2, dtype=np.uint8)
    thin = (cv2.morphologyEx(grey, cv2.MORPH_BLACKHAT, thick) > _CONTRAST).view(np.uint8)
    across = _long_runs(thin, height, _RUN_ACROSS * height)
    down = _long_runs(np.ascontiguousarray(thin.T), height, _RUN_DOWN * height).T
    edges = _edges(np.asarray(grey, dtype=np.uint8), height, pieces)
    return Rules(across, np.ascontiguousarray(down), *edges, thin)


def _edges(grey: NDArray[np.uint8], height: float, pieces: Sequence[Line]) -> tuple[Mask, Mask]:
    """Return the horizontal and vertical edges of coloured grounds; none if the page has no such ground."""
    paper = int(np.median(grey[::8, ::8]))
    ground = cv2.dilate(grey, np.ones((7, 7), dtype=np.uint8))[::8, ::8]  # without the letters on it
    solid = abs(ground.astype(np.int16) - paper) > _EDGE
    if solid.mean() < _COLOURED:
        none = np.zeros_like(grey)
        return none, none
    plain = grey.copy()
    for box in (atom.box for piece in pieces for atom in atoms_of(piece, height)):
        aside = round(_ASIDE * (box.bottom - box.top))
        window = plain[max(0, box.top) : box.bottom, max(0, box.left + aside) : box.right - aside]
        if window.size:
            _erase(window)
    plain = plain.astype(np.int16)
    masks = []
    for image, least in ((plain, _RUN_ACROSS), (plain.T, _RUN_DOWN)):
        steps = np.zeros(image.shape, dtype=np.uint8)
        steps[1:-1] = abs(image[2:] - image[:-2]) > _EDGE
        masks.append(_long_runs(steps, height, least * height))
    return masks[0], np.ascontiguousarray(masks[1].T)


def _erase(window: NDArray[np.uint8]) -> None:
    """Paint letters over with their ground, where it continues above and below them."""
    ground = int(np.bincount(window.ravel()).argmax())
    other = (abs(window.astype(np.int16) - ground) > _EDGE).mean(axis=1) > _ACROSS
    above, below = other[: len(other) // 2], other[len(other) // 2 :]
    start = len(above) - int(np.argmax(above[::-1])) if above.any() else 0
    end = len(above) + int(np.argmax(below)) if below.any() else len(other)
    window[start:end] = ground


def _long_runs(thin: Mask, height: float, least: float) -> Mask:
    """Return runs from left to right; small gaps are bridged, but not those between letters."""

    def run(length: float, depth: int = 1) -> NDArray[np.uint8]:
        return np.ones((depth, max(1, round(length))), dtype=np.uint8)

    strokes = cv2.morphologyEx(thin, cv2.MORPH_OPEN, run(0.8 * height))
    bridged = cv2.morphologyEx(strokes, cv2.MORPH_CLOSE, run(0.5 * height, 3))
    return np.asarray(cv2.morphologyEx(bridged, cv2.MORPH_OPEN, run(least)), dtype=np.uint8)


def ruled_grids(pieces: Sequence[Line], rules: Rules, height: float) -> list[Grid]:
    """Return the tables and forms of connected ruling lines, with their text, the smaller ones first."""
    return _grids(pieces, rules.across, rules.down, height, _SPACER * height)


def coloured_grids(pieces: Sequence[Line], rules: Rules, height: float) -> list[Grid]:
    """Return the tables formed by edges of coloured grounds and the lines drawn there."""
    if not rules.edges_across.any():
        return []
    across, down = rules.across | rules.edges_across, rules.down | rules.edges_down
    return [grid for grid in _grids(pieces, across, down, height, np.inf) if not grid.is_form]


def _grids(pieces: Sequence[Line], across: Mask, down: Mask, height: float, narrow: float) -> list[Grid]:
    """`narrow`: of rows and columns that are dropped if they have no text."""
    if not down.any():
        return []
    touching = cv2.dilate(across | down, np.ones((5, 5), dtype=np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(touching, connectivity=8)
    order = 1 + np.argsort(stats[1:, cv2.CC_STAT_WIDTH] * stats[1:, cv2.CC_STAT_HEIGHT], kind="stable")
    grids: list[Grid] = []
    for label in order.tolist():
        left, top, width, depth = stats[label, :4].tolist()
        if width < 6 * height or depth < 2 * height:
            continue
        window = np.s_[top : top + depth, left : left + width]
        part = (labels[window] == label).view(np.uint8)
        lines = _segments(across[window] & part, top, left), _segments((down[window] & part).T, left, top)
        grid = _grid(pieces, *lines, height, narrow)
        if grid is not None:
            grids.append(grid)
    return grids


def _grid(
    pieces: Sequence[Line], across: list[Rule], down: list[Rule], height: float, narrow: float
) -> Grid | None:
    """Return the table of connected lines, or None if they form none."""
    near = 0.5 * height
    ys = _places(across, near)
    xs = _places(_walls(down, ys, near), near) if len(ys) > 2 else []  # noqa: PLR2004  one row
    if not xs:
        return None
    long = [rule for rule in across if rule[2] - rule[1] > 0.6 * (xs[-1] - xs[0])]
    if long:  # a table that is open at its sides
        start, end = np.median([rule[1:] for rule in long], axis=0).tolist()
        is_open = xs[0] - start > 4 * near, end - xs[-1] > 4 * near
        xs = [*[start] * is_open[0], *xs, *[end] * is_open[1]]
    if len(xs) <= 2:  # noqa: PLR2004  one column
        return None
    start, end = min(rule[1] for rule in down), max(rule[2] for rule in down)
    ys = [*[start] * (ys[0] - start > 2 * near), *ys, *[end] * (end - ys[-1] > 2 * near)]  # open above, below
    owners = _owners(across, down, xs, ys, near)
    inside = [piece for piece in pieces if xs[0] < middle(piece.box)[0] < xs[-1]]
    first, last = _body(inside, ys, owners, height)
    draft = Draft(xs, ys[first : last + 1], owners[first:last])
    draft.fill(pieces, near)
    draft.part(height)
    return draft.ruled_grid(narrow)


def _body(
    pieces: Sequence[Line], ys: list[float], owners: NDArray[np.intp], height: float
) -> tuple[int, int]:
    """Return the rows of a grid without a framed title above and notes below."""
    rows = len(owners)
    several = sum(len(np.unique(row)) > 1 for row in owners)
    if several < _MIN_BODY or rows - several > several:
        return 0, rows

    def is_text(row: int) -> bool:
        if len(np.unique(owners[row])) > 1:
            return False
        lines = [piece for piece in pieces if ys[row] < middle(piece.box)[1] < ys[row + 1]]
        atoms = [atom for piece in lines for atom in atoms_of(piece, height)]
        return all(len(level) == 1 for level in levels_of(atoms))

    first = next(row for row in range(rows) if not is_text(row))
    last = next(row for row in reversed(range(rows)) if not is_text(row))
    return (first, last + 1) if last - first >= _MIN_BODY else (0, rows)


def _walls(down: list[Rule], ys: list[float], near: float) -> list[Rule]:
    """Return the vertical lines through much of a table, or through its head, without tall letters."""
    depth = ys[-1] - ys[0]
    return [
        rule
        for rule in down
        if _length([other for other in down if abs(other[0] - rule[0]) <= near]) > _WALL * depth
        or (rule[1] < ys[0] + near and rule[2] > ys[1] - near)
    ]


def _length(rules: list[Rule]) -> float:
    """Return the length of a line that these cover, counting overlaps once."""
    length, reached = 0.0, -np.inf
    for _, start, end in sorted(rules, key=lambda rule: rule[1]):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def _segments(mask: Mask, place: int, start: int) -> list[Rule]:
    """Return the horizontal lines of a mask; `place` and `start`: the mask's position."""
    rows = np.flatnonzero(mask.any(axis=1))
    found: list[Rule] = []
    for part in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if rows.size else ():
        strip = np.ascontiguousarray(mask[part[0] : part[-1] + 1])
        _, _, stats, centres = cv2.connectedComponentsWithStats(strip, connectivity=8)
        found += [
            (float(centre[1]) + place + float(part[0]), float(left) + start, float(left + width) + start)
            for (left, _, width, _, _), centre in zip(stats[1:].tolist(), centres[1:], strict=True)
        ]
    return found


def _owners(
    across: list[Rule], down: list[Rule], xs: list[float], ys: list[float], near: float
) -> NDArray[np.intp]:
    """Return the cell of each place of the grid: places without a line between form one cell, a rectangle."""
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
    """Return the places of lines, merging those at one place."""
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
