"""Reading order of a page, from its boxes and a few textual cues, by recursive gutters.

A gutter is a vertical strip that few boxes cross, with running text on both sides. Boxes that cross it (headlines)
divide the page into bands; a band is read column by column, the rest row by row. Lengths are in heights of a line, so
that neither resolution nor print size matters.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = list[int]
"""Indices of adjacent boxes, from left to right."""
Stretch: TypeAlias = list[Row]
"""Rows, from top to bottom, without a gutter or wide white space between."""
Boxes: TypeAlias = NDArray[np.float64]
"""Left, top, right and bottom of each box, a row for each."""
Flags: TypeAlias = NDArray[np.bool_]
"""One for each box."""
Some: TypeAlias = NDArray[np.intp]
_Test: TypeAlias = Callable[[Some, Some, float], bool]

_MIN_LINES: Final = 3
"""Rows of running text that make a column."""
_FILL: Final = 0.75
"""Share of its column's width that a full row reaches."""
_MAX_PITCH: Final = 3.5
"""Greatest step between rows of running text."""
_FULL_SHARE: Final = 0.2
"""Share of a column's rows that are full."""
_MIN_LENGTH: Final = 7.0
"""Length of a piece of running text; the cells of a table are shorter."""
_DENSE: Final = 1.4
"""Weight of text whose characters are as wide as high."""
_SURE_LENGTH: Final = 14.0
"""Length of the pieces of certain running text."""
_ALIGNED: Final = 0.65
"""Share of rows that are level with a row of the other side in a table."""
_INTERLEAVED, _MIN_INTERLEAVED, _MIN_WIDTH = 0.2, 4, 2.5
"""Share of rows in columns that are between two of the other side, and least number of rows; a table has none.

Also the usual width of boxes in columns."""
_ADDRESS_ROWS: Final = range(2, 10)
_MIN_FIELDS, _FIELDS, _LABELLED = 2, 0.5, 0.6
"""Fields of a form: number, share of labels with a value beside them, and of labels with a colon."""
_MIN_BEGIN, _FULL_FORM, _BEGIN, _LABEL_LENGTH = 5, 0.75, 0.85, 20.0
"""The same for labels without colons: number, share with a value, share of labels and values that begin as such, and
length of labels."""
_TALLER, _HEADLINE, _TIER_SPACE = 1.2, 0.6, 0.6
"""Height of headlines, their share of the page's width, and the white space above them, at the start of a tier."""
_OVER: Final = 0.35
"""Greatest overlap of a box with a gutter."""
_FAR: Final = 5.0
"""White space at which a column ends."""
_DEPTH: Final = 12
_GUTTERS: Final = 24


@dataclass(frozen=True, slots=True)
class Cues:
    """Textual cues of each box for its place."""

    address: Flags
    """Whether it is part of an address or contact details; two such blocks side by side are no table."""
    label: Flags
    """Whether it ends with a colon, like a label."""
    begins: Flags
    """Whether it begins with a capital or digit, like a label or value; most lines of prose continue a sentence."""
    dense: Flags
    """Whether its characters are as wide as high, each a syllable or a word."""

    @classmethod
    def none(cls, count: int) -> Self:
        """Return the cues of boxes without known text."""
        return cls(*(np.zeros(count, dtype=np.bool_) for _ in range(4)))


def reading_order(boxes: Boxes, apart: Flags | None = None, cues: Cues | None = None) -> list[Stretch]:
    """Return every box once, in the order of reading.

    `apart`: boxes that are separate elements, such as tables, and share no row with others.
    """
    none = Cues.none(len(boxes))
    page = _Page(boxes, none.address if apart is None else apart, none if cues is None else cues)
    return page.ordered(np.arange(len(boxes)))


def levels(boxes: Boxes) -> Stretch:
    """Return groups of level boxes, from top to bottom, each from left to right."""
    page = _Page(boxes, np.zeros(len(boxes), dtype=np.bool_), Cues.none(len(boxes)))
    return page.rows(np.arange(len(boxes)))


