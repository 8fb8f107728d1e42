"""Pages as their files have them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pecia_workers.media.decoding import page_pixels_and_dpi
from pecia_workers.media.pages import Limits


def page_pixels(document: Path, index: int, limits: Limits) -> NDArray[np.uint8]:
    """Return a page, counted from 0, as its file has it."""
    return page_pixels_and_dpi(document, index, limits)[0]
