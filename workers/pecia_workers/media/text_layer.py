"""The text that a page of a PDF brings itself, and whether it can be trusted.

A layer says exactly what the page's glyphs stand for, or anything else: a program may have recognised it from a scan,
its fonts may name their letters wrongly, it may be hidden. One that is not trusted is left, and the page is read from
its pixels. It is trusted if

1. it has at least `LEAST_CHARACTERS` characters that are visible, and at most `MOST_CHARACTERS`;
2. at most `MOST_HIDDEN` are invisible: drawn in mode 3 or 7, as recognised text is, or without a trace in the pixels,
   as in the colour of the ground or below a black bar. What is hidden is never part of the text. A character whose font
   is missing is not hidden: only the layer has it;
3. no picture covers more than `MOST_PICTURE` of the page, and pictures hide at most `MOST_BELOW` of the characters;
4. at most `MOST_UNMAPPED` stand for no character: unmapped, private use, control, an accent without its letter; at
   least `LEAST_LETTERS` are letters or digits;
5. at most `MOST_TURNED` stand at an angle, after a page whose text lies on its side has been turned;
6. the glyphs of each font look like the letters that it says they are (`pecia_workers.media.glyphs`);
7. they cover the page's ink: at most `MOST_UNCOVERED` of what looks like letters lies outside their boxes, as text
   in a picture or drawn as curves does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pypdfium2 import PdfMatrix, PdfPage, raw

from pecia_schemas.blocks import Line
from pecia_workers.media import layer_text
from pecia_workers.media.glyphs import misnamed

_Places = NDArray[np.integer[Any]]

LEAST_CHARACTERS: Final = 8
MOST_CHARACTERS: Final = 50_000
MOST_HIDDEN: Final = 0.3
MOST_PICTURE: Final = 0.5
MOST_BELOW: Final = 0.1
MOST_UNMAPPED: Final = 0.02
LEAST_LETTERS: Final = 0.35
MOST_TURNED: Final = 0.3
MOST_MISNAMED: Final = 0.01
MOST_UNCOVERED: Final = 0.05
_LEAST_UNCOVERED: Final = 20
"""Letters; fewer are a logo."""
_LEAST_CONTRAST: Final = 6
"""From pixel to pixel, of an edge."""
_LEAST_EDGES: Final = 1.0
"""Of a character, by the sum of its width and height."""
_PAPER: Final = 200
"""Grey from which paper is light."""
_DEPTH, _MOST_OBJECTS = 8, 100_000
"""Of forms within forms, and of what is looked at on a page."""
_LEADERS: Final = frozenset("._-\N{HORIZONTAL ELLIPSIS}\N{MIDDLE DOT}")


class Distrust(StrEnum):
    """Why a layer is not trusted."""

    NO_TEXT = "no_text"
    HIDDEN = "hidden"
    PICTURE = "picture"
    UNMAPPED = "unmapped"
    TURNED = "turned"
    MISNAMED = "misnamed"
    UNCOVERED = "uncovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLayer:
    """A page's own text."""

    characters: tuple[layer_text.Character | None, ...] = ()
    """In the file's order, None for a space, in pixels of the page after its turn."""
    turn: int = 0
    """Degrees, clockwise, by which the drawn page is turned for its text to stand upright: 0, 90, 180 or 270."""
    distrust: Distrust | None = None
    """None: it can be trusted."""

    def lines(self, scale: float = 1.0) -> tuple[Line, ...]:
        """Return pieces of lines without wide gaps, in the file's order, on the page as it is after scaling."""
        return layer_text.lines_of(self.characters, scale)


