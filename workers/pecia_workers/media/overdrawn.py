"""Drawings beside or over a text layer's letters that change their meaning.

Letters drawn over others, as where a word was covered and replaced; a decimal point or minus sign that is a drawn shape
and no letter: `1 5` for `1.5`; and words that the file strikes out by a drawn line or an annotation. Places in a file
are exact, so that lines count that pixels do not distinguish from strokes of letters: through a single digit, dashed,
thick or pale. The lines of tables and charts continue beside the text, or pass below it.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from pypdfium2 import raw

from pecia_schemas.blocks import Line, Word
from pecia_workers.media.layer_text import gap_between
from pecia_workers.media.pdf_objects import Character, Rectangle, rectangle_of

_COMMON: Final = 0.35
"""Overlap of two boxes, as a share of the smaller, from which one letter is over the other."""
_TWICE: Final = 0.15
"""Greatest offset, relative to the font's size, of a letter drawn twice for bold print or a shadow."""
_NARROW: Final = 0.3
"""Width, relative to the font's size, of letters that overlap others in italics: i, l, f."""
_LIKE_SIZE: Final = 1.5
"""Greatest ratio of their fonts' sizes: a watermark is larger."""
_LEAST_COVERED: Final = 4
_DASHES: Final = "-\u2010\u2011\u2012\u2013\u2014\u2212/\\"
_BESIDE: Final = 6
"""Greatest distance, in characters along a row, of a letter and the one drawn over it."""

_CONTRAST: Final = 48
"""Least contrast of a mark with the paper, in grey levels."""
_REACH: Final = 0.7
"""Greatest distance of a mark from digits, relative to their font's size."""
_POINT, _POINT_PLACE = (0.06, 0.22), (-0.04, 0.2)
"""Least and greatest side of a point, and height of its middle above the baseline, relative to the same size."""
_MINUS, _MINUS_HIGH, _MINUS_PLACE = (0.25, 0.75), (0.03, 0.15), (0.2, 0.5)
"""Width and height of a minus sign, and height of its middle above the baseline."""

_BAND: Final = (0.2, 0.68)
"""Band of a word's height, from capitals to descenders, in which a line strikes it."""
_THICK: Final = 0.45
"""Greatest thickness, relative to the same height."""
_COVERED: Final = 0.75
"""Least share of a word's width."""
_GOES_ON: Final = 1.5
"""Greatest extension of a line beside its row's words, relative to their height."""
_MOST_SEGMENTS: Final = 64


def letters_over_letters(characters: Sequence[Character | None]) -> set[int]:
    """Return the places of letters, digits and dashes drawn over or below others, if there are several.

    Bold print drawn twice, shadows and accents over their letters do not count.
    """
    some = [
        (place, one)
        for place, one in enumerate(characters)
        if one and not one.is_turned and (one.code.isalnum() or one.code in _DASHES)
    ]
    if not some:
        return set()
    places = np.array([place for place, _ in some])
    boxes = np.array([one.box for _, one in some])
    origins = np.array([one.origin for _, one in some])
    sizes, orders = np.array([(one.size, one.order) for _, one in some]).T
    letters = np.array([one.code.isalnum() for _, one in some])
    codes = np.array([one.code for _, one in some])
    found: set[int] = set()
    for offset in (0.0, 0.5):  # those of a line stand in one row at least, and beside each other in it
        rows = np.floor(origins[:, 1] / np.median(sizes) + offset)
        sorted_ = np.lexsort((boxes[:, 0], rows))
        for step in range(1, _BESIDE):
            one, other = sorted_[step:], sorted_[:-step]
            wide, high = (
                np.minimum(boxes[one], boxes[other])[:, 2:] - np.maximum(boxes[one], boxes[other])[:, :2]
            ).T
            widths = boxes[:, 2] - boxes[:, 0]
            areas, size = widths * (boxes[:, 3] - boxes[:, 1]), np.maximum(sizes[one], sizes[other])
            moved = np.abs(origins[one] - origins[other]).max(axis=1)
            is_same = (codes[one] == codes[other]) & (moved <= _TWICE * size)
            is_narrow = np.minimum(widths[one], widths[other]) < _NARROW * size
            is_over = (
                (np.maximum(wide, 0) * np.maximum(high, 0) > _COMMON * np.minimum(areas[one], areas[other]))
                & (orders[one] != orders[other])
                & (letters[one] | letters[other])
                & (size <= _LIKE_SIZE * np.minimum(sizes[one], sizes[other]))
                & ~is_same
                & ~(is_narrow & letters[one] & letters[other])
            )
            found.update(places[one[is_over]].tolist(), places[other[is_over]].tolist())
    return found if len(found) >= _LEAST_COVERED else set()


