"""What stands on the two sides of a gutter, and whether these are columns or the halves of rows."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = list[int]
"""Positions, in what was given, of boxes that stand side by side, from left to right."""
Stretch: TypeAlias = list[Row]
"""Rows from top to bottom that no gutter and no wide white space parts."""
Boxes: TypeAlias = NDArray[np.float64]
"""Left, top, right and bottom of each box, a row for each."""
Some: TypeAlias = NDArray[np.intp]

MIN_LINES: Final = 3
"""Rows of running text that make a column."""
_FILL: Final = 0.75
"""Share of its column's width that a full row reaches."""
_MAX_PITCH: Final = 3.5
"""From one row of running text to the next."""
_FULL_SHARE: Final = 0.2
"""Share of a column's rows that are full."""
_MIN_LENGTH: Final = 7.0
"""Length of a piece of running text; the cells of a table are shorter."""
_SURE_LENGTH: Final = 14.0
"""Length of the pieces of what is surely running text."""
_ALIGNED: Final = 0.65
"""Share of rows that stand level with a row of the other side in a table."""
_INTERLEAVED, _MIN_INTERLEAVED, _MIN_WIDTH = 0.2, 4, 2.5
"""Share of rows that stand between two of the other side in columns, and rows from which it tells; a table has none.

And the usual width of what stands in columns."""
_ADDRESS_ROWS: Final = range(2, 10)