def text_layer(
    page: PdfPage, pixels: NDArray[np.uint8], *, may_turn: bool = True, hidden: bool = False
) -> TextLayer:
    """Return the text of a page that was drawn on these pixels; `hidden`: with what is not seen of it."""
    height, width = pixels.shape[:2]
    with closing(page.get_textpage()) as text:
        if not 0 < text.count_chars() <= MOST_CHARACTERS:
            return TextLayer(distrust=Distrust.NO_TEXT)
        place = layer_text.placing(page, width, height)
        turn = layer_text.turn_needed(text, place) if may_turn else 0
        place = layer_text.turned(place, turn, width, height)
        drawn = _Drawn.of(page, place)
        found = list(layer_text.CharacterReader(text, place, drawn.orders).characters())
    upright = np.ascontiguousarray(np.rot90(pixels, -turn // 90))
    grey = Image.fromarray(upright).convert("L")
    on_page = [
        one
        for one in found
        if one is None or (min(one.box[2:]) > 0 and one.box[0] < grey.width and one.box[1] < grey.height)
    ]
    visible = _visible([one for one in on_page if one], np.asarray(grey))
    kept = tuple(one for one in on_page if one is None or id(one) in visible)
    hidden_count = sum(one is not None for one in on_page) - len(visible)
    distrust = next(_faults(kept, hidden_count, drawn, upright, grey), None)
    return TextLayer(characters=tuple(on_page) if hidden else kept, turn=turn, distrust=distrust)


def _faults(
    characters: Sequence[layer_text.Character | None],
    hidden: int,
    drawn: _Drawn,
    pixels: NDArray[np.uint8],
    grey: Image.Image,
) -> Iterator[Distrust]:
    """Yield what is wrong with what is visible of a layer, cheapest first; `hidden`: how many characters are not."""
    seen = [one for one in characters if one]
    if max(len(seen), hidden) < LEAST_CHARACTERS:
        yield Distrust.NO_TEXT
    if hidden > MOST_HIDDEN * (len(seen) + hidden):
        yield Distrust.HIDDEN
    if drawn.largest_picture(grey.size) > MOST_PICTURE or drawn.below_pictures(seen) > MOST_BELOW:
        yield Distrust.PICTURE
    # Accents and vowel signs that have lost their letter, as where marks are out of order.
    stray = _share(before is None for before, one in pairwise(characters) if one and one.is_mark)
    if _share(one.unmapped for one in seen) + stray > MOST_UNMAPPED:
        yield Distrust.UNMAPPED
    if _share(one.text[:1].isalnum() for one in seen if one.code not in _LEADERS) < LEAST_LETTERS:
        yield Distrust.UNMAPPED
    if _share(one.is_turned for one in seen) > MOST_TURNED:
        yield Distrust.TURNED
    if misnamed(seen, grey) > MOST_MISNAMED:
        yield Distrust.MISNAMED
    if _leaves_text(characters, pixels):
        yield Distrust.UNCOVERED


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean([*flags] or [False]))


def _visible(
    characters: Sequence[layer_text.Character], grey: NDArray[np.uint8]
) -> dict[int, layer_text.Character]:
    """Return, by their identity, those that can be seen, and those that would be if their font were there.

    A character is seen by its edges, of ink or of light print: as many as its box is wide and high, or more.
    """
    page = grey.astype(np.int16)
    sums = np.zeros((grey.shape[0] + 1, grey.shape[1] + 1), dtype=np.int32)
    sums[1:-1, 1:] += np.abs(np.diff(page, axis=0)) >= _LEAST_CONTRAST
    sums[1:, 1:-1] += np.abs(np.diff(page, axis=1)) >= _LEAST_CONTRAST
    sums.cumsum(axis=0, out=sums).cumsum(axis=1, out=sums)
    boxes = np.array([one.box for one in characters]).reshape(-1, 4)
    left, top = (np.floor(boxes[:, :2].T) - 1).astype(np.intp)
    right, bottom = (np.ceil(boxes[:, 2:].T) + 1).astype(np.intp)
    least = _LEAST_EDGES * (boxes[:, 2] - boxes[:, 0] + boxes[:, 3] - boxes[:, 1])
    drawn = _sums_in(sums, left, top, right, bottom) >= least
    visible = {}
    for one, is_drawn in zip(characters, drawn.tolist(), strict=True):
        x, y, x1, y1 = (max(0, int(side)) for side in one.box)
        ground = grey[y : y1 + 1, x : x1 + 1]
        is_lacking = not one.has_glyph and ground.size and ground.min() >= _PAPER
        if not one.invisible and (is_drawn or is_lacking):
            visible[id(one)] = one
    return visible


def _sums_in(
    sums: NDArray[np.int32], left: _Places, top: _Places, right: _Places, bottom: _Places
) -> NDArray[np.int32]:
    """Return what there is within rectangles, given what there is above and to the left of each place."""
    rows, columns = sums.shape
    top, bottom = top.clip(0, rows - 1), bottom.clip(0, rows - 1)
    left, right = left.clip(0, columns - 1), right.clip(0, columns - 1)
    within: NDArray[np.int32] = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return within


def _leaves_text(seen: Sequence[layer_text.Character | None], pixels: NDArray[np.uint8]) -> bool:
    """Return whether there is text on the page outside of these characters."""
    from pecia_workers.reading.coverage import Letters  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    left, top, width, height = Letters.of(pixels).boxes.T
    covered = np.zeros((pixels.shape[0] + 1, pixels.shape[1] + 1), dtype=np.int32)
    for box in (word.box for line in layer_text.lines_of(seen) for word in line.words):
        covered[max(0, box.top) + 1 : box.bottom + 1, max(0, box.left) + 1 : box.right + 1] = 1
    covered.cumsum(axis=0, out=covered).cumsum(axis=1, out=covered)
    outside = _sums_in(covered, left, top, left + width, top + height) == 0
    return int(outside.sum()) >= max(_LEAST_UNCOVERED, MOST_UNCOVERED * len(outside))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What is drawn on a page, as far as it matters to its text."""

    orders: dict[int, int] = field(default_factory=dict)
    """When each text object is drawn, by its address."""
    pictures: list[tuple[int, layer_text.Rectangle]] = field(default_factory=list)
    """When each picture is drawn, and where, in pixels."""

    @classmethod
    def of(cls, page: PdfPage, place: PdfMatrix) -> _Drawn:
        """Look through the objects of a page."""
        drawn = cls()
        items = _items(page, raw.FPDFPage_CountObjects, raw.FPDFPage_GetObject, place, _DEPTH)
        for order, (item, at) in enumerate(islice(items, _MOST_OBJECTS)):
            kind = raw.FPDFPageObj_GetType(item)
            if kind == raw.FPDF_PAGEOBJ_TEXT:
                drawn.orders[ctypes.addressof(item.contents)] = order
            elif kind == raw.FPDF_PAGEOBJ_IMAGE:
                left, bottom, right, top = (ctypes.c_float() for _ in range(4))
                raw.FPDFPageObj_GetBounds(item, left, bottom, right, top)
                drawn.pictures.append((order, at.on_rect(left.value, bottom.value, right.value, top.value)))
        return drawn

    def largest_picture(self, size: tuple[int, int]) -> float:
        """Return the share of a page of this size that its largest picture covers."""
        width, height = size
        areas = (
            max(0.0, min(width, right) - max(0, left)) * max(0.0, min(height, bottom) - max(0, top))
            for _, (left, top, right, bottom) in self.pictures
        )
        return max(areas, default=0.0) / (width * height)

    def below_pictures(self, characters: Sequence[layer_text.Character]) -> float:
        """Return the share of characters over which a picture is drawn."""
        return _share(
            any(
                one.order < order and left <= one.origin[0] <= right and top <= one.origin[1] <= bottom
                for order, (left, top, right, bottom) in self.pictures
            )
            for one in characters
        )


def _items(
    parent: Any, count: Callable[[Any], int], get: Callable[[Any, int], Any], place: PdfMatrix, depth: int
) -> Iterator[tuple[Any, PdfMatrix]]:
    """Yield what is drawn, in order, with what takes its coordinates to pixels; forms, then what is in them."""
    for item in filter(None, (get(parent, index) for index in range(count(parent)))):
        yield item, place
        if depth and raw.FPDFPageObj_GetType(item) == raw.FPDF_PAGEOBJ_FORM:
            matrix = raw.FS_MATRIX()
            raw.FPDFPageObj_GetMatrix(item, matrix)
            within = PdfMatrix.from_raw(matrix).multiply(place)
            yield from _items(
                item, raw.FPDFFormObj_CountObjects, raw.FPDFFormObj_GetObject, within, depth - 1
            )
