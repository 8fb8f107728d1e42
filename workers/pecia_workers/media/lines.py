"""Text lines found by image analysis alone: which way they run, and samples of them. Needs OpenCV (pecia[cpu])."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_STRIPS = 4
_LETTER_SIZES = range(5, 80)
_MIN_LETTERS, _LETTER_SAMPLES, _MAX_LETTERS = 8, 400, 8_000
_HEIGHTS = range(9, 65)
_MIN_ASPECT, _MAX_ASPECT = 2.0, 5.0


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text line, as a rectangle of the mask."""

    top: int
    bottom: int
    left: int
    right: int


def share_across(letters: NDArray[np.bool_]) -> float | None:
    """Return the share of letters whose nearest neighbour stands beside them rather than above or below.

    Near 1 where lines run from left to right, near 0 where they run from top to bottom, None with too few letters.
    Letters stand closer than lines do, in tables and columns too; L. O'Gorman, "The document spectrum for page layout
    analysis", IEEE PAMI 15 (1993).
    """
    centres = _letter_centres(letters)
    if len(centres) < _MIN_LETTERS:
        return None
    chosen = np.linspace(0, len(centres) - 1, min(_LETTER_SAMPLES, len(centres))).astype(np.intp)
    offsets = np.abs(centres[chosen, np.newaxis, :] - centres[np.newaxis, :, :])
    squares = np.square(offsets).sum(axis=2)
    squares[np.arange(len(chosen)), chosen] = np.inf
    nearest = offsets[np.arange(len(chosen)), squares.argmin(axis=1)]
    return float((nearest[:, 0] > nearest[:, 1]).mean())


def _letter_centres(letters: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return x and y of the connected pieces of ink that have the common size of letters: no dots, no pictures."""
    _, _, stats, centres = cv2.connectedComponentsWithStats(letters.view(np.uint8), connectivity=8)
    sizes = stats[1:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].max(axis=1)
    plausible = (sizes >= _LETTER_SIZES.start) & (sizes < _LETTER_SIZES.stop)
    common = np.median(sizes[plausible]) if plausible.any() else 0
    kept = plausible & (sizes > common * 0.6) & (sizes < common * 2.5)
    found: NDArray[np.float32] = centres[1:][kept].astype(np.float32)
    return found[:_MAX_LETTERS]


def text_spans(ink: NDArray[np.bool_]) -> list[Span]:
    """Return pieces of lines that run from left to right, each two to five times as wide as it is high."""
    spans: list[Span] = []
    offset = 0
    for strip in _strips(ink):
        for top, bottom in _runs(strip.sum(axis=1) > 0):
            span = _trimmed(strip, top, bottom, offset)
            if span is not None:
                spans.append(span)
        offset += strip.shape[1]
    return spans


def _strips(ink: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    return np.array_split(ink, _STRIPS, axis=1)


def _runs(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.pad(flags.astype(np.int8), 1)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _trimmed(strip: NDArray[np.bool_], top: int, bottom: int, offset: int) -> Span | None:
    height = bottom - top
    if height not in _HEIGHTS:
        return None
    columns = np.flatnonzero(strip[top:bottom].any(axis=0))
    left, right = int(columns[0]), int(columns[-1]) + 1
    right = min(right, left + round(height * _MAX_ASPECT))
    if right - left < height * _MIN_ASPECT:
        return None
    return Span(top=top, bottom=bottom, left=left + offset, right=right + offset)
