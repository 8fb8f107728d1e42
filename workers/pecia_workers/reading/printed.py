"""How lines are printed: letters larger or bolder than those of most text. Needs OpenCV (pecia[cpu])."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Line
from pecia_workers.reading.marks import SIGNS

_LARGE, _BOLD, _LARGE_IN_BOTH = 1.2, 1.25, 1.1
"""Height of letters, width of strokes, and both of one line, by those of most text."""
_MIN_LETTERS: Final = 3
"""Letters of a line from which it can be told; digits, and boxes to be ticked, have other heights."""
_MIN_CONTRAST: Final = 16
_TALL: Final = 85
"""Percentile of the heights of a line's components that is a capital's."""
_MIN_COMPONENT: Final = 0.25
"""Of the line's height; smaller ones are dots and accents."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A line and how it is printed."""

    line: Line
    size: float = 1.0
    """Height of its letters, by that of most of the page's text; box heights vary too much to tell."""
    weight: float = 1.0
    """Width of its strokes, likewise."""

    @property
    def is_large(self) -> bool:
        """Whether it is larger than most text."""
        return self.size >= _LARGE or min(self.size, self.weight) >= _LARGE_IN_BOTH

    @property
    def is_bold(self) -> bool:
        """Whether it is bolder than text of its size."""
        return self.weight >= _BOLD * max(1.0, self.size)

    @property
    def stands_out(self) -> bool:
        """Whether it is larger or bolder than most text."""
        return self.is_large or self.is_bold


def printed(lines: Sequence[Line], pixels: NDArray[np.uint8]) -> list[Printed]:
    """Return how the lines of a page are printed, beside most of them."""
    if not lines:
        return []
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    measured = np.array([_measured(line, grey) for line in lines])
    known: NDArray[np.bool_] = measured.min(axis=1) > 0
    letters = np.array([len(line.text) for line in lines])[known]
    if not known.any():
        return [Printed(line) for line in lines]
    usual = [_weighted_median(column, letters) for column in measured[known].T]
    found = np.where(known[:, None], measured / usual, 1.0)
    return [Printed(line, *one) for line, one in zip(lines, found.tolist(), strict=True)]


def _measured(line: Line, grey: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the height of a line's letters and the mean width of its strokes, in pixels; 0 if that cannot be told."""
    if sum(map(str.isalpha, line.text)) < _MIN_LETTERS or not set(SIGNS).isdisjoint(line.text):
        return 0.0, 0.0
    crop = _cut_out(line.box, grey).astype(np.int16)
    contrast = np.abs(crop - np.median(crop)) if crop.size else crop
    strongest = float(np.percentile(contrast, 98)) if crop.size else 0.0
    if strongest < _MIN_CONTRAST:
        return 0.0, 0.0
    ink = (contrast > strongest / 2).view(np.uint8)
    strokes = np.count_nonzero(np.diff(ink, axis=1, prepend=0) == 1)
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    heights = stats[1:, cv2.CC_STAT_HEIGHT]
    heights = heights[heights > _MIN_COMPONENT * len(ink)]
    if not heights.size:
        return 0.0, 0.0
    darkness = contrast[contrast > strongest / 4].sum() / strongest  # grey edges count by what they are
    return float(np.percentile(heights, _TALL)), float(darkness / max(1, strokes))


def _cut_out(box: Box, grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return grey[max(0, box.top) : max(0, box.bottom), max(0, box.left) : max(0, box.right)]


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.intp]) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