class Sides:
    """Boxes of a page. Positions in it are given as arrays; lengths are in heights of a line."""

    def __init__(self, boxes: Boxes, whole: NDArray[np.bool_], address: NDArray[np.bool_]) -> None:
        self.left, self.top, self.right, self.bottom = boxes.T
        self.width, self.height = self.right - self.left, self.bottom - self.top
        self.middle, self.centre = (self.top + self.bottom) / 2, (self.left + self.right) / 2
        self.whole, self.address = whole, address
        self._plain = list(
            zip(*(side.tolist() for side in (self.left, self.right, self.middle, self.height)), strict=True)
        )
        self._known_rows: dict[bytes, Stretch] = {}

    def line_height(self, some: Some) -> float:
        """Return the usual height of a line of these."""
        text = some[~self.whole[some]]
        return max(1.0, float(np.median(self.height[text if text.size else some])))

    def sides(self, some: Some, gutter: float) -> tuple[Some, Some]:
        """Return what stands to the left and to the right of a gutter."""
        is_left = self.centre[some] < gutter
        return some[is_left], some[~is_left]

    def sections(self, some: Some, space: float) -> list[Some]:
        """Cut at white space from side to side that is wider than this, and than that between most rows.

        Large print has wider space below it.
        """
        by_top = some[np.argsort(self.top[some], kind="stable")]
        gaps = self.top[by_top][1:] - np.maximum.accumulate(self.bottom[by_top])[:-1]
        between_rows = gaps[gaps > 0]
        if between_rows.size >= MIN_LINES:
            space = max(space, min(2 * space, 1.5 * float(np.median(between_rows))))
        larger = np.where(self.whole[by_top], 0, self.height[by_top] - self.line_height(some)).clip(0)
        return np.split(by_top, np.flatnonzero(gaps > space + larger[:-1] / 2) + 1)

    def are_columns(self, left: Some, right: Some, height: float) -> bool:
        """Return whether the sides are read one after the other, rather than being halves of rows."""
        return self.is_prose(left, height) and self.is_prose(right, height)

    def stand_beside(self, left: Some, right: Some, height: float) -> bool:
        """Return whether text stands beside a table, a label beside running text, a list or an address beside one."""
        tables = self._is_beside_table(left, right, height) or self._is_beside_table(right, left, height)
        if tables or self._are_addresses(left, right, height) or self._interleave(left, right, height):
            return True
        if not any(self.is_prose(side, height, length=_SURE_LENGTH) for side in (left, right)):
            return False
        fewer, more = sorted((len(self.rows(left)), len(self.rows(right))))
        short = self.width[right].max() < _MIN_LENGTH * height
        if short and len(self.rows(right)) == fewer and self._aligned(left, right, height, 1) >= _ALIGNED:
            return False  # amounts at the ends of rows
        return more >= fewer + 2 and (
            fewer <= MIN_LINES or self._aligned(left, right, height, MIN_LINES) < _ALIGNED
        )

    def is_prose(self, some: Some, height: float, length: float = _MIN_LENGTH) -> bool:
        """Return whether long pieces fill the column, or end where their neighbours end."""
        rows = self.rows(some[~self.whole[some]])
        if len(rows) < MIN_LINES:
            return False
        first, last = np.array([row[0] for row in rows]), np.array([row[-1] for row in rows])
        text = np.array([self.width[row].sum() for row in rows])
        pieces = np.array([len(row) for row in rows])
        tallest = np.array([self.height[row].max() for row in rows])
        left, right = self.left[first], self.right[last]
        width = max(1.0, np.sort(right)[int(0.9 * (len(rows) - 1))] - left.min())
        near = _either(np.diff(self.middle[first]) <= _MAX_PITCH * height)
        long = near & (text / pieces >= length * height) & (tallest <= 1.8 * height)
        flush = _either(long[1:] & long[:-1] & (abs(np.diff(right)) < height) & (abs(np.diff(left)) < height))
        full = int((long & ((text >= _FILL * width) | flush)).sum())
        return full >= max(MIN_LINES, _FULL_SHARE * len(rows))

    def is_table(self, some: Some, gutter: float, height: float) -> bool:
        """Return whether most rows have several cells on a side of the gutter."""
        rows = self.rows(some)
        cells = sum(len(row) > 2 for row in rows)  # noqa: PLR2004  more than one a side
        return cells >= max(2, _ALIGNED * len(rows)) and not any(
            self.is_prose(side, height) for side in self.sides(some, gutter)
        )

    def _aligned(self, left: Some, right: Some, height: float, least: int) -> float:
        """Return the share of rows that stand level with one of the other side; 1 with too few rows to tell."""
        fewer, more = sorted((self._row_middles(left), self._row_middles(right)), key=len)
        top, bottom = max(fewer[0], more[0]) - 1.5 * height, min(fewer[-1], more[-1]) + 1.5 * height
        fewer, more = (side[(side >= top) & (side <= bottom)] for side in (fewer, more))
        if min(len(fewer), len(more)) < least:
            return 1.0
        if len(fewer) > len(more):
            fewer, more = more, fewer
        return float((np.abs(fewer[:, None] - more).min(axis=1) < 0.3 * height).mean())

    def _interleave(self, left: Some, right: Some, height: float) -> bool:
        """Return whether many rows of each side overlap rows of the other that they are not level with."""
        if any(np.median(self.width[side]) < _MIN_WIDTH * height for side in (left, right)):
            return False  # bullets and numbers
        one, other = self._row_middles(left), self._row_middles(right)
        top, bottom = max(one[0], other[0]) - height, min(one[-1], other[-1]) + height
        one, other = (side[(side >= top) & (side <= bottom)] for side in (one, other))
        if min(len(one), len(other)) < _MIN_INTERLEAVED:
            return False
        away = np.abs(one[:, None] - other) / height
        return all(
            np.mean((nearest > 0.25) & (nearest < 0.75)) >= _INTERLEAVED  # noqa: PLR2004
            for nearest in (away.min(axis=0), away.min(axis=1))
        )

    def _is_beside_table(self, some: Some, other: Some, height: float) -> bool:
        """Return whether the other side is a table, and this one begins no higher and stands mostly beside it."""
        if not self.whole[other].all():
            return False
        top, bottom = self.top[some].min(), self.bottom[some].max()
        shared = min(bottom, self.bottom[other].max()) - max(top, self.top[other].min())
        return bool(top > self.top[other].min() - height and shared > 0.5 * (bottom - top))

    def _are_addresses(self, left: Some, right: Some, height: float) -> bool:
        """Return whether both sides are short flush blocks with lines of an address; the labels of a form have none."""
        sides = [self.rows(side) for side in (left, right)]
        for rows in sides:
            first = [row[0] for row in rows]
            if len(rows) not in _ADDRESS_ROWS or any(len(row) > 1 for row in rows):
                return False
            flush = np.ptp(self.left[first]) < height or np.ptp(self.right[first]) < height
            if not flush or np.diff(self.middle[first]).max() > 2.5 * height:
                return False
        return all(self.address[side].sum() >= 0.25 * side.size for side in (left, right))

    def _row_middles(self, some: Some) -> NDArray[np.float64]:
        return np.sort([self.middle[row].mean() for row in self.rows(some)])

    def rows(self, some: Some) -> Stretch:
        """Return what stands side by side, from top to bottom."""
        key = some.tobytes()
        if key not in self._known_rows:
            self._known_rows[key] = self._find_rows(some)
        return self._known_rows[key]

    def _find_rows(self, some: Some) -> Stretch:
        """Return what stands side by side: level, and not one above the other."""
        rows: list[Row] = []
        for one in some[np.argsort(self.middle[some], kind="stable")].tolist():
            row = next((row for row in rows[:-5:-1] if self._is_level(row, one)), None)
            if row is None:
                rows.append([one])
            else:
                row.append(one)
        return [sorted(row, key=lambda one: self._plain[one]) for row in rows]

    def _is_level(self, row: Row, one: int) -> bool:
        """Return whether the box stands in the row. Plain numbers: this runs more often than all else."""
        if self.whole[one] or self.whole[row[0]]:
            return False
        left, right, middle, height = self._plain[one]
        others = [self._plain[other] for other in row]
        mean = sum(other[2] for other in others) / len(others)
        return abs(middle - mean) < 0.5 * min(height, *(other[3] for other in others)) and all(
            min(right, other[1]) - max(left, other[0]) < 0.5 * min(right - left, other[1] - other[0])
            for other in others
        )


def _either(pairs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each row whether it and the one above, or the one below, are such a pair."""
    found: NDArray[np.bool_] = np.append(pairs, False) | np.append(False, pairs)
    return found
