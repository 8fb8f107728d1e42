"""The order in which a person reads what stands on a page, from its boxes alone: recursive gutters.

A gutter is a vertical strip that few boxes cross, with running text on both sides. Boxes that cross it (headlines)
cut the page into bands; a band is read column by column; what has no gutter is read row by row. Lengths are in heights
of a line, so that neither resolution nor print size matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecia_workers.reading.sides import MIN_LINES, Boxes, Sides, Some, Stretch

_Test: TypeAlias = Callable[[Some, Some, float], bool]

_OVER: Final = 0.35
"""How far a box may reach into a gutter."""
_FAR: Final = 5.0
"""White space above what is no more of a column."""
_DEPTH: Final = 12
_GUTTERS: Final = 24


def reading_order(
    boxes: Boxes, whole: NDArray[np.bool_] | None = None, address: NDArray[np.bool_] | None = None
) -> list[Stretch]:
    """Return every box once, in the order of reading.

    `whole`: boxes that are a thing of their own, such as a table, and stand in no row with others. `address`: boxes
    whose text is part of an address or says how to reach a person; two such blocks side by side are no table.
    """
    if not len(boxes):
        return []
    none = np.zeros(len(boxes), dtype=np.bool_)
    page = _Page(boxes, none if whole is None else whole, none if address is None else address)
    return page.ordered(np.arange(len(boxes)))


@dataclass(frozen=True, slots=True)
class _Band:
    """What stands between two boxes that cross a gutter, or such boxes themselves."""

    boxes: Some
    spans: bool
    islands: list[int] = field(default_factory=list)
    """Boxes that cross the gutter with text level on both sides, such as the caption of a picture between columns."""


class _Page(Sides):
    def ordered(self, some: Some, depth: int = 0) -> list[Stretch]:
        if not some.size:
            return []
        height = self.line_height(some)
        found = None
        if depth < _DEPTH:
            if some.size >= 2 * MIN_LINES:
                found = self._gutter(some, height, self.are_columns)
                headlines = self._headlines(some, height) if found else 0
                if headlines:
                    by_top = some[np.argsort(self.top[some], kind="stable")]
                    return [self.rows(by_top[:headlines]), *self.ordered(by_top[headlines:], depth + 1)]
            if found is None and some.size >= MIN_LINES:
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
        """Return bands with columns column by column; headlines and rows that leave the gutter free as they stand."""
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
                for part in (
                    *(side for pair in pairs for side in pair),
                    np.array(band.islands, dtype=np.intp),
                ):
                    ordered += self.ordered(part, depth + 1)
            else:
                waiting += [*band.boxes.tolist(), *band.islands]
        flush()
        return [stretch for stretch in ordered if stretch]

    # Gutters

    def _gutter(self, some: Some, height: float, test: _Test) -> tuple[float, list[_Band]] | None:
        """Return the gutter along which most text stands that passes the test, with its bands."""
        best: tuple[float, float, list[_Band]] | None = None
        for gutter, crossed in self._clear_strips(some, height):
            bands = self._bands(some, gutter, height)
            score = sum(self._shared_height(band, gutter, height, test) for band in bands)
            score -= 0.5 * height * crossed
            if score > 0 and (best is None or score > best[0]):
                best = (score, gutter, bands)
        return best and best[1:]

    def _clear_strips(self, some: Some, height: float) -> list[tuple[float, int]]:
        """Return where fewer boxes cross a vertical line than to its left and right, and how many cross it there."""
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
        """Cut at what crosses the gutter, from top to bottom."""
        crosses = self._crosses(some, gutter, height)
        across, rest = some[crosses], some[~crosses]
        islands = self._islands(across, rest, height, some.size)
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
        for island in islands.tolist():
            self._nearest(bands, island).islands.append(island)
        return bands

    def _crosses(self, some: Some, gutter: float, height: float) -> NDArray[np.bool_]:
        left, right = self.left[some], self.right[some]
        crosses: NDArray[np.bool_] = (left < gutter - _OVER * height) & (right > gutter + _OVER * height)
        return crosses

    def _headlines(self, some: Some, height: float) -> int:
        """Return how many boxes, one below the other, stand above columns and cross a gutter between two of these.

        It need not be the best gutter: a title in the middle of four columns leaves the outer ones free. What the
        gutter parts need not be prose: each side of it may be several columns.
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

    def _islands(self, across: Some, rest: Some, height: float, of: int) -> Some:
        if not across.size or not rest.size:
            return across[:0]
        level = (
            np.minimum(self.bottom[across, None], self.bottom[rest])
            - np.maximum(self.top[across, None], self.top[rest])
        ) > 0.4 * np.minimum(self.height[across, None], self.height[rest])
        on_left = (level & (self.right[rest] <= self.left[across, None] + height)).any(axis=1)
        on_right = (level & (self.left[rest] >= self.right[across, None] - height)).any(axis=1)
        islands: Some = across[on_left & on_right]
        return islands[:0] if islands.size > 0.2 * of or self.is_prose(islands, height) else islands

    def _nearest(self, bands: list[_Band], island: int) -> _Band:
        def distance(band: _Band) -> float:
            top, bottom = self.top[band.boxes].min(), self.bottom[band.boxes].max()
            middle = self.middle[island]
            return 0.0 if top <= middle <= bottom else abs(float(top - middle))

        return min((band for band in bands if not band.spans), key=distance)

    def _shared_height(self, band: _Band, gutter: float, height: float, test: _Test) -> float:
        """Return along how much of the gutter text stands on both sides; 0 if it fails the test."""
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
        """Return the rows of two columns whose cells have several lines; empty if these are no such cells.

        White space crosses the gutter again and again then, and both sides go on at one height below it.
        """
        both = np.concatenate([left, right])
        parts = [
            (part[np.isin(part, left)], part[np.isin(part, right)])
            for part in self.sections(both, 0.5 * height)
        ]
        level = [
            bool(one.size and other.size)
            and abs(self.middle[one].min() - self.middle[other].min()) < 0.4 * height
            for one, other in parts
        ]
        uneven = [len(self.rows(one)) != len(self.rows(other)) for one, other in parts]
        are_cells = (
            len(parts) > MIN_LINES and sum(level) >= 0.8 * len(parts) and sum(uneven) >= 0.3 * len(parts)
        )
        return parts if are_cells else []

    def _columns_apart(self, band: _Band, gutter: float, height: float) -> list[_Band]:
        """Return the band with what stands above and below its columns apart, though it leaves the gutter free.

        That is a table, or what is on one side alone and reaches further towards the other than the columns do, or
        stands far below all else.
        """
        if band.spans or band.islands:
            return [band]
        parts = self.sections(band.boxes, height)
        sides = [self.sides(part, gutter) for part in parts]
        columns = [
            both
            for part, both in zip(parts, sides, strict=True)
            if both[0].size and both[1].size and not self.is_table(part, gutter, height)
        ]
        if not columns:
            return [band]
        ends = max(self.right[left].max() for left, _ in columns) + 2 * height
        starts = min(self.left[right].min() for _, right in columns) - 2 * height
        apart = [
            self.is_table(part, gutter, height)
            or (not right.size and self.right[left].max() > ends)
            or (not left.size and self.left[right].min() < starts)
            or (
                number
                and not (left.size and right.size)
                and self.top[part].min() - self.bottom[parts[number - 1]].max() > _FAR * height
            )
            for number, (part, (left, right)) in enumerate(zip(parts, sides, strict=True))
        ]
        first, last = apart.index(False), len(parts) - apart[::-1].index(False)
        cuts = [parts[:first], parts[first:last], parts[last:]]
        return [_Band(np.concatenate(cut), spans=False) for cut in cuts if cut]
