"""From decoded pixels to a page an engine can read: is it blank, does it stand upright."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecia_workers.media.blank import is_blank
from pecia_workers.media.classifier import line_classifier
from pecia_workers.media.ink import find_ink, working_grey
from pecia_workers.media.pages import PageImage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def prepare(pixels: NDArray[np.uint8]) -> PageImage:
    """Return the page upright and with the verdict of the blank test. Without pecia[local] no page is turned."""
    grey = working_grey(pixels)
    ink = find_ink(grey)
    if is_blank(ink):
        return PageImage(pixels=pixels, blank=True)
    classifier = line_classifier()
    if classifier is None:
        return PageImage(pixels=pixels)
    from pecia_workers.media.orientation import turn_needed, turned  # noqa: PLC0415  OpenCV comes with pecia[local]

    rotation = turn_needed(grey, ink, classifier)
    return PageImage(pixels=turned(pixels, rotation) if rotation else pixels, rotation=rotation)
