"""From decoded pixels to a page an engine can read: is it blank, does it stand upright."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pecia_workers.media.blank import is_blank
from pecia_workers.media.classifier import line_classifier
from pecia_workers.media.ink import find_ink, working_grey
from pecia_workers.media.pages import PageImage

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

_QUARTER = 90


def prepare(pixels: NDArray[np.uint8]) -> PageImage:
    """Return the page upright and with the verdict of the blank test. Without pecia[local] no page is turned."""
    grey = working_grey(pixels)
    ink = find_ink(grey)
    if is_blank(ink):
        return PageImage(pixels=pixels, blank=True)
    rotation = _rotation(grey, ink)
    upright = np.ascontiguousarray(np.rot90(pixels, -rotation // _QUARTER))
    return PageImage(pixels=upright, rotation=rotation)


def _rotation(grey: Image.Image, ink: NDArray[np.bool_]) -> int:
    classifier = line_classifier()
    if classifier is None:
        return 0
    from pecia_workers.media.orientation import turn_needed  # noqa: PLC0415  needs OpenCV, which pecia[local] brings

    return turn_needed(grey, ink, classifier)
