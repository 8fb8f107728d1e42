"""By how much a page must be turned to stand upright, found without reading it.

The nearest neighbours of letters tell whether lines run across or along the page; a small classifier tells on samples
of the lines which way is up. Where either is unsure the page stays as it is: turning an upright page would lose it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from pecia_workers.media import lines

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from pecia_workers.media.classifier import LineClassifier
    from pecia_workers.media.ink import View

_ACROSS, _ALONG = 0.6, 0.4
_MIN_SAMPLES, _MAX_SAMPLES = 3, 12
_SURE: Final = 0.7
"""Mean probability of the samples. Measured: right way up at most 0.2, on the head at least 0.8."""
_PADDING: Final = 0.15


def turn_needed(view: View, classifier: LineClassifier) -> int:
    """Return the degrees, clockwise, that turn the page upright: 0, 90, 180 or 270; 0 if in doubt."""
    across = lines.share_across(view.levelled().letters)
    if across is None or _ALONG <= across <= _ACROSS:
        return 0
    if across > _ACROSS:
        return 180 if _share_upside_down(view, classifier) > _SURE else 0
    upside_down = _share_upside_down(view.turned(90), classifier)
    if upside_down > _SURE:
        return 270
    return 90 if upside_down < 1 - _SURE else 0


def turned(pixels: NDArray[np.uint8], degrees: int) -> NDArray[np.uint8]:
    """Return the page turned clockwise by 90, 180 or 270 degrees."""
    codes = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}
    return cv2.rotate(pixels, codes[degrees]).astype(np.uint8, copy=False)


def _share_upside_down(view: View, classifier: LineClassifier) -> float:
    """Return the mean probability that samples of the lines stand on their heads; 0.5 with too few samples.

    The lines run across, but may slope.
    """
    level = view.levelled()
    spans = lines.text_spans(level.letters)
    if len(spans) < _MIN_SAMPLES:
        return 0.5
    chosen = np.linspace(0, len(spans) - 1, min(_MAX_SAMPLES, len(spans))).astype(np.intp)
    return float(classifier.upside_down([_cut(level.grey, spans[i]) for i in chosen]).mean())


def _cut(grey: Image.Image, span: lines.Span) -> Image.Image:
    margin = max(2, round((span.bottom - span.top) * _PADDING))
    return grey.crop(
        (
            max(0, span.left - margin),
            max(0, span.top - margin),
            min(grey.width, span.right + margin),
            min(grey.height, span.bottom + margin),
        )
    )
