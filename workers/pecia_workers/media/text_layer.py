"""The text layer of a PDF page, and whether it can be trusted.

A text layer may be exact or wrong: a program may have recognised it from a scan, its fonts may name their letters
wrongly, it may be hidden. If it is not trusted, the page is read from its pixels. It is trusted if

1. it has at least `LEAST_CHARACTERS` characters that are visible, and at most `MOST_CHARACTERS`; 2. at most
   `MOST_HIDDEN` are invisible: drawn in mode 3 or 7, like recognised text, too small to see, or without a trace in the
   pixels, for example in the colour of the ground or below a black bar. Hidden characters are never part of the text. A
   character whose font is missing is not hidden: only the layer has it; 3. no picture covers more than `MOST_PICTURE`
   of the page, and pictures hide at most `MOST_BELOW` of the characters; 4. at most `MOST_UNMAPPED` are no characters:
   unmapped, private use, control, an accent without its letter; at least `LEAST_LETTERS` are letters or digits; 5. at
   most `MOST_TURNED` are turned, after a page with sideways text has been turned upright; 6. each glyph of its fonts
   looks like its letter (`pecia_workers.media.glyphs`); a few words for which that is unknown, or which are drawn over,
   are read from their pixels alone; 7. they cover the page's ink: at most `MOST_UNCOVERED` of letter-like ink is
   outside their boxes, such as text in a picture or drawn as curves. Where an engine is available that reads the rest,
   they may cover less.

A character is visible if it has edges, of dark or light print: at least as many as its box is wide and high. Dark
characters are judged individually, since a bar may cover part of a word. Pale print is judged as a run, since the edges
of some of its letters are just sharp enough and those of others are not.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise
from typing import Final, TypeAlias

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image
from pypdfium2 import raw

from pecia_schemas.blocks import Box, Doubt, Line
from pecia_workers.layout.ink import sum_within, turned
from pecia_workers.layout.lines import box_of, scaled
from pecia_workers.media.glyphs import Naming, judge_naming
from pecia_workers.media.layer_text import (
    CharacterReader,
    gap_between,
    lines_of,
    rectangle_around,
    turn_needed,
)
from pecia_workers.media.overdrawn import level_lines, with_drawn_strikes
from pecia_workers.media.pdf_objects import (
    Character,
    Rectangle,
    area_within,
    objects_of,
    placing,
    rectangle_of,
    turned_placing,
)

_Picture: TypeAlias = tuple[int, Rectangle]
"""Drawing order and place, in pixels, of a picture."""

LEAST_CHARACTERS: Final = 8
MOST_CHARACTERS: Final = 50_000
MOST_HIDDEN: Final = 0.3
MOST_PICTURE: Final = 0.5
MOST_BELOW: Final = 0.1
MOST_UNMAPPED: Final = 0.02
LEAST_LETTERS: Final = 0.35
MOST_TURNED: Final = 0.3
MOST_UNCOVERED: Final = 0.05
_LEAST_UNCOVERED: Final = 20
"""Least uncovered letters; fewer are a logo."""
_LEADERS: Final = frozenset("._-\N{HORIZONTAL ELLIPSIS}\N{MIDDLE DOT}")

_LEAST_POINTS, _MOST_PIXELS = 1.55, 6.5
"""Font size, in points, up to which print is hidden; and in pixels, however large the page is drawn."""
_LEAST_CONTRAST: Final = 6
"""Least contrast of an edge between adjacent pixels."""
_PALE: Final = 48
"""Grey levels between print and ground up to which it is pale."""
_PAPER: Final = 200
"""Grey from which paper is light."""


class Distrust(StrEnum):
    """Reason why a layer is not trusted."""

    NO_TEXT = "no_text"
    HIDDEN = "hidden"
    PICTURE = "picture"
    UNMAPPED = "unmapped"
    TURNED = "turned"
    MISNAMED = "misnamed"
    UNCOVERED = "uncovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLayer:
    """The text layer of a page."""

    characters: tuple[Character | None, ...] = ()
    """In the file's order, None for a space, in pixels of the page after its turn."""
    turn: int = 0
    """Degrees, clockwise, by which the drawn page is turned so that its text is upright: 0, 90, 180 or 270."""
    distrust: Distrust | None = None
    """Reason for distrust; None: it can be trusted."""
    misreadings: tuple[Doubt, ...] = ()
    """Values whose glyphs look like other characters."""
    unread: tuple[Box, ...] = ()
    """Areas of text-like ink outside of it, if it can be trusted."""
    has_lost_signs: bool = False
    """Whether it has signs for which the file's own fonts have no glyph, so that the page does not show them."""
    strikes: tuple[Rectangle, ...] = ()
    """Level lines on the page, some of which may strike words out."""

    def lines(self, scale: float = 1.0) -> tuple[Line, ...]:
        """Return pieces of lines without wide gaps, in the file's order, on the scaled page."""
        strikes = [(scale * x0, scale * y0, scale * x1, scale * y1) for x0, y0, x1, y1 in self.strikes]
        return with_drawn_strikes(lines_of(self.characters, scale), strikes)

    def doubts(self, scale: float = 1.0) -> Iterator[Doubt]:
        """Yield the values that may differ from the layer, on the scaled page."""
        for doubt in self.misreadings:
            yield doubt.model_copy(update={"box": doubt.box and scaled(doubt.box, scale)})