@dataclass(frozen=True, slots=True)
class _Band:
    """The boxes between two that cross a gutter, or such boxes themselves."""

    boxes: Some
    spans: bool
    islands: list[int] = field(default_factory=list)
    """Boxes that cross the gutter with text level on both sides, such as the caption of a picture between columns."""


class _Page:
    """Boxes of a page. Positions in it are given as arrays; lengths are in heights of a line."""

    def __init__(self, boxes: Boxes, apart: Flags, cues: Cues) -> None:
        self.left, self.top, self.right, self.bottom = boxes.T
        self.width, self.height = self.right - self.left, self.bottom - self.top
        self.middle, self.centre = (self.top + self.bottom) / 2, (self.left + self.right) / 2
        self.apart, self.cues = apart, cues
        self.length = self.width * np.where(cues.dense, _DENSE, 1.0)
        self._plain = np.stack([self.left, self.right, self.middle, self.height], axis=1).tolist()
        self._known_rows: dict[bytes, Stretch] = {}

    def ordered(self, some: Some, depth: int = 0) -> list[Stretch]:
        if not some.size:
            return []
        height = self.line_height(some)
        found = None
        if depth < _DEPTH:
            if some.size >= 2 * _MIN_LINES:
                found = self._gutter(some, height, self.are_columns)
                tiers = self._tiers(some, height) if found else []
                if len(tiers) > 1:
                    return [stretch for tier in tiers for stretch in self.ordered(tier, depth + 1)]
                headlines = self._headlines(some, height) if found else 0
                if headlines:
                    by_top = some[np.argsort(self.top[some], kind="stable")]
                    return [self.rows(by_top[:headlines]), *self.ordered(by_top[headlines:], depth + 1)]
            if found is None and some.size >= _MIN_LINES:
                sections = self.sections(some, height)
                if len(sections) > 1:
                    return [stretch for part in sections for stretch in self.ordered(part, depth + 1)]
                found = self._gutter(some, height, self.stand_beside)
        if found is None:
            return [self.rows(some)]
        return self._by_columns(some, *found, height, depth)

    def _by_columns(
        self, some: Some, gutter: float, bands: list[_Band], height: float, depth: int
    ) -> list[Stretch]:
        """Return bands with columns column by column, headlines and full-width rows in place."""
        ordered: list[Stretch] = []
        waiting: list[int] = []

        def flush() -> None:
            nonlocal waiting
            rest = np.array(sorted(waiting), dtype=np.intp)
            ordered.extend(self.ordered(rest, depth + 1) if rest.size < some.size else [self.rows(rest)])
            waiting = []

        for band in chain.from_iterable(self._columns_apart(band, gutter, height) for band in bands):
            left, right = self.sides(band.boxes, gutter)
            columns = left.size and right.size and not band.spans
            if columns and (self.are_columns(left, right, height) or self.stand_beside(left, right, height)):
                flush()
                pairs = self._pairs(left, right, height) or [(left, right)]
                islands = np.array(band.islands, dtype=np.intp)
                for part in (*chain.from_iterable(pairs), islands):
                    ordered += self.ordered(part, depth + 1)
            else:
                waiting += [*band.boxes.tolist(), *band.islands]
        flush()
        return [stretch for stretch in ordered if stretch]

    def _gutter(self, some: Some, height: float, test: _Test) -> tuple[float, list[_Band]] | None:
        """Return the valid gutter with most text along it, and its bands."""
        best: tuple[float, float, list[_Band]] | None = None
        for gutter, crossed in self._clear_strips(some, height):
            bands = self._bands(some, gutter, height)
            score = sum(self._shared_height(band, gutter, height, test) for band in bands)
            score -= 0.5 * height * crossed
            if score > 0 and (best is None or score > best[0]):
                best = (score, gutter, bands)
        return best and best[1:]

    def _clear_strips(self, some: Some, height: float) -> list[tuple[float, int]]:
        """Return the vertical strips that fewer boxes cross than on both sides, with the number of crossings."""
        starts, ends = self.left[some] + _OVER * height, self.right[some] - _OVER * height
        wide = ends > starts
        places = np.concatenate([starts[wide], ends[wide]])
        steps = np.concatenate([np.ones(wide.sum(), dtype=int), -np.ones(wide.sum(), dtype=int)])
        by_place = np.lexsort((steps, places))
        places, crossed = places[by_place], np.cumsum(steps[by_place])
        falls, rises = steps[by_place][:-1] < 0, steps[by_place][1:] > 0
        minima = np.flatnonzero(falls & rises & (crossed[:-1] <= 0.5 * some.size))
        minima = minima[np.argsort(crossed[minima], kind="stable")][:_GUTTERS]
        return [(float(places[k] + places[k + 1]) / 2, int(crossed[k])) for k in sorted(minima)]

    def _bands(self, some: Some, gutter: float, height: float) -> list[_Band]:
        """Divide boxes into bands at those that cross the gutter, from top to bottom."""
        crosses = self._crosses(some, gutter, height)
        across, rest = some[crosses], some[~crosses]
        lower = np.minimum(self.bottom[across, None], self.bottom[rest])
        upper = np.maximum(self.top[across, None], self.top[rest])
        level = lower - upper > 0.4 * np.minimum(self.height[across, None], self.height[rest])
        on_left = (level & (self.right[rest] <= self.left[across, None] + height)).any(axis=1)
        on_right = (level & (self.left[rest] >= self.right[across, None] - height)).any(axis=1)
        islands = across[on_left & on_right]
        if islands.size > 0.2 * some.size or self.is_prose(islands, height):
            islands = islands[:0]
        across = across[~np.isin(across, islands)]
        across = across[np.argsort(self.middle[across], kind="stable")]
        places = np.searchsorted(self.middle[across], self.middle[rest], side="right")
        bands: list[_Band] = []
        for place in range(across.size + 1):
            if (places == place).any():
                bands.append(_Band(rest[places == place], spans=False))
            if place < across.size:
                one = across[place : place + 1]
                if bands and bands[-1].spans:
                    bands[-1] = _Band(np.append(bands[-1].boxes, one), spans=True)
                else:
                    bands.append(_Band(one, spans=True))
        columns = [band for band in bands if not band.spans]
        tops = np.array([self.top[band.boxes].min() for band in columns])
        bottoms = np.array([self.bottom[band.boxes].max() for band in columns])
        for island in islands.tolist():
            middle = self.middle[island]
            away = np.where((tops <= middle) & (middle <= bottoms), 0, abs(tops - middle))
            columns[int(away.argmin())].islands.append(island)
        return bands

    def _crosses(self, some: Some, gutter: float, height: float) -> NDArray[np.bool_]:
        over = _OVER * height
        return np.asarray((self.left[some] < gutter - over) & (self.right[some] > gutter + over))

    def _headlines(self, some: Some, height: float) -> int:
        """Return the number of boxes above columns that cross a gutter between two of these.

        It need not be the best gutter: a title in the middle of four columns leaves the outer gutters free. Its sides
        need not be prose: each may be several columns.
        """
        parts = self.sections(some, _OVER * height)
        count = next((number for number, part in enumerate(parts) if part.size > 1), 0)
        if not count:
            return 0
        head, rest = np.concatenate(parts[:count]), np.concatenate(parts[count:])
        columns = _Band(rest, spans=False)
        return count * any(
            self._crosses(head, gutter, height).any()
            and self._shared_height(columns, gutter, height, lambda *_: True) > 0
            for gutter, _ in self._clear_strips(rest, height)
        )

    def _shared_height(self, band: _Band, gutter: float, height: float, test: _Test) -> float:
        """Return the height of a gutter with text on both sides; 0 if it is invalid."""
        left, right = self.sides(band.boxes, gutter)
        if band.spans or not left.size or not right.size:
            return 0.0
        gap = self.left[right].min() - self.right[left].max()
        top = max(self.top[left].min(), self.top[right].min())
        bottom = min(self.bottom[left].max(), self.bottom[right].max())
        if gap < -2 * _OVER * height or bottom <= top or not test(left, right, height):
            return 0.0
        return float((bottom - top) * (1 + min(gap, 3 * height) / (10 * height)))

    def _pairs(self, left: Some, right: Some, height: float) -> list[tuple[Some, Some]]:
        """Return the rows of two columns of cells with several lines, empty if these are no such cells.

        In these, white space crosses the gutter repeatedly, and both sides continue at the same height below it.
        """
        sections = self.sections(np.concatenate([left, right]), 0.5 * height)
        parts = [(part[np.isin(part, left)], part[np.isin(part, right)]) for part in sections]
        level = sum(
            bool(one.size and other.size)
            and abs(self.middle[one].min() - self.middle[other].min()) < 0.4 * height
            for one, other in parts
        )
        uneven = sum(len(self.rows(one)) != len(self.rows(other)) for one, other in parts)
        are_cells = level >= 0.8 * len(parts) and uneven >= 0.3 * len(parts)
        return parts if len(parts) > _MIN_LINES and are_cells else []

    def _columns_apart(self, band: _Band, gutter: float, height: float) -> list[_Band]:
        """Return the band divided from boxes above and below its columns that leave the gutter free.

        These are tables, or boxes on one side that extend further to the other than the columns, or are far below.
        """
        if band.spans or band.islands:
            return [band]
        parts = self.sections(band.boxes, height)
        sides = [self.sides(part, gutter) for part in parts]
        tables = [self.is_table(part, gutter, height) for part in parts]
        sides_with_tables = zip(sides, tables, strict=True)
        columns = [
            pair for pair, is_table in sides_with_tables if pair[0].size and pair[1].size and not is_table
        ]
        if not columns:
            return [band]
        ends = max(self.right[left].max() for left, _ in columns) + 2 * height
        starts = min(self.left[right].min() for _, right in columns) - 2 * height
        gaps = (self.top[below].min() - self.bottom[above].max() for above, below in pairwise(parts))
        far = [False, *(gap > _FAR * height for gap in gaps)]
        apart = [
            is_table
            or (not right.size and (is_far or self.right[left].max() > ends))
            or (not left.size and (is_far or self.left[right].min() < starts))
            for (left, right), is_table, is_far in zip(sides, tables, far, strict=True)
        ]
        first, last = apart.index(False), len(parts) - apart[::-1].index(False)
        cuts = [parts[:first], parts[first:last], parts[last:]]
        return [_Band(np.concatenate(cut), spans=False) for cut in cuts if cut]

    def line_height(self, some: Some) -> float:
        """Return the usual height of a line."""
        text = some[~self.apart[some]]
        return max(1.0, float(np.median(self.height[text if text.size else some])))

    def sides(self, some: Some, gutter: float) -> tuple[Some, Some]:
        """Return the boxes to the left and right of a gutter."""
        is_left = self.centre[some] < gutter
        return some[is_left], some[~is_left]

    def sections(self, some: Some, space: float) -> list[Some]:
        """Divide at horizontal white space that is wider than this, and than that between most rows.

        Large print may have wider space below it.
        """
        by_top = some[np.argsort(self.top[some], kind="stable")]
        gaps = self.top[by_top][1:] - np.maximum.accumulate(self.bottom[by_top])[:-1]
        between_rows = gaps[gaps > 0]
        if between_rows.size >= _MIN_LINES:
            space = max(space, min(2 * space, 1.5 * float(np.median(between_rows))))
        larger = np.where(self.apart[by_top], 0, self.height[by_top] - self.line_height(some)).clip(0)
        return np.split(by_top, np.flatnonzero(gaps > space + larger[:-1] / 2) + 1)

    def are_columns(self, left: Some, right: Some, height: float) -> bool:
        """Return whether the sides are columns, rather than halves of rows."""
        return (
            self._has_prose(left, height)
            and self._has_prose(right, height)
            and not self._are_fields(left, right, height)
        )

    def _has_prose(self, some: Some, height: float, depth: int = 2) -> bool:
        """Return whether this is a column of prose, or several side by side, whose lines need not be level."""
        if self.is_prose(some, height):
            return True
        if not depth or some.size < 2 * _MIN_LINES:
            return False
        clear = (
            self.sides(some, gutter) for gutter, crossed in self._clear_strips(some, height) if not crossed
        )
        return any(all(self._has_prose(side, height, depth - 1) for side in sides) for sides in clear)

    def _are_fields(self, left: Some, right: Some, height: float) -> bool:
        """Return whether most rows on the left are labels with the first line of a value beside them, or such pairs."""
        level = np.abs(self.middle[left][:, None] - self.middle[right]) < 0.4 * height
        nearest = right[np.where(level, self.left[right], np.inf).argmin(axis=1)]
        sides = left[level.any(axis=1)], nearest[level.any(axis=1)]
        count = len(sides[0])
        if count < _MIN_FIELDS or count < _FIELDS * left.size:
            return False
        # A few lines of prose may begin with a sentence each, and so may lists that stand side by side.
        is_full = count >= max(_MIN_BEGIN, _FULL_FORM * left.size)
        is_short = np.median(self.width[sides[0]]) < _LABEL_LENGTH * height
        begin = is_full and is_short and min(self.cues.begins[side].mean() for side in sides) >= _BEGIN
        return bool(begin or max(self.cues.label[side].mean() for side in sides) >= _LABELLED)

    def _tiers(self, some: Some, height: float) -> list[Some]:
        """Divide at white space across all columns above a headline: the part above is read first."""
        tiers: list[Some] = []
        for part in self.sections(some, _TIER_SPACE * height):
            first = part[self.top[part] < self.top[part].min() + height]
            tall = first[self.height[first] >= _TALLER * height]
            is_headline = self.width[tall].sum() >= _HEADLINE * (
                self.right[part].max() - self.left[part].min()
            )
            if not tiers or (is_headline and min(part.size, tiers[-1].size) >= 2 * _MIN_LINES):
                tiers.append(part)
            else:
                tiers[-1] = np.concatenate([tiers[-1], part])
        return tiers

    def stand_beside(self, left: Some, right: Some, height: float) -> bool:
        """Return whether text is beside a table, a label beside running text, or a list or address beside one."""
        tables = self._is_beside_table(left, right, height) or self._is_beside_table(right, left, height)
        if tables or self._are_addresses(left, right, height) or self._interleave(left, right, height):
            return True
        is_prose = any(self.is_prose(side, height, length=_SURE_LENGTH) for side in (left, right))
        if not is_prose or self._are_fields(left, right, height):
            return False
        fewer, more = sorted((len(self.rows(left)), len(self.rows(right))))
        short = self.width[right].max() < _MIN_LENGTH * height
        if short and len(self.rows(right)) == fewer and self._aligned(left, right, height, 1) >= _ALIGNED:
            return False  # amounts at the ends of rows
        return more >= fewer + 2 and (
            fewer <= _MIN_LINES or self._aligned(left, right, height, _MIN_LINES) < _ALIGNED
        )

    def is_prose(self, some: Some, height: float, length: float = _MIN_LENGTH) -> bool:
        """Return whether long pieces fill the column, or end with their neighbours."""
        rows = self.rows(some[~self.apart[some]])
        if len(rows) < _MIN_LINES:
            return False
        first, last = np.array([row[0] for row in rows]), np.array([row[-1] for row in rows])
        text = np.array([self.width[row].sum() for row in rows])
        said = np.array([self.length[row].sum() for row in rows])
        pieces = np.array([len(row) for row in rows])
        tallest = np.array([self.height[row].max() for row in rows])
        left, right = self.left[first], self.right[last]
        width = max(1.0, np.sort(right)[int(0.9 * (len(rows) - 1))] - left.min())
        near = _either(np.diff(self.middle[first]) <= _MAX_PITCH * height)
        long = near & (said / pieces >= length * height) & (tallest <= 1.8 * height)
        flush = _either(long[1:] & long[:-1] & (abs(np.diff(right)) < height) & (abs(np.diff(left)) < height))
        full = int((long & ((text >= _FILL * width) | flush)).sum())
        return full >= max(_MIN_LINES, _FULL_SHARE * len(rows))

    def is_table(self, some: Some, gutter: float, height: float) -> bool:
        """Return whether most rows have several cells on a side of the gutter."""
        rows = self.rows(some)
        cells = sum(len(row) > 2 for row in rows)  # noqa: PLR2004  more than one a side
        return cells >= max(2, _ALIGNED * len(rows)) and not any(
            self.is_prose(side, height) for side in self.sides(some, gutter)
        )

    def _aligned(self, left: Some, right: Some, height: float, least: int) -> float:
        """Return the share of rows that are level with one of the other side; 1 for too few rows."""
        fewer, more = sorted(self._row_middles(left, right, 1.5 * height), key=len)
        if len(fewer) < least:
            return 1.0
        return float((np.abs(fewer[:, None] - more).min(axis=1) < 0.3 * height).mean())

    def _interleave(self, left: Some, right: Some, height: float) -> bool:
        """Return whether many rows of each side overlap rows of the other without being level."""
        if any(np.median(self.width[side]) < _MIN_WIDTH * height for side in (left, right)):
            return False  # bullets and numbers
        one, other = self._row_middles(left, right, height)
        if min(len(one), len(other)) < _MIN_INTERLEAVED:
            return False
        away = np.abs(one[:, None] - other) / height
        nearest = away.min(axis=0), away.min(axis=1)
        return all(np.mean((one > 0.25) & (one < 0.75)) >= _INTERLEAVED for one in nearest)  # noqa: PLR2004

    def _is_beside_table(self, some: Some, other: Some, height: float) -> bool:
        """Return whether the other side is a table, and this one starts no higher and is mostly beside it."""
        if not self.apart[other].all():
            return False
        top, bottom = self.top[some].min(), self.bottom[some].max()
        shared = min(bottom, self.bottom[other].max()) - max(top, self.top[other].min())
        return bool(top > self.top[other].min() - height and shared > 0.5 * (bottom - top))

    def _are_addresses(self, left: Some, right: Some, height: float) -> bool:
        """Return whether both sides are short flush blocks with address lines, which labels of a form lack."""
        sides = [self.rows(side) for side in (left, right)]
        for rows in sides:
            first = [row[0] for row in rows]
            if len(rows) not in _ADDRESS_ROWS or any(len(row) > 1 for row in rows):
                return False
            flush = np.ptp(self.left[first]) < height or np.ptp(self.right[first]) < height
            if not flush or np.diff(self.middle[first]).max() > 2.5 * height:
                return False
        return all(self.cues.address[side].sum() >= 0.25 * side.size for side in (left, right))

    def _row_middles(self, left: Some, right: Some, slack: float) -> list[NDArray[np.float64]]:
        """Return the middles of both sides' rows, where these are beside each other; the side with fewer rows first."""
        middles = ([self.middle[row].mean() for row in self.rows(side)] for side in (left, right))
        sides = sorted(map(np.sort, middles), key=len)
        top, bottom = max(side[0] for side in sides) - slack, min(side[-1] for side in sides) + slack
        return [side[(side >= top) & (side <= bottom)] for side in sides]

    def rows(self, some: Some) -> Stretch:
        """Return the rows of boxes, from top to bottom: level, and not above each other."""
        key = some.tobytes()
        if key in self._known_rows:
            return self._known_rows[key]
        rows: list[Row] = []
        for one in some[np.argsort(self.middle[some], kind="stable")].tolist():
            # Plain numbers: this runs more often than all else.
            left, right, middle, height = self._plain[one]
            for row in [] if self.apart[one] else rows[:-5:-1]:
                others = [self._plain[other] for other in row]
                mean = sum(other[2] for other in others) / len(others)
                if (
                    not self.apart[row[0]]
                    and abs(middle - mean) < 0.5 * min(height, *(other[3] for other in others))
                    and all(
                        min(right, other[1]) - max(left, other[0])
                        < 0.5 * min(right - left, other[1] - other[0])
                        for other in others
                    )
                ):
                    row.append(one)
                    break
            else:
                rows.append([one])
        self._known_rows[key] = [sorted(row, key=lambda one: self._plain[one]) for row in rows]
        return self._known_rows[key]


def _either(pairs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each row whether it forms such a pair with the one above or below."""
    found: NDArray[np.bool_] = np.append(pairs, False) | np.append(False, pairs)
    return found
