"""Words of a text layer that the file itself strikes out: with a drawn line or an annotation.

Their places are exact, so that a line counts which pixels alone do not tell from a stroke of a letter: one through a
single digit, a dashed, a thick or a pale one. The lines of tables and charts go on beside the text, or pass below it.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pypdfium2
from pypdfium2 import raw

from pecia_schemas.blocks import Line, Word
from pecia_workers.media.layer_characters import Rectangle

_BAND: Final = (0.2, 0.68)
"""Of the height of a word's box, from its capitals to its descenders: where a line strikes."""
_THICK: Final = 0.45
"""Of the same height."""
_COVERED: Final = 0.75
"""Of a word's width."""
_BESIDE: Final = 1.5
"""How far a line goes on beside the words of its row, by their height."""
_MOST_SEGMENTS: Final = 64


def level_lines(item: Any, place: pypdfium2.PdfMatrix) -> Iterator[Rectangle]:
    """Yield the level lines of a drawn object, in pixels: strokes, and rectangles that are filled."""
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    segments = raw.FPDFPath_CountSegments(item)
    if segments > _MOST_SEGMENTS or not raw.FPDFPath_GetDrawMode(item, fill, stroke):
        return
    sides = tuple(ctypes.c_float() for _ in range(4))
    if fill.value or not stroke.value:
        if raw.FPDFPageObj_GetBounds(item, *sides):
            left, top, right, bottom = place.on_rect(*(side.value for side in sides))
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
    """Yield the middles of what an annotation strikes out, in the page's coordinates."""
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
        start = min(marked[place].box.left for place in row) - _BESIDE * height
        end = max(marked[place].box.right for place in row) + _BESIDE * height
        if bottom - top <= _THICK * height and start <= left and right <= end:
            for place in struck:
                marked[place] = _with_struck(marked[place], left, right, middle)
    return tuple(marked)


def _is_struck(word: Word, left: float, right: float, middle: float) -> bool:
    box = word.box
    height, covered = box.bottom - box.top, min(right, box.right) - max(left, box.left)
    is_within = _BAND[0] * height <= middle - box.top <= _BAND[1] * height
    return is_within and covered >= _COVERED * (box.right - box.left) and any(map(str.isalnum, word.text))


def _with_struck(line: Line, left: float, right: float, middle: float) -> Line:
    words = (
        word.model_copy(update={"struck": True}) if _is_struck(word, left, right, middle) else word
        for word in line.words
    )
    return line.model_copy(update={"words": tuple(words)})