def text_layer(
    page: pypdfium2.PdfPage,
    pixels: NDArray[np.uint8],
    *,
    may_turn: bool = True,
    hidden: bool = False,
    struck: Iterable[Rectangle] = (),
) -> TextLayer:
    """Return the text of a page rendered as these pixels; `hidden`: with its invisible text.

    `struck`: middles of areas that annotations strike out, in the page's coordinates.
    """
    height, width = pixels.shape[:2]
    with closing(page.get_textpage()) as text:
        if not 0 < text.count_chars() <= MOST_CHARACTERS:
            return TextLayer(distrust=Distrust.NO_TEXT)
        place = placing(page, width, height)
        turn = turn_needed(text, place) if may_turn else 0
        place = turned_placing(place, turn, width, height)
        orders, pictures, strikes = _drawn(page, place)
        strikes += [place.on_rect(*middle) for middle in struck]
        found = list(CharacterReader(text, place, orders).characters())
    upright = turned(pixels, turn)
    grey = Image.fromarray(upright).convert("L")
    on_page = [
        one
        for one in found
        if one is None or (min(one.box[2:]) > 0 and one.box[0] < grey.width and one.box[1] < grey.height)
    ]
    if hidden:
        return TextLayer(characters=tuple(on_page), turn=turn, strikes=tuple(strikes))
    visible = _visible(on_page, np.asarray(grey), scale=width / page.get_width())
    unseen = sum(one is not None and not one.code.isspace() for one in on_page) - len(visible)
    kept = tuple(
        one if one and id(one) in visible else None
        for one in on_page
        if one is None or id(one) in visible or one.code.isspace()
    )
    distrust = next(_faults(kept, unseen, pictures, grey), None)
    is_print = distrust not in (Distrust.NO_TEXT, Distrust.HIDDEN, Distrust.PICTURE)
    has_lost = is_print and any(one.is_lost for one in kept if one)
    naming = Naming() if distrust else judge_naming(kept, grey)
    if distrust or naming.is_wrong:
        distrust = distrust or Distrust.MISNAMED
        return TextLayer(characters=kept, turn=turn, distrust=distrust, has_lost_signs=has_lost)
    unsure = [rectangle_around(filter(None, kept[word.start : word.stop])) for word in naming.unsure]
    left_out = frozenset(chain(*naming.unsure))
    known = tuple(None if place in left_out else one for place, one in enumerate(kept))
    distrust, unread = _uncovered(known, upright, [place for _, place in pictures], unsure)
    return TextLayer(
        characters=known,
        turn=turn,
        distrust=distrust,
        misreadings=naming.doubts,
        unread=unread,
        has_lost_signs=has_lost,
        strikes=tuple(strikes),
    )


def _drawn(
    page: pypdfium2.PdfPage, place: pypdfium2.PdfMatrix
) -> tuple[dict[int, int], list[_Picture], list[Rectangle]]:
    """Return the drawing order of a page's text objects, by address; its pictures; and its level lines."""
    orders: dict[int, int] = {}
    pictures: list[_Picture] = []
    lines: list[Rectangle] = []
    for order, (item, kind, at) in enumerate(objects_of(page, place)):
        if kind == raw.FPDF_PAGEOBJ_TEXT:
            orders[ctypes.addressof(item.contents)] = order
        elif kind == raw.FPDF_PAGEOBJ_IMAGE:
            pictures.append((order, rectangle_of(item, at)))
        elif kind == raw.FPDF_PAGEOBJ_PATH:
            lines += level_lines(item, at)
    return orders, pictures, lines


def _faults(
    characters: Sequence[Character | None], hidden: int, pictures: Sequence[_Picture], grey: Image.Image
) -> Iterator[Distrust]:
    """Yield the faults of a layer's visible text, cheapest check first; `hidden`: number of invisible characters."""
    seen = [one for one in characters if one]
    if max(len(seen), hidden) < LEAST_CHARACTERS:
        yield Distrust.NO_TEXT
    if hidden > MOST_HIDDEN * (len(seen) + hidden):
        yield Distrust.HIDDEN
    areas = (area_within(place, grey.width, grey.height) for _, place in pictures)
    below = (
        any(
            one.order < order and left <= one.origin[0] <= right and top <= one.origin[1] <= bottom
            for order, (left, top, right, bottom) in pictures
        )
        for one in seen
    )
    if max(areas, default=0.0) > MOST_PICTURE * grey.width * grey.height or _share(below) > MOST_BELOW:
        yield Distrust.PICTURE
    # Accents and vowel signs that have lost their letter, as where marks are out of order.
    stray = _share(before is None for before, one in pairwise(characters) if one and one.is_mark)
    if _share(one.unmapped for one in seen) + stray > MOST_UNMAPPED:
        yield Distrust.UNMAPPED
    if _share(one.text[:1].isalnum() for one in seen if one.code not in _LEADERS) < LEAST_LETTERS:
        yield Distrust.UNMAPPED
    if _share(one.is_turned for one in seen) > MOST_TURNED:
        yield Distrust.TURNED


