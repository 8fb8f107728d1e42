"""Where a page differs from its paper: the view that the blank test and the search for text lines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORKING_SIDE = 1760
"""Longer side, in pixels, at which pages are looked at: A4 at 150 dots per inch."""

_PAPER_CELL = 32
_CONTRAST = 48


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
