"""Orientation of a page, found without reading it.

The classifier does not know Korean. There, a syllable's consonant is to the left of its vowel's upright stroke, and a
gap to the right; upside down it is the reverse.

The nearest neighbours of letters show whether lines are horizontal or vertical; a small classifier decides on samples
of lines which side is up. Where either is unsure the page is not turned: turning an upright page would lose it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_workers.layout.ink import View
from pecia_workers.media.recognition import network

_INPUT_WIDTH, _INPUT_HEIGHT = 192, 48  # what the network was trained on
_STRIPS = 4
_LETTER_SIZES = range(5, 80)
_MIN_LETTERS, _LETTER_SAMPLES, _MAX_LETTERS = 8, 400, 8_000
_HEIGHTS = range(9, 65)
_MIN_ASPECT, _MAX_ASPECT = 2.0, 5.0


Span: TypeAlias = tuple[slice, slice]
"""A piece of a text line: its rows and columns."""


def share_across(letters: NDArray[np.bool_]) -> float | None:
    """Return the share of letters whose nearest neighbour is beside them rather than above or below.

    Near 1 for horizontal lines, near 0 for vertical ones, None with too few letters. Letters are closer than lines, in
    tables and columns too; L. O'Gorman, "The document spectrum for page layout analysis", IEEE PAMI 15 (1993).
    """
    import cv2  # noqa: PLC0415  comes with pecia[cpu]

    _, _, stats, middles = cv2.connectedComponentsWithStats(letters.view(np.uint8), connectivity=8)
    sizes = stats[1:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].max(axis=1)
    plausible = (sizes >= _LETTER_SIZES.start) & (sizes < _LETTER_SIZES.stop)
    common = np.median(sizes[plausible]) if plausible.any() else 0
    kept = plausible & (sizes > common * 0.6) & (sizes < common * 2.5)  # no dots, no pictures
    centres = middles[1:][kept].astype(np.float32)[:_MAX_LETTERS]
    if len(centres) < _MIN_LETTERS:
        return None
    chosen = np.linspace(0, len(centres) - 1, min(_LETTER_SAMPLES, len(centres))).astype(np.intp)
    offsets = np.abs(centres[chosen, np.newaxis, :] - centres[np.newaxis, :, :])
    squares = np.square(offsets).sum(axis=2)
    squares[np.arange(len(chosen)), chosen] = np.inf
    nearest = offsets[np.arange(len(chosen)), squares.argmin(axis=1)]
    return float((nearest[:, 0] > nearest[:, 1]).mean())


def text_spans(ink: NDArray[np.bool_]) -> list[Span]:
    """Return pieces of horizontal lines, each two to five times as wide as high."""
    spans: list[Span] = []
    offset = 0
    for strip in np.array_split(ink, _STRIPS, axis=1):
        edges = np.flatnonzero(np.diff(np.pad(strip.any(axis=1).astype(np.int8), 1)))
        for top, bottom in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            height = bottom - top
            if height not in _HEIGHTS:
                continue
            columns = np.flatnonzero(strip[top:bottom].any(axis=0))
            left = int(columns[0])
            right = min(int(columns[-1]) + 1, left + round(height * _MAX_ASPECT))
            if right - left >= height * _MIN_ASPECT:
                spans.append(np.s_[top:bottom, left + offset : right + offset])
        offset += strip.shape[1]
    return spans


_TALL, _THIN = 0.55, 0.3
"""Height and width of an upright stroke, relative to its line's height."""
_BESIDE, _CLEAR = 0.4, 0.06
"""Search distance on both sides, and margin of the stroke itself."""
_LEAST_STROKES: Final = 20
_LEAST_LEAN: Final = 0.12
"""Measured: Korean 0.16 to 0.31, English at most 0.1, a form of few words 0.18."""
_LEAST_SURENESS: Final = 3.0
"""Least mean lean, in standard errors."""


def stands_on_head(letters: NDArray[np.bool_], spans: Iterable[Span]) -> bool | None:
    """Return whether horizontal lines are upside down; None if they do not look Korean."""
    leans = np.array([lean for span in spans for lean in _leans(letters, span)])
    if len(leans) < _LEAST_STROKES:
        return None
    mean = float(leans.mean())
    error = float(leans.std()) / len(leans) ** 0.5
    if abs(mean) < _LEAST_LEAN or abs(mean) < _LEAST_SURENESS * error:
        return None
    return mean < 0


