"""Whether anything stands on a page, told without reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CELL = 4
_FULL = 255
_CELL_SHARE = 0.2
_WINDOW = (4, 10)  # cells: a word of body text, and more than a speck of dust fills
_WINDOW_CELLS = 9
_SMALLEST = 64  # pixels; less is a cutting, not a page with edges and dust
_EDGE_SHARE, _EDGE_DEPTH = (
    0.25,
    0.05,
)  # a scanner's dark edge: how full a row of it is, how far in it may reach


def is_blank(ink: NDArray[np.bool_]) -> bool:
    """Return whether a page's ink is only noise, specks of dust and the scanner's dark edges.

    One short printed word is enough for a page not to be blank: text lost costs more than an empty page read.
    """
    if min(ink.shape) < _SMALLEST:
        return not ink.any()
    marks = _without_edges(_marked_cells(ink))
    sums = np.pad(marks.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    height, width = _WINDOW
    filled = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    return bool(filled.max() < _WINDOW_CELLS)


def _marked_cells(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    cells = Image.fromarray(ink.view(np.uint8) * _FULL).reduce(_CELL)
    return np.asarray(cells) > _CELL_SHARE * _FULL


def _without_edges(marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    for _ in range(4):
        depth = max(1, int(marks.shape[0] * _EDGE_DEPTH))
        full = np.flatnonzero(marks[:depth].mean(axis=1) > _EDGE_SHARE)
        marks = np.rot90(marks[full[-1] + 1 if full.size else 1 :])
    return marks
