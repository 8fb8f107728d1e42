"""Whether anything stands on a page, told without reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFilter

from pecia_workers.media.ink import CLEAR_IF_SMOOTH, MOST_CONTRAST, SMOOTHING, above_noise, from_paper

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CELL = 4
_FULL = 255
_CELL_SHARE = 0.2
_WINDOW = (4, 10)  # cells: a word of body text, and more than a speck of dust fills
_WINDOW_CELLS = 9
_SMALLEST = 64  # pixels; less is a cutting, not a page with edges and dust
_EDGE_SHARE, _EDGE_DARKER, _EDGE_DEPTH = 0.25, 24, 0.05
"""A scanner's dark edge: how full or how much darker than the page a row of it is, how far in it may reach."""


def is_blank(grey: Image.Image) -> bool:
    """Return whether there is nothing on a page but noise, specks of dust and the scanner's dark edges.

    One short word, however faint, is enough for a page not to be blank: text lost costs more than an empty page read.
    """
    if min(grey.size) < _SMALLEST:
        return bool(np.ptp(np.asarray(grey)) <= CLEAR_IF_SMOOTH[0])
    difference = from_paper(grey.filter(ImageFilter.GaussianBlur(SMOOTHING)))
    noise = above_noise(difference, *CLEAR_IF_SMOOTH)  # or the texture of a picture that fills its page
    marks = _marked_cells(difference > min(noise, MOST_CONTRAST))
    marks = _without_edges(marks, np.asarray(grey.reduce(_CELL)))
    sums = np.pad(marks.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    height, width = _WINDOW
    filled = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    return bool(filled.max() < _WINDOW_CELLS)


def _marked_cells(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    cells = Image.fromarray(ink.view(np.uint8) * _FULL).reduce(_CELL)
    return np.asarray(cells) > _CELL_SHARE * _FULL


def _without_edges(marks: NDArray[np.bool_], grey: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the marks without the dark edges, which begin at the border: a line of text near it does not."""
    paper = np.median(grey)
    for _ in range(4):
        depth = max(1, int(marks.shape[0] * _EDGE_DEPTH))
        full = marks[:depth].mean(axis=1) > _EDGE_SHARE
        dark = grey[:depth].mean(axis=1) < paper - _EDGE_DARKER
        edge = int(np.append(full | dark, False).argmin())
        marks, grey = np.rot90(marks[edge:]), np.rot90(grey[edge:])
    return marks