def _leans(letters: NDArray[np.bool_], span: Span) -> list[float]:
    """Return for each upright stroke the balance of ink to its left and right, -1 to 1."""
    piece = letters[span]
    height, width = piece.shape
    gap, reach = max(1, round(height * _CLEAR)), round(height * (_CLEAR + _BESIDE))
    ink = np.concatenate([[0], piece.sum(axis=0).cumsum()])
    run = longest = np.zeros(width, dtype=np.int64)
    for row in piece:
        run = (run + 1) * row
        longest = np.maximum(longest, run)
    tall = np.pad(longest >= _TALL * height, 1)
    starts, ends = np.flatnonzero(~tall[:-1] & tall[1:]), np.flatnonzero(tall[:-1] & ~tall[1:])
    leans: list[float] = []
    for start, end in zip(starts, ends, strict=True):
        if end - start > _THIN * height or start < reach or end + reach > width:
            continue
        left = float(ink[start - gap] - ink[start - reach])
        right = float(ink[end + reach] - ink[end + gap])
        leans.append((left - right) / max(left + right, 1.0))
    return leans


_ACROSS, _ALONG = 0.6, 0.4
_MIN_SAMPLES, _MAX_SAMPLES = 3, 12
_SURE: Final = 0.7
"""Mean probability of the samples. Measured: upright at most 0.2, upside down at least 0.8; Korean any value."""
_CERTAIN: Final = 0.8
_PADDING: Final = 0.15


def line_classifier() -> Any:
    """Return PaddleOCR's classifier of text lines, None where pecia[cpu] is not installed."""
    return network("ch_ppocr_mobile_v2.0_cls_mobile.onnx")


def turn_needed(view: View, classifier: Any) -> int:
    """Return the degrees, clockwise, that turn the page upright: 0, 90, 180 or 270; 0 if unclear."""
    across = share_across(view.levelled().letters)
    if across is None:
        return 0
    if _ALONG <= across <= _ACROSS:  # letters stand beside and below each other, as in Korean syllables
        sides = {degrees: view.turned(degrees).levelled().letters for degrees in (0, 90)}
        heads = {degrees: stands_on_head(ink, text_spans(ink)) for degrees, ink in sides.items()}
        sure = [degrees + 180 * is_on_head for degrees, is_on_head in heads.items() if is_on_head is not None]
        return sure[0] if len(sure) == 1 else 0
    if across > _ACROSS:
        return 180 if _share_upside_down(view, classifier) > _SURE else 0
    upside_down = _share_upside_down(view.turned(90), classifier)
    if upside_down > _SURE:
        return 270
    return 90 if upside_down < 1 - _SURE else 0


def _share_upside_down(view: View, classifier: Any) -> float:
    """Return the probability that horizontal lines are upside down, by samples; 0.5 with too few."""
    level = view.levelled()
    spans = text_spans(level.letters)
    if len(spans) < _MIN_SAMPLES:
        return 0.5
    chosen = np.linspace(0, len(spans) - 1, min(_MAX_SAMPLES, len(spans))).astype(np.intp)
    pieces = []
    for rows, columns in (spans[number] for number in chosen):
        margin = max(2, round((rows.stop - rows.start) * _PADDING))
        left, top = max(0, columns.start - margin), max(0, rows.start - margin)
        right = min(level.grey.width, columns.stop + margin)
        bottom = min(level.grey.height, rows.stop + margin)
        pieces.append(level.grey.crop((left, top, right, bottom)))
    probability = _probability_on_head(pieces, classifier)
    if not 1 - _CERTAIN < probability < _CERTAIN:
        return probability
    korean = stands_on_head(level.letters, spans)
    return probability if korean is None else float(korean)


def _probability_on_head(pieces: Sequence[Image.Image], classifier: Any) -> float:
    """Return the mean probability that grey pieces of lines are upside down."""
    batch = np.zeros((len(pieces), 3, _INPUT_HEIGHT, _INPUT_WIDTH), dtype=np.float32)
    for number, piece in enumerate(pieces):
        width = min(_INPUT_WIDTH, max(1, round(piece.width * _INPUT_HEIGHT / piece.height)))
        grey = np.asarray(piece.resize((width, _INPUT_HEIGHT)), dtype=np.float32)
        batch[number, :, :, :width] = grey / 127.5 - 1
    (probabilities,) = classifier.run(None, {classifier.get_inputs()[0].name: batch})
    return float(probabilities[:, 1].mean())
