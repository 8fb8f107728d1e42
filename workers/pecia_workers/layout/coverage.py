"""Coverage: how much of a page's text was read, by its letters, found without an engine. Needs OpenCV (pecia[cpu]).

Letters are connected pieces of ink in a row with others of similar height, as in every script that our engines read.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_schemas.blocks import Box, Line
from pecia_workers.layout.ink import contrasts, find_faint_ink, from_paper, sum_within
from pecia_workers.layout.lines import apart, around, box_of, touch

_LEAST_HEIGHT, _MOST_HEIGHT = 5, 0.04
"""Least height of a letter in pixels, and its greatest relative to the page's longer side."""
_LEAST_AREA, _LEAST_FILL = 10, 0.12
_WIDEST, _NARROWEST = 12, 1 / 6
"""Width by height: letters of a word may touch."""
_OFF_LINE, _APART = 0.6, 3.0
"""Greatest vertical and horizontal distance of neighbours' middles in a row, relative to their size."""
_LOWER, _HIGHER = 0.55, 1.8
_LOWER_ALONE, _HIGHER_ALONE = 0.75, 3.0
"""Height of isolated pieces, relative to the page's small print."""
_NEIGHBOURS: Final = range(3, 15)
"""Most letters within that distance, including the letter itself: halftone dots have more."""
_BAR_FILL, _BAR = 0.7, 1.5
"""Of a dash of a dashed rule: how full its rectangle is, and width by height."""
_BLOCK_FILL, _BLOCK = 0.85, 10
"""Of a coloured field: how full its rectangle is, and its shorter side in pixels."""
_FIELD_FILL, _FIELD_AROUND, _RING = 0.7, 0.95, 2
"""Of a field with light letters on it: how full its rectangle is, and the ring of so many pixels around a letter."""
_AT_A_TIME: Final = 4096
TALLEST: Final = 0.12
"""Height of letters in pictures on a written page, by its longer side."""
_DARK, _LEAST_DARK, _LEAST_FIGURE = 0.7, 48, 0.0005
"""Strong print is darker than stamps; its contrast, in levels, and its least share of a page."""
_FIGURE, _TOUCHED = 0.6, 0.4
"""Size of the strokes of a figure, by the height of small print; how much of it is around a letter that it covers."""
_SMALL_PART: Final = 0.25
"""Share of a line's height below which pieces are dots, accents and hyphens."""
_PARTS, _PARTS_OF_A_SQUARE, _PARTS_MORE, _SQUARE = 1.8, 8.0, 4.0, "\u2e80"
"""Most pieces of ink of a character, of a Chinese or Korean one (from `_SQUARE` on), and of a line in addition."""
_READ_SHARE: Final = 0.3
"""Share of a letter's rectangle inside known words from which it belongs to them."""
_NEAR, _OFF_MIDDLE = 1.2, 0.35
"""Margin around a row of letters, and how far the middles of letters are off its middle, by their height."""
_MOST_REGIONS, _MOST_OF_PAGE = 24, 0.5
"""Number of regions, and their share of a page, above which they are merged."""
_SMALL_SHARE, _OF_MEDIAN, _LEAST_LETTERS = 0.2, 0.55, 20


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of a page, by the rectangles around them."""

    page: tuple[int, int]
    """Height and width of the page, in pixels."""
    boxes: NDArray[np.int32]
    """Left, top, width and height of each letter."""
    lone: NDArray[np.int32]
    """The same for components of letter height with too few neighbours: a number in its cell, or a speck."""

    @classmethod
    def of(cls, pixels: NDArray[np.uint8], tallest: float | None = None) -> Self:
        """Find the letters of an RGB page; `tallest`: greatest height in pixels, for a part of a page."""
        ink = find_faint_ink(Image.fromarray(pixels).convert("L")).view(np.uint8)
        _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
        highest = max(ink.shape) * _MOST_HEIGHT if tallest is None else tallest
        boxes = _letter_like(stats, highest)
        width, height, area = stats[:, 2:].T
        is_field = (np.minimum(width, height) >= _BLOCK) & (area >= _FIELD_FILL * width * height)
        is_field[0] = False
        if is_field.any():  # letters left out of coloured fields, light on dark
            light = _letter_like(cv2.connectedComponentsWithStats(1 - ink, connectivity=4)[2], highest)
            sums = cv2.integral(is_field[labels].view(np.uint8))
            left, top, width, height = light.T
            inside, around = (
                sum_within(sums, left - grown, top - grown, left + width + grown, top + height + grown)
                for grown in (0, _RING)
            )
            ring = (width + 2 * _RING) * (height + 2 * _RING) - width * height
            boxes = np.concatenate([boxes, light[around - inside >= _FIELD_AROUND * ring]])
        boxes = boxes[np.argsort(2 * boxes[:, 1] + boxes[:, 3], kind="stable")]
        neighbours = _neighbours(boxes)
        in_row = (neighbours >= _NEIGHBOURS.start) & (neighbours < _NEIGHBOURS.stop)
        letters = cls((ink.shape[0], ink.shape[1]), boxes[in_row], boxes[neighbours < _NEIGHBOURS.start])
        size = letters.lone[:, 3] / (letters.small_height or np.inf)
        return replace(letters, lone=letters.lone[(size > _LOWER_ALONE) & (size < _HIGHER_ALONE)])

    @classmethod
    def or_other_ink(cls, pixels: NDArray[np.uint8]) -> Self:
        """Return all print as letters, except specks and rules: some letters touch, or are on a small field."""
        ink = find_faint_ink(Image.fromarray(pixels).convert("L")).view(np.uint8)
        stats = cv2.connectedComponentsWithStats(ink, connectivity=8)[2][1:].astype(np.int32)
        width, height, area = stats[:, 2:].T
        is_rule = np.maximum(width, height) > _WIDEST * np.minimum(width, height)
        some = (height >= _LEAST_HEIGHT) & (area >= _LEAST_AREA) & (area >= _LEAST_FILL * width * height)
        return cls((ink.shape[0], ink.shape[1]), stats[some & ~is_rule, :4], stats[:0, :4])

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def small_height(self) -> float | None:
        """Height, in pixels, of the letters of the page's small print; None with too few letters to tell."""
        if len(self) < _LEAST_LETTERS:
            return None
        heights = self.boxes[:, 3]
        return max(float(np.quantile(heights, _SMALL_SHARE)), _OF_MEDIAN * float(np.median(heights)))

    def outside(self, quads: Iterable[NDArray[np.float32]]) -> Self:
        """Return the letters whose middle is in none of these quadrangles."""
        covered = np.zeros(self.page, np.uint8)
        for quad in quads:
            cv2.fillConvexPoly(covered, np.round(quad).astype(np.int32), 1)
        left, lone = (
            boxes[covered[boxes[:, 1] + boxes[:, 3] // 2, boxes[:, 0] + boxes[:, 2] // 2] == 0]
            for boxes in (self.boxes, self.lone)
        )
        return type(self)(self.page, left, lone)

    def beneath(self, pixels: NDArray[np.uint8]) -> Self:
        """Return the letters of the RGB page under a stamp or another lighter or coloured figure.

        They are not in `boxes`, since their strokes are connected with the figure's: they are its darker part.
        """
        nothing = type(self)(self.page, self.boxes[:0], self.lone[:0])
        if self.small_height is None:
            return nothing
        red, green, blue = cv2.split(pixels)
        lightest = from_paper(Image.fromarray(cv2.max(cv2.max(red, green), blue)))  # of coloured ink one is
        dark = (lightest > _DARK * contrasts(lightest)[1]).view(np.uint8)
        around = np.asarray(cv2.dilate(dark, np.ones((5, 5), np.uint8)), dtype=np.uint8)
        ink = from_paper(Image.fromarray(pixels).convert("L")) > _LEAST_DARK
        figure = ink.view(np.uint8) & (1 - around)
        if cv2.countNonZero(figure) < _LEAST_FIGURE * figure.size:
            return nothing
        _, labels, stats, _ = cv2.connectedComponentsWithStats(figure, connectivity=8)
        size = stats[:, 2:4].min(axis=1)
        size[0] = 0
        figure = (size >= _FIGURE * self.small_height)[labels].view(np.uint8)
        stats = cv2.connectedComponentsWithStats(dark, connectivity=8)[2]
        boxes = _letter_like(stats, _HIGHER_ALONE * self.small_height)
        left, top, width, height = boxes[boxes[:, 3] >= _LOWER * self.small_height].T
        sums = cv2.integral(figure)
        reach = 4
        near = sum_within(sums, left - reach, top - reach, left + width + reach, top + height + reach)
        some = np.stack([left, top, width, height], axis=1)[near >= _TOUCHED * (width + height)]
        return type(self)(self.page, some.astype(np.int32), self.lone[:0])

    def unread(self, pieces: Iterable[Line]) -> Self:
        """Return the letters that no recognised text accounts for.

        A text accounts for as many letters as it may have, unless they are much smaller than its line, as parts of
        signs are.
        """
        left, top, width, height = self.boxes.T
        x, y = left + width // 2, top + height // 2
        is_read = np.zeros(len(self), np.bool_)
        for piece in pieces:
            box = piece.box
            inside = np.flatnonzero((x >= box.left) & (x < box.right) & (y >= box.top) & (y < box.bottom))
            is_small = height[inside] < _SMALL_PART * min(box.bottom - box.top, box.right - box.left)
            text = "".join(piece.text.split())
            room = sum(_PARTS_OF_A_SQUARE if one >= _SQUARE else _PARTS for one in text) + _PARTS_MORE
            if np.count_nonzero(~is_small) <= room:
                is_read[inside[~is_small]] = True
            if np.count_nonzero(is_small) <= room / 2:
                is_read[inside[is_small]] = True
        return type(self)(self.page, self.boxes[~is_read], self.lone)

    def beside(self, words: Iterable[Box]) -> Self:
        """Return the letters outside of known words."""
        covered = np.zeros((self.page[0] + 1, self.page[1] + 1), np.int32)
        for box in words:
            covered[max(0, box.top) + 1 : box.bottom + 1, max(0, box.left) + 1 : box.right + 1] = 1
        covered.cumsum(axis=0, out=covered).cumsum(axis=1, out=covered)

        def unknown(boxes: NDArray[np.int32]) -> NDArray[np.int32]:
            left, top, width, height = boxes.T
            within = sum_within(covered, left, top, left + width, top + height)
            return np.asarray(boxes[within < _READ_SHARE * width * height], dtype=np.int32)

        return type(self)(self.page, unknown(self.boxes), unknown(self.lone))

    def lines(self) -> list[NDArray[np.int32]]:
        """Return the letters of rows whose middles are on a straight line of any slope, unlike those of textures."""
        rows = self._groups(self.boxes, _NEIGHBOURS.start)
        return [row for row in rows if _off_line(row) <= _OFF_MIDDLE * np.median(row[:, 3])]

    def regions(self, pictures: Iterable[Box] = (), words: Sequence[Box] = ()) -> list[Box]:
        """Return boxes around straight rows of letters and around these words, merged within a picture.

        None overlap.
        """
        height, width = self.page
        rows = [self._near(_box_around(row), float(np.median(row[:, 3]))) for row in self.lines()]
        rows += [self._near(word, word.bottom - word.top) for word in words]
        clipped = [self._near(picture, 0) for picture in pictures]
        found = [one for one in apart([*rows, *clipped]) if any(touch(one, row) for row in rows)]
        area = sum((one.right - one.left) * (one.bottom - one.top) for one in found)
        if len(found) > _MOST_REGIONS or area > _MOST_OF_PAGE * width * height:
            found = [around(found)]
        return sorted(found, key=lambda region: region.top)

    def _near(self, box: Box, height: float) -> Box:
        """Return a box with a margin relative to its letters' height, clipped to the page."""
        margin = round(_NEAR * height)
        left, top = max(0, box.left - margin), max(0, box.top - margin)
        right, bottom = min(self.page[1], box.right + margin), min(self.page[0], box.bottom + margin)
        return box_of(left, top, max(left, right), max(top, bottom))

    def share_of(self, total: Self) -> float:
        """Return the share of these letters in the page's, 0 to 1."""
        return len(self) / max(1, len(total))

    def rows(self) -> list[Box]:
        """Return a box around each row of at least three neighbours."""
        return self._rows(self.boxes, _NEIGHBOURS.start)

    def pairs(self) -> list[Box]:
        """Return a box around each group of two or more side by side."""
        return self._rows(self.boxes, 2)

    def lone_rows(self) -> list[Box]:
        """Return boxes around isolated pieces, joining those side by side."""
        return self._rows(self.lone, 1)

    def _rows(self, boxes: NDArray[np.int32], least: int) -> list[Box]:
        return [_box_around(row) for row in self._groups(boxes, least)]

    def _groups(self, boxes: NDArray[np.int32], least: int) -> Iterator[NDArray[np.int32]]:
        """Yield groups of `least` or more pieces side by side."""
        reach = np.zeros(self.page, np.uint8)
        for left, top, width, height in boxes.tolist():
            apart = max(width, height)
            cv2.rectangle(reach, (left - apart, top), (left + width + apart, top + height - 1), 1, cv2.FILLED)
        _, labels = cv2.connectedComponents(reach)
        row = labels[boxes[:, 1], boxes[:, 0]]
        for label in np.flatnonzero(np.bincount(row) >= least):
            yield boxes[row == label]


def _box_around(row: NDArray[np.int32]) -> Box:
    left, top = row[:, :2].min(axis=0)
    right, bottom = (row[:, :2] + row[:, 2:]).max(axis=0)
    return box_of(left, top, right, bottom)


def _off_line(row: NDArray[np.int32]) -> float:
    """Return the distance of letters' middles from the line through them."""
    middles = row[:, :2] + row[:, 2:] / 2
    spread: float = np.linalg.svd(middles - middles.mean(axis=0), compute_uv=False)[-1]
    return spread / math.sqrt(len(row))


def _letter_like(stats: NDArray[Any], tallest: float) -> NDArray[np.int32]:
    """Return the boxes of connected pieces that have the size and shape of letters."""
    found = stats[1:].astype(np.int32, copy=False)
    _, _, width, height, area = found.T
    plausible = (
        (height >= _LEAST_HEIGHT)
        & (height <= tallest)
        & (width <= _WIDEST * height)
        & (width >= _NARROWEST * height)
        & (area >= _LEAST_AREA)
        & (area >= _LEAST_FILL * width * height)
        & ((area < _BAR_FILL * width * height) | (width < _BAR * height))
        & ((area < _BLOCK_FILL * width * height) | (np.minimum(width, height) < _BLOCK))
    )
    return found[plausible, :4]


def _neighbours(boxes: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the number of similar neighbours of each box, itself included. Boxes are sorted by height on the page."""
    width, height = boxes[:, 2].astype(np.float32), boxes[:, 3].astype(np.float32)
    across, down = boxes[:, 0] + width / 2, boxes[:, 1] + height / 2
    start = np.searchsorted(down, down - _OFF_LINE * height)
    end = np.searchsorted(down, down + _OFF_LINE * height, side="right")
    neighbours = np.zeros(len(boxes), np.intp)
    for first in range(0, len(boxes), _AT_A_TIME):
        chosen = np.arange(first, min(first + _AT_A_TIME, len(boxes)))
        counts = end[chosen] - start[chosen]
        one = np.repeat(chosen, counts)
        other = np.arange(len(one)) - np.repeat(counts.cumsum() - counts - start[chosen], counts)
        near = np.abs(across[one] - across[other]) < _APART * np.maximum(width, height)[one]
        like = (height[other] > _LOWER * height[one]) & (height[other] < _HIGHER * height[one])
        neighbours += np.bincount(one[near & like], minlength=len(boxes))
    return neighbours
