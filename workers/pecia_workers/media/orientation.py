"""By how much a page must be turned to stand upright, found without reading it.

The nearest neighbours of letters tell whether lines run across or along the page; a small classifier tells on samples
of the lines which way is up. Where either is unsure the page stays as it is: turning an upright page would lose it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from pecia_workers.media import hangul, lines

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from pecia_workers.media.classifier import LineClassifier
    from pecia_workers.media.ink import View

_ACROSS, _ALONG = 0.6, 0.4
_MIN_SAMPLES, _MAX_SAMPLES = 3, 12
_SURE: Final = 0.7
"""Mean probability of the samples. Measured: right way up at most 0.2, on the head at least 0.8; Korean anything."""
_CERTAIN: Final = 0.8
_PADDING: Final = 0.15


def turn_needed(view: View, classifier: LineClassifier) -> int:
    """Return the degrees, clockwise, that turn the page upright: 0, 90, 180 or 270; 0 if in doubt."""
    across = lines.share_across(view.levelled().letters)
    if across is None:
        return 0
    if _ALONG <= across <= _ACROSS:
        return _turn_of_korean(view)
    if across > _ACROSS:
        return 180 if _share_upside_down(view, classifier) > _SURE else 0
    upside_down = _share_upside_down(view.turned(90), classifier)
    if upside_down > _SURE:
        return 270
    return 90 if upside_down < 1 - _SURE else 0


def _turn_of_korean(view: View) -> int:
    """Return the turn of a page whose letters stand beside and below each other, as those of Korean syllables do."""
    found = {degrees: _korean_on_head(view.turned(degrees)) for degrees in (0, 90)}
    sure = {degrees: on_head for degrees, on_head in found.items() if on_head is not None}
    if len(sure) != 1:
        return 0
    [(degrees, on_head)] = sure.items()
    return degrees + 180 * on_head


def _korean_on_head(view: View) -> bool | None:
    letters = view.levelled().letters
    return hangul.stands_on_head(letters, lines.text_spans(letters))


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
    probability = float(classifier.upside_down([_cut(level.grey, spans[i]) for i in chosen]).mean())
    if not 1 - _CERTAIN < probability < _CERTAIN:
        return probability
    korean = hangul.stands_on_head(level.letters, spans)
    return probability if korean is None else float(korean)


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