def _uncovered(
    characters: Sequence[Character | None],
    pixels: NDArray[np.uint8],
    pictures: Sequence[Rectangle],
    unsure: Sequence[Rectangle],
) -> tuple[Distrust | None, tuple[Box, ...]]:
    """Return the areas of letter-like ink outside of a layer, and whether they are too much of the page."""
    from pecia_workers.layout.coverage import TALLEST, Letters  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    letters = Letters.of(pixels, TALLEST * max(pixels.shape))
    rest = letters.beside(word.box for line in lines_of(characters) for word in line.words)
    is_much = sum(map(len, rest.lines())) >= max(_LEAST_UNCOVERED, MOST_UNCOVERED * len(letters))
    regions = rest.regions((box_of(*place) for place in pictures), [box_of(*place) for place in unsure])
    return Distrust.UNCOVERED if is_much else None, tuple(regions)


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean([*flags] or [False]))


def _visible(characters: Sequence[Character | None], grey: NDArray[np.uint8], *, scale: float) -> set[int]:
    """Return the `id` of visible characters, and of those that would be visible if their font existed.

    `scale`: pixels in a point.
    """
    least_size = min(_LEAST_POINTS * scale, _MOST_PIXELS)
    shown = [one for one in characters if one and not one.invisible and one.size >= least_size]
    surplus = dict(zip(map(id, shown), _surplus_edges(shown, grey), strict=True))
    seen = {one for one, edges in surplus.items() if edges >= 0}
    if len(seen) == len(shown):
        return seen
    for run in _runs([one if one is None or id(one) in surplus else None for one in characters]):
        unseen = [one for one in run if id(one) not in seen]
        if unseen and len(unseen) < len(run):
            kept = set(map(id, _seen_of(run, seen, surplus, grey)))
            seen.difference_update(map(id, run))
            seen |= kept
    return seen | {
        id(one) for one in shown if not one.has_glyph and _part(one, grey).min(initial=255) >= _PAPER
    }


def _seen_of(
    run: Sequence[Character], seen: set[int], surplus: dict[int, float], grey: NDArray[np.uint8]
) -> Iterator[Character]:
    """Yield the visible text of a run whose characters are not all visible individually."""
    parts = [_part(one, grey) for one in run]
    contrasts = [np.ptp(part) for one, part in zip(run, parts, strict=True) if id(one) in seen]
    if np.median(contrasts) >= _PALE:
        yield from (one for one in run if id(one) in seen)
    elif sum(surplus[id(one)] for one in run) >= 0:
        levels = [float(part.mean()) for part in parts]
        usual = float(np.median(levels))  # bars are below it
        yield from (one for one, level in zip(run, levels, strict=True) if abs(level - usual) < _PALE)


def _runs(characters: Sequence[Character | None]) -> Iterator[list[Character]]:
    """Yield words, or longer runs drawn together, mostly of one print."""
    run: list[Character] = []
    spaced = False
    for character in characters:
        if character is None:
            spaced = True
            continue
        is_word = bool(run) and not spaced and gap_between(run[-1], character) is not None
        if run and not is_word and run[-1].order != character.order:
            yield run
            run = []
        run.append(character)
        spaced = False
    if run:
        yield run


def _part(character: Character, grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    left, top, right, bottom = (max(0, int(side)) for side in character.box)
    return grey[top : bottom + 1, left : right + 1]


def _surplus_edges(characters: Sequence[Character], grey: NDArray[np.uint8]) -> list[float]:
    """Return for each character the edges in and around its box in excess of its width and height."""
    page = grey.astype(np.int16)
    sums = np.zeros((grey.shape[0] + 1, grey.shape[1] + 1), dtype=np.int32)
    sums[1:-1, 1:] += np.abs(np.diff(page, axis=0)) >= _LEAST_CONTRAST
    sums[1:, 1:-1] += np.abs(np.diff(page, axis=1)) >= _LEAST_CONTRAST
    sums.cumsum(axis=0, out=sums).cumsum(axis=1, out=sums)
    boxes = np.array([one.box for one in characters]).reshape(-1, 4)
    left, top = (np.floor(boxes[:, :2].T) - 1).astype(np.intp)
    right, bottom = (np.ceil(boxes[:, 2:].T) + 1).astype(np.intp)
    sides = boxes[:, 2] - boxes[:, 0] + boxes[:, 3] - boxes[:, 1]
    surplus: list[float] = (sum_within(sums, left, top, right, bottom) - sides).tolist()
    return surplus
