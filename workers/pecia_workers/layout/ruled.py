"""Tables by their ruling lines. Lengths are in heights of a line. Needs OpenCV (pecia[cpu])."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Line
from pecia_workers.layout.grids import Draft, Grid
from pecia_workers.layout.lines import Mask, middle

Rule: TypeAlias = tuple[float, float, float]
"""Where a ruling line lies, and from where to where it goes."""

_WALL: Final = 0.12
"""Share of a table's depth from which a line that goes down is a wall."""
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
        ys = _places(across, near)
        if len(ys) <= 2:  # noqa: PLR2004  one row
            continue
        xs = _places(_walls(down, ys, depth, near), near)
        if not xs:
            continue
        long = [rule for rule in across if rule[2] - rule[1] > 0.6 * (xs[-1] - xs[0])]
        if long:  # a table that is open at its sides
            start, end = np.median([rule[1:] for rule in long], axis=0).tolist()
            is_open = xs[0] - start > 4 * near, end - xs[-1] > 4 * near
            xs = [*[start] * is_open[0], *xs, *[end] * is_open[1]]
        if len(xs) <= 2:  # noqa: PLR2004  one column
            continue
        start, end = min(rule[1] for rule in down), max(rule[2] for rule in down)
        ys = [*[start] * (ys[0] - start > 2 * near), *ys, *[end] * (end - ys[-1] > 2 * near)]  # open above, below
        draft = Draft(xs, ys, _owners(across, down, xs, ys, near))
        draft.fill(pieces, near)
        draft.part(height)
        grid = draft.ruled_grid()
        if grid is not None:
            grids.append(grid)
    return grids


def _walls(down: list[Rule], ys: list[float], depth: float, near: float) -> list[Rule]:
    """Return the lines that go down through much of a table, or through its head; no tall letters."""
    return [
        rule
        for rule in down
        if sum(other[2] - other[1] for other in down if abs(other[0] - rule[0]) <= near) > _WALL * depth
        or (rule[1] < ys[0] + near and rule[2] > ys[1] - near)
    ]


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
