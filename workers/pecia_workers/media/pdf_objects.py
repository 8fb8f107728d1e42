"""Drawn objects of a PDF page: their order, their places in pixels, damaged pictures, and characters."""

import ctypes
import math
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from pypdfium2 import raw

from pecia_workers.media.damage import (
    SavedPage,
    has_line_ends,
    has_lost_rows,
    is_deflate_cut,
    is_fax_broken,
    is_jbig2_broken,
    is_jpeg_broken,
    jpeg_2000_area,
)

Rectangle: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""

_ASCENT, _DESCENT = 0.75, 0.2
"""Extent of a line's box above and below its baseline, relative to the font's size."""
SLANT: Final = 5.0
"""Degrees from which text is turned, and from which a new piece of text begins."""
_FINE: Final = 16
"""Resolution in parts of a pixel, since pdfium rounds points to full pixels."""
_DEPTH, _MOST_OBJECTS = 8, 100_000
"""Depth of forms within forms, and number of objects examined on a page."""
_RGB: Final = (raw.FPDF_COLORSPACE_DEVICERGB, raw.FPDF_COLORSPACE_CALRGB, raw.FPDF_COLORSPACE_LAB)
_COMPONENTS: Final = dict.fromkeys(_RGB, 3) | {raw.FPDF_COLORSPACE_DEVICECMYK: 4}
_VARYING: Final = {raw.FPDF_COLORSPACE_ICCBASED: (3, 4), raw.FPDF_COLORSPACE_DEVICEN: (1, 32)}
_BYTE: Final = 8
_PADDED, _SLACK = 1.02, 1024
"""Length up to which the data of a picture is padded: relative to its pixels, and bytes."""
_PAPER: Final = 200
"""Grey from which paper is light."""


def placing(page: pypdfium2.PdfPage, width: int, height: int) -> pypdfium2.PdfMatrix:
    """Return the transformation from points of the page to pixels at this size, with crop box and /Rotate."""
    x, y = ctypes.c_int(), ctypes.c_int()

    def placed(across: float, up: float) -> tuple[float, float]:
        raw.FPDF_PageToDevice(page, 0, 0, width * _FINE, height * _FINE, 0, across, up, x, y)
        return x.value / _FINE, y.value / _FINE

    (e, f), (right, right_down), (top, top_down) = placed(0, 0), placed(1000, 0), placed(0, 1000)
    parts = (right - e) / 1000, (right_down - f) / 1000, (top - e) / 1000, (top_down - f) / 1000, e, f
    return pypdfium2.PdfMatrix.from_raw(raw.FS_MATRIX(*parts))


def turned_placing(place: pypdfium2.PdfMatrix, degrees: int, width: int, height: int) -> pypdfium2.PdfMatrix:
    """Return the placing on the drawn page after it was turned clockwise by quarters; `width` and `height` before."""
    return {
        0: place,
        90: place.multiply(pypdfium2.PdfMatrix(0, 1, -1, 0, height, 0)),
        180: place.multiply(pypdfium2.PdfMatrix(-1, 0, 0, -1, width, height)),
        270: place.multiply(pypdfium2.PdfMatrix(0, -1, 1, 0, 0, width)),
    }[degrees]


def objects_of(
    page: pypdfium2.PdfPage, place: pypdfium2.PdfMatrix
) -> Iterator[tuple[Any, int, pypdfium2.PdfMatrix]]:
    """Yield the drawn objects in order, with their kind and the transformation of their coordinates to pixels.

    Forms come before their content.
    """
    within = _objects_within(page, raw.FPDFPage_CountObjects, raw.FPDFPage_GetObject, place, _DEPTH)
    return islice(within, _MOST_OBJECTS)