def drawn_signs(characters: Sequence[Character | None], grey: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
    """Yield the places of digits with a drawn point or minus sign before them that is no character, and the sign.

    A point is between two digits, a minus sign before the first of a number, with white on all sides.
    """
    last: Character | None = None
    for place, one in enumerate(characters):
        if one is None:
            continue
        before, last = last, one
        if not one.code.isdecimal() or one.is_turned:
            continue
        gap = None if before is None else gap_between(before, one)
        edge = one.box[0] - 1.5 * _REACH * one.size
        start = edge if before is None or gap is None else max(edge, before.box[2])
        follows_digit = before is not None and gap is not None and before.code.isdecimal()
        for left, width, height, above in _marks(one, start, grey):
            wide, tall, away = (side / one.size for side in (width, height, one.box[0] - left - width))
            is_point = _is_within(max(wide, tall), _POINT) and _is_within(above, _POINT_PLACE)
            is_minus = _is_within(wide, _MINUS) and _is_within(tall, _MINUS_HIGH)
            if follows_digit and is_point and gap is not None and gap <= _REACH:
                yield place, "."
            elif not follows_digit and is_minus and away <= _REACH and _is_within(above, _MINUS_PLACE):
                yield place, "-"


def _is_within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _marks(
    digit: Character, start: float, grey: NDArray[np.uint8]
) -> Iterator[tuple[float, float, float, float]]:
    """Yield isolated marks between a place on the line and a digit.

    Each has left, width and height in pixels, and the height of its middle above the baseline relative to the font's
    size.
    """
    baseline, size = digit.origin[1], digit.size
    left, right = max(0, round(start) + 1), max(0, round(digit.box[0]) - 1)
    top, bottom = max(0, round(baseline - size)), max(0, round(baseline + 0.3 * size))
    band = grey[top:bottom, left:right]
    if not band.size:
        return
    dark = band < int(band.max()) - _CONTRAST
    edges = np.flatnonzero(np.diff(dark.any(axis=0).astype(np.int8), prepend=0, append=0))
    for first, end in edges.reshape(-1, 2).tolist():
        rows = np.flatnonzero(dark[:, first:end].any(axis=1))
        high, middle = int(rows[-1] - rows[0]) + 1, float(rows[-1] + rows[0] + 1) / 2
        if 0 < first < end < band.shape[1] and rows[0] > 0 and rows[-1] + 1 < len(band):
            yield left + first, end - first, high, (baseline - top - middle) / size


def level_lines(item: Any, place: pypdfium2.PdfMatrix) -> Iterator[Rectangle]:
    """Yield the level lines of a drawn object, in pixels: strokes, and rectangles that are filled."""
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    segments = raw.FPDFPath_CountSegments(item)
    if segments > _MOST_SEGMENTS or not raw.FPDFPath_GetDrawMode(item, fill, stroke):
        return
    if fill.value or not stroke.value:
        left, top, right, bottom = rectangle_of(item, place)
        if right - left > bottom - top:
            yield left, top, right, bottom
        return
    own, width = raw.FS_MATRIX(), ctypes.c_float()
    raw.FPDFPageObj_GetMatrix(item, own)
    raw.FPDFPageObj_GetStrokeWidth(item, width)
    to_pixels = pypdfium2.PdfMatrix.from_raw(own).multiply(place)
    half = width.value * abs(to_pixels.d or to_pixels.b) / 2
    for (_, start), (kind, end) in pairwise(_points(item, segments, to_pixels)):
        if kind == raw.FPDF_SEGMENT_LINETO and abs(end[1] - start[1]) <= max(1.0, half):
            low, high = sorted((start[1], end[1]))
            yield min(start[0], end[0]), low - half, max(start[0], end[0]), high + half


def _points(
    item: Any, segments: int, to_pixels: pypdfium2.PdfMatrix
) -> Iterator[tuple[int, tuple[float, float]]]:
    x, y = ctypes.c_float(), ctypes.c_float()
    for number in range(segments):
        segment = raw.FPDFPath_GetPathSegment(item, number)
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        yield raw.FPDFPathSegment_GetType(segment), to_pixels.on_point(x.value, y.value)


def struck_places(note: Any) -> Iterator[Rectangle]:
    """Yield the middles of areas that annotations strike out, in the page's coordinates."""
    if raw.FPDFAnnot_GetSubtype(note) != raw.FPDF_ANNOT_STRIKEOUT:
        return
    quad = raw.FS_QUADPOINTSF()
    for number in range(min(_MOST_SEGMENTS, raw.FPDFAnnot_CountAttachmentPoints(note))):
        if raw.FPDFAnnot_GetAttachmentPoints(note, number, quad):
            across, up = (quad.x1, quad.x2, quad.x3, quad.x4), (quad.y1, quad.y2, quad.y3, quad.y4)
            middle = (min(up) + max(up)) / 2
            yield min(across), middle, max(across), middle


def with_drawn_strikes(lines: Sequence[Line], strikes: Iterable[Rectangle]) -> tuple[Line, ...]:
    """Return the lines of a page with the words marked that these level lines strike out."""
    marked = list(lines)
    tops, bottoms = np.array([(line.box.top, line.box.bottom) for line in lines]).reshape(-1, 2).T
    for left, top, right, bottom in strikes:
        middle = (top + bottom) / 2
        row = np.flatnonzero((tops < middle) & (middle < bottoms)).tolist()
        struck = [
            place
            for place in row
            if any(_is_struck(word, left, right, middle) for word in marked[place].words)
        ]
        if not struck:
            continue
        height = max(marked[place].box.bottom - marked[place].box.top for place in struck)
        start = min(marked[place].box.left for place in row) - _GOES_ON * height
        end = max(marked[place].box.right for place in row) + _GOES_ON * height
        if bottom - top <= _THICK * height and start <= left and right <= end:
            for place in struck:
                words = (
                    word.model_copy(update={"struck": True})
                    if _is_struck(word, left, right, middle)
                    else word
                    for word in marked[place].words
                )
                marked[place] = marked[place].model_copy(update={"words": tuple(words)})
    return tuple(marked)


def _is_struck(word: Word, left: float, right: float, middle: float) -> bool:
    box = word.box
    height, covered = box.bottom - box.top, min(right, box.right) - max(left, box.left)
    is_within = _BAND[0] * height <= middle - box.top <= _BAND[1] * height
    return is_within and covered >= _COVERED * (box.right - box.left) and any(map(str.isalnum, word.text))
