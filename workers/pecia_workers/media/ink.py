"""Where a page differs from its paper: the view that the blank test and the search for text lines share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from PIL import Image

from pecia_workers.media.skew import levelled, slope_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORKING_SIDE = 1760
"""Longer side, in pixels, at which pages are looked at: A4 at 150 dots per inch."""

_PAPER_CELL = 32
_CONTRAST = 48
_RULE = 120  # pixels of unbroken ink that no letter has


@dataclass(frozen=True)
class View:
    """A page as it is looked at: small, grey, with its ink."""

    grey: Image.Image
    ink: NDArray[np.bool_]

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> Self:
        """Return the view of a page."""
        grey = working_grey(pixels)
        return cls(grey, find_ink(grey))

    @cached_property
    def letters(self) -> NDArray[np.bool_]:
        """The ink without rules."""
        return without_rules(self.ink)

    @cached_property
    def slope(self) -> float:
        """Degrees, clockwise, by which the page's lines slope; 0 if in doubt."""
        return slope_of(self.ink)

    def turned(self, degrees: int) -> Self:
        """Return the view turned clockwise by a multiple of 90 degrees."""
        quarters = degrees // 90
        return type(self)(self.grey.rotate(-degrees, expand=True), np.rot90(self.ink, -quarters))

    def levelled(self) -> Self:
        """Return the view with level lines; corners are lost."""
        if not self.slope:
            return self
        grey = levelled(self.grey, -self.slope, quality=Image.Resampling.BILINEAR)
        return type(self)(grey, find_ink(grey))


def working_grey(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return the page in grey, shrunk to the working size if it is larger."""
    image = Image.fromarray(pixels).convert("L")
    factor = max(image.size) / WORKING_SIDE
    if factor > 1:
        size = (max(1, round(image.width / factor)), max(1, round(image.height / factor)))
        image = image.resize(size, Image.Resampling.BOX, reducing_gap=1.0)
    return image


def find_ink(grey: Image.Image) -> NDArray[np.bool_]:
    """Return a mask of what was printed or written: pixels that differ clearly from the paper around them.

    Works for grey paper, uneven light and light print on dark ground alike.
    """
    size = (max(1, grey.width // _PAPER_CELL), max(1, grey.height // _PAPER_CELL))
    cells = np.asarray(grey.resize((size[0] * 4, size[1] * 4), Image.Resampling.BOX))
    # The paper is the lighter part of each cell's neighbourhood.
    blocks = cells.reshape(size[1], 4, size[0], 4).transpose(0, 2, 1, 3).reshape(size[1], size[0], 16)
    paper = Image.fromarray(np.percentile(blocks, 75, axis=2).astype(np.uint8))
    ground = np.asarray(paper.resize(grey.size, Image.Resampling.BILINEAR), dtype=np.int16)
    return np.abs(ground - np.asarray(grey, dtype=np.int16)) > _CONTRAST


def without_rules(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the ink without the rules of tables and forms, which would pass for lines of text."""
    return ink & ~_long_runs(ink) & ~_long_runs(np.ascontiguousarray(ink.T)).T


def _long_runs(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the ink of each row that belongs to a run of `_RULE` pixels or more."""
    found = np.zeros_like(ink)
    ink = ink.copy()  # with its neighbours above and below: a rule that was turned has steps
    ink[1:] |= ink[:-1].copy()
    ink[:-1] |= ink[1:].copy()
    rows = _rows_with_full_block(ink, _RULE // 2)
    if not rows.size or ink.shape[1] < _RULE:
        return found
    sums = np.pad(ink[rows].cumsum(axis=1, dtype=np.int32), ((0, 0), (1, 0)))
    for row, start in np.argwhere(sums[:, _RULE:] - sums[:, :-_RULE] == _RULE):
        found[rows[row], start : start + _RULE] = True
    return found


def _rows_with_full_block(ink: NDArray[np.bool_], width: int) -> NDArray[np.intp]:
    """Return the rows where an aligned block of this width is all ink: every run of twice the width holds one."""
    blocks = ink.shape[1] // width
    full = ink[:, : blocks * width].reshape(ink.shape[0], blocks, width).all(axis=2)
    return np.flatnonzero(full.sum(axis=1))