def _objects_within(
    parent: Any,
    count: Callable[[Any], int],
    get: Callable[[Any, int], Any],
    place: pypdfium2.PdfMatrix,
    depth: int,
) -> Iterator[tuple[Any, int, pypdfium2.PdfMatrix]]:
    for item in filter(None, (get(parent, index) for index in range(count(parent)))):
        kind = raw.FPDFPageObj_GetType(item)
        yield item, kind, place
        if depth and kind == raw.FPDF_PAGEOBJ_FORM:
            matrix = raw.FS_MATRIX()
            raw.FPDFPageObj_GetMatrix(item, matrix)
            within = pypdfium2.PdfMatrix.from_raw(matrix).multiply(place)
            yield from _objects_within(
                item, raw.FPDFFormObj_CountObjects, raw.FPDFFormObj_GetObject, within, depth - 1
            )


def rectangle_of(item: Any, place: pypdfium2.PdfMatrix) -> Rectangle:
    """Return an object's rectangle, given the transformation of its coordinates to pixels."""
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    raw.FPDFPageObj_GetBounds(item, left, bottom, right, top)
    return cast("Rectangle", place.on_rect(left.value, bottom.value, right.value, top.value))


def area_within(place: Rectangle, width: float, height: float) -> float:
    """Return the number of pixels of a page of this size inside a rectangle."""
    left, top, right, bottom = place
    return max(0.0, min(width, right) - max(0, left)) * max(0.0, min(height, bottom) - max(0, top))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of a page, as stored in the file."""

    item: Any
    place: Rectangle
    width: int
    height: int
    bits: int
    """Bits of a decoded pixel, rounded up to 8 or 24; 0: there is no decoder for it."""
    space: int
    """Kind of its colour space."""

    def has_no_decoder(self, most_pixels: int, *, every: bool) -> bool:
        """Return whether pdfium cannot decode it; unless `every`, tests only where its header is inconclusive.

        For a picture of one bit that is known only after decoding.
        """
        if not every and (self.bits > 1 or self.width * self.height > most_pixels):
            return False
        if bitmap := raw.FPDFImageObj_GetBitmap(self.item):
            raw.FPDFBitmap_Destroy(bitmap)
        return not bitmap

    def filters(self) -> tuple[str, ...]:
        """Return the filters of its data, the outermost first."""
        name = ctypes.create_string_buffer(32)
        filters = []
        for number in range(raw.FPDFImageObj_GetImageFilterCount(self.item)):
            raw.FPDFImageObj_GetImageFilter(self.item, number, name, len(name))
            filters.append(name.value.decode("latin-1"))
        return tuple(filters)

    def length(self) -> int:
        """Return its encoded length in bytes."""
        return int(raw.FPDFImageObj_GetImageDataRaw(self.item, None, 0))

    def is_cut(self, saved: SavedPage) -> bool:
        """Return whether its data is truncated or corrupt; `saved`: its page."""
        *outer, last = self.filters() or ("",)
        least, most = self._bounds(saved)
        if saved.has_broken_mask(self.width, self.height):
            return True
        if last in ("DCTDecode", "DCT", "JPXDecode"):
            content = self._content(decoded=bool(outer))
            return jpeg_2000_area(content) > self.width * self.height or is_jpeg_broken(content)
        if last in ("FlateDecode", "Fl") and not outer:
            return is_deflate_cut(self._content(), least, most)
        if last in ("LZWDecode", "LZW", "RunLengthDecode", "RL", "FlateDecode", "Fl", ""):
            content = self._content(decoded=True)
            return len(content) < least or len(set(content[most:])) > 1  # more than padding
        if last in ("CCITTFaxDecode", "JBIG2Decode"):
            content = self._content(decoded=bool(outer))
            return self._is_bilevel_cut(content, saved, is_fax=last == "CCITTFaxDecode")
        return False

    def _bounds(self, saved: SavedPage) -> tuple[int, int]:
        """Return the fewest and the most bytes of its pixels, with the marks of predictors and some padding."""
        bits = 1 if self.bits == 1 else saved.component_bits(self.width, self.height)
        fewest = most = _COMPONENTS.get(self.space, 1)
        if self.bits > _BYTE and self.space in _VARYING:
            fewest, most = _VARYING[self.space]
            fewest = fewest if bits <= _BYTE else 1
        rows = [self.height * -(-self.width * components * bits // 8) for components in (fewest, most)]
        return rows[0], round(_PADDED * rows[1]) + self.height + _SLACK

    def _is_bilevel_cut(self, content: bytes, saved: SavedPage, *, is_fax: bool) -> bool:
        if is_fax and not saved.has_group4(self.width, self.height):
            return has_line_ends(content) and has_lost_rows(content, self.height)
        bitmap = raw.FPDFImageObj_GetBitmap(self.item)
        if not bitmap:
            return True
        pixels = pypdfium2.PdfBitmap.from_raw(bitmap).to_numpy()  # which frees the bitmap with its buffer
        light: NDArray[np.bool_] = (pixels if pixels.ndim == 2 else pixels[:, :, 0]) >= _PAPER  # noqa: PLR2004  grey
        return (is_fax_broken if is_fax else is_jbig2_broken)(content, light)

    def _content(self, *, decoded: bool = False) -> bytes:
        read = raw.FPDFImageObj_GetImageDataDecoded if decoded else raw.FPDFImageObj_GetImageDataRaw
        buffer = ctypes.create_string_buffer(read(self.item, None, 0))
        read(self.item, buffer, len(buffer))
        return buffer.raw


def pictures_of(page: pypdfium2.PdfPage, pixels: NDArray[np.uint8]) -> Iterator[Picture]:
    """Yield the pictures of a page that was rendered to these pixels."""
    height, width = pixels.shape[:2]
    known = raw.FPDF_IMAGEOBJ_METADATA()
    for item, kind, place in objects_of(page, placing(page, width, height)):
        if kind == raw.FPDF_PAGEOBJ_IMAGE:
            raw.FPDFImageObj_GetImageMetadata(item, page, known)
            yield Picture(
                item=item,
                place=rectangle_of(item, place),
                width=known.width,
                height=known.height,
                bits=known.bits_per_pixel,
                space=known.colorspace,
            )


class Character(NamedTuple):
    """One character with its place, in pixels of the drawn page."""

    text: str
    """Its text: several letters for a ligature."""
    code: str
    """Its code in the file."""
    box: Rectangle
    """Box around its ink, or around its place if it has no glyph."""
    origin: tuple[float, float]
    """Its origin on the baseline."""
    size: float
    """Of the font."""
    angle: float
    """Degrees, clockwise, from upright: -180 to 180."""
    font: int
    order: int
    """Its position in the page's drawing order."""
    invisible: bool
    has_glyph: bool
    """Whether its font has a glyph for it."""
    is_lost: bool
    """Whether no viewer shows it: its font is in the file, without a glyph for it, or with an empty one."""
    unmapped: bool
    """Whether its code is not mapped to a character."""

    @property
    def is_turned(self) -> bool:
        """Whether it is turned."""
        return abs(self.angle) > SLANT

    @property
    def is_mark(self) -> bool:
        """Whether it is an accent or a vowel sign that belongs to the letter before it."""
        return unicodedata.category(self.code).startswith("M")

    @property
    def place(self) -> Rectangle:
        """Its place in its line, with the same height for all letters of a font."""
        if self.is_turned:
            return self.box
        left, top, right, bottom = self.box
        baseline = self.origin[1]
        above, below = baseline - _ASCENT * self.size, baseline + _DESCENT * self.size
        return left, min(top, above), right, max(bottom, below)

    def along(self, angle: float) -> tuple[float, float]:
        """Return its start and end along a line of this angle."""
        left, top, right, bottom = self.box
        if not angle:
            return left, right
        cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        middle = (left + right) / 2 * cosine + (top + bottom) / 2 * sine
        half = ((right - left) * abs(cosine) + (bottom - top) * abs(sine)) / 2
        return middle - half, middle + half

    def across(self, angle: float) -> float:
        """Return the position of its baseline, from the top of a page turned so that lines of this angle are level."""
        x, y = self.origin
        if not angle:
            return y
        return y * math.cos(math.radians(angle)) - x * math.sin(math.radians(angle))
