"""Characters of a PDF page's text layer, with their places on the drawn page, and their lines."""

import ctypes
import math
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import pypdfium2
from pypdfium2 import raw

from pecia_schemas.blocks import Box, Line, Word
from pecia_workers.media.pdf_objects import SLANT, Character, Rectangle
from pecia_workers.media.right_to_left import by_direction, pieces_of

_SAMPLE: Final = 500
"""Characters that show how a page's text is turned."""
_NO_GLYPH: Final = 0.01
"""Height of its box, relative to the font's size, below which a character has no glyph, as its font is missing."""
_SIGNS: Final = ".,:-+/%<>"
_LEAST_DRAWN: Final = 0.1
"""Least side, in points, of a glyph that is not empty."""
_HIGH: Final = ("\ud800", "\udbff")
"""First half of a character beyond the basic plane, which pdfium returns in two halves."""
_SPACE: Final = 0.06
"""Gap of a space, relative to the font's size: pdfium reports one wherever the font's size changes."""
_GAP, _STEP = 0.8, 0.6
"""Gap, or step off the baseline, relative to the font's size, that begins a new piece of text."""
_SMALL, _RAISED = 0.85, 0.1
"""Size of a superscript or subscript, and its distance from the baseline, relative to the size of its base."""

_INVISIBLE: Final = frozenset({raw.FPDF_TEXTRENDERMODE_INVISIBLE, raw.FPDF_TEXTRENDERMODE_CLIP})
_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
_NO_CHARACTER: Final = frozenset({"Cc", "Cn", "Co", "Cs"})
_SUPERSCRIPTS: Final = dict(zip("0123456789+-\N{MINUS SIGN}=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱ", strict=True))
_SUBSCRIPTS: Final = dict(zip("0123456789+-\N{MINUS SIGN}=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎", strict=True))
_SYMBOLS: Final = "\uf0b7\uf0a7\uf0d8\uf06f\uf0a8\uf071\uf0fc\uf0fe\uf0fb\uf0fd\uf052\uf053"
_READ_AS: Final = {
    **dict.fromkeys("\x02\u00ad\ufffe", "-"),  # pdfium's for a hyphen at the end of a line
    **dict.fromkeys("\ufeff\u200b\u200e\u200f\u2060\u202a\u202b\u202c\u202d\u202e", ""),
    # What Microsoft's symbol fonts have in the private use area.
    **dict(zip(_SYMBOLS, "•▪➢☐☐☐✓☑✗☒☑☒", strict=True)),
}
_SAME_LOOK: Final = ("\u2e80", "\u2fdf"), ("\uf900", "\ufb06"), ("\ufb1d", "\ufdfb"), ("\ufe70", "\ufefc")
"""Radicals, compatibility ideographs, ligatures, forms of Hebrew and Arabic letters: code points that look the same."""


def turn_needed(text: pypdfium2.PdfTextPage, place: pypdfium2.PdfMatrix) -> int:
    """Return the degrees, clockwise, that turn the drawn page so that most of its text stands upright."""
    count = text.count_chars()
    matrix = raw.FS_MATRIX()
    quarters: Counter[int] = Counter()
    for index in range(0, count, max(1, count // _SAMPLE)):
        if raw.FPDFText_IsGenerated(text, index) != 1 and raw.FPDFText_GetMatrix(text, index, matrix):
            own = pypdfium2.PdfMatrix.from_raw(matrix).multiply(place)
            size = raw.FPDFText_GetFontSize(text, index)
            if math.isfinite(own.a * size) and math.isfinite(own.b * size):
                quarters[round(math.degrees(math.atan2(own.b * size, own.a * size)) / 90) % 4] += 1
    return -90 * quarters.most_common(1)[0][0] % 360 if quarters else 0


class CharacterReader:
    """Reads the characters of one page."""

    def __init__(
        self, text: pypdfium2.PdfTextPage, place: pypdfium2.PdfMatrix, orders: Mapping[int, int]
    ) -> None:
        """`orders`: drawing order of each text object, by its address."""
        self._text = text
        self._place = place
        self._orders = orders
        self._drawings: dict[int, tuple[int, int, bool, bool]] = {}
        self._four = tuple(ctypes.c_double() for _ in range(4))
        self._matrix = raw.FS_MATRIX()

    def characters(self) -> Iterator[Character | None]:
        """Yield the characters on the page, in the file's order; None for a space or the end of a line."""
        first = ""
        for index in range(self._text.count_chars()):
            half = chr(min(raw.FPDFText_GetUnicode(self._text, index), sys.maxunicode))
            if _HIGH[0] <= half <= _HIGH[1]:
                first = half
                continue
            read = (first + half).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")[-1]
            first = ""
            is_space = read.isspace() and not self._is_drawn(index)
            if is_space or raw.FPDFText_IsGenerated(self._text, index) == 1:
                yield None
            elif (character := self._character(index, read)) is not None:
                yield character

    def _character(self, index: int, read: str) -> Character | None:
        raw.FPDFText_GetMatrix(self._text, index, self._matrix)
        own, place = self._matrix, self._place
        given = raw.FPDFText_GetFontSize(self._text, index)  # below 0 it turns the letter upside down
        across = given * (own.a * place.a + own.b * place.c), given * (own.a * place.b + own.b * place.d)
        up = given * (own.c * place.a + own.d * place.c), given * (own.c * place.b + own.d * place.d)
        size = math.hypot(*up)
        x, y, _, _ = self._four
        raw.FPDFText_GetCharOrigin(self._text, index, x, y)
        origin = place.on_point(x.value, y.value)
        if not all(map(math.isfinite, (size, *origin, *across))) or size <= 0:
            return None
        box, has_glyph = self._box(index, size)
        font, order, invisible, is_embedded = self._drawing(index)
        kind, text = unicodedata.category(read), _READ_AS.get(read, read).strip()
        if any(first <= text <= last for first, last in _SAME_LOOK):
            text = unicodedata.normalize("NFKC", read)
        elif kind in ("Cc", "Cs") and read not in _READ_AS:
            text = _UNKNOWN
        return Character(
            text=text,
            code=read,
            box=box,
            origin=origin,
            size=size,
            angle=round(math.degrees(math.atan2(across[1], across[0])), 1),
            font=font,
            order=order,
            invisible=invisible,
            has_glyph=has_glyph,
            is_lost=is_embedded and not (has_glyph or invisible) and (read.isalnum() or read in _SIGNS),
            unmapped=(
                (has_glyph and not text)
                or (read not in _READ_AS and (read == _UNKNOWN or kind in _NO_CHARACTER))
                or raw.FPDFText_HasUnicodeMapError(self._text, index) == 1
            ),
        )

    def _is_drawn(self, index: int) -> bool:
        """Return whether a level or upright space has a glyph that is not empty, that is, a misnamed sign."""
        raw.FPDFText_GetMatrix(self._text, index, self._matrix)
        less, more = sorted((abs(self._matrix.a), abs(self._matrix.b)))
        if less > _NO_GLYPH * more:
            return False
        left, right, bottom, top = self._four
        raw.FPDFText_GetCharBox(self._text, index, left, right, bottom, top)
        return bool(min(right.value - left.value, top.value - bottom.value) > _LEAST_DRAWN)

    def _box(self, index: int, size: float) -> tuple[Rectangle, bool]:
        """Return the box around a glyph, or around its place without one, and whether it has one."""
        left, right, bottom, top = self._four
        raw.FPDFText_GetCharBox(self._text, index, left, right, bottom, top)
        box = self._place.on_rect(left.value, bottom.value, right.value, top.value)
        if min(box[2] - box[0], box[3] - box[1]) > _NO_GLYPH * size:
            return box, True
        loose = raw.FS_RECTF()
        raw.FPDFText_GetLooseCharBox(self._text, index, loose)
        return self._place.on_rect(loose.left, loose.bottom, loose.right, loose.top), False

    def _drawing(self, index: int) -> tuple[int, int, bool, bool]:
        """Return the font of a character, its drawing order, and whether it is invisible, and its font in the file."""
        item = raw.FPDFText_GetTextObject(self._text, index)
        address = ctypes.addressof(item.contents) if item else 0
        if address not in self._drawings:
            font = raw.FPDFTextObj_GetFont(item) if item else None
            mode = raw.FPDFTextObj_GetTextRenderMode(item) if item else 0
            where = ctypes.addressof(font.contents) if font else 0
            is_embedded = bool(font) and raw.FPDFFont_GetIsEmbedded(font) == 1
            self._drawings[address] = where, self._orders.get(address, 0), mode in _INVISIBLE, is_embedded
        return self._drawings[address]


def lines_of(characters: Sequence[Character | None], scale: float = 1.0) -> tuple[Line, ...]:
    """Return pieces of lines without wide gaps, each of words, in the order of the characters, scaled by `scale`."""
    pieces: list[list[list[Character]]] = []
    for is_page, stretch in by_direction(characters):
        pieces += _pieces(stretch) if is_page is None else pieces_of(stretch, is_page=is_page)
    return tuple(filter(None, (_line(piece, scale) for piece in pieces)))


def _pieces(characters: Iterable[Character | None]) -> list[list[list[Character]]]:
    """Return pieces of lines that run from left to right, each of words."""
    pieces: list[list[list[Character]]] = []
    last: Character | None = None
    spaced = False
    for character in characters:
        if character is None:
            spaced = True
            continue
        if last is not None and character.is_mark:
            pieces[-1][-1].append(character)
            continue
        gap = None if last is None else gap_between(last, character)
        if gap is None:
            pieces.append([[character]])
        elif spaced and gap > _SPACE:
            pieces[-1].append([character])
        else:
            pieces[-1][-1].append(character)
        last, spaced = character, False
    return pieces


def gap_between(last: Character, character: Character) -> float | None:
    """Return the gap between two characters of a line, in either direction, by the font's size.

    None if they are far from each other or not on a line.
    """
    slant = abs((character.angle - last.angle + 180) % 360 - 180)
    size = max(last.size, character.size)
    (start, end), (from_, to) = last.along(last.angle), character.along(last.angle)
    gap = max(from_ - end, start - to) / size
    step = abs(character.across(last.angle) - last.across(last.angle)) / size
    return gap if slant <= SLANT and gap <= _GAP and step <= _STEP else None


def _line(piece: list[list[Character]], scale: float) -> Line | None:
    characters = [character for word in piece for character in word]
    size = max(character.size for character in characters)
    large = [one.across(one.angle) for one in characters if one.size > _SMALL * size]
    baseline = sorted(large)[len(large) // 2]
    words = tuple(
        Word(text=text, box=_box_around(word, scale))
        for word in piece
        if (text := unicodedata.normalize("NFC", _text(word, size, baseline)))
    )
    text = " ".join(word.text for word in words)
    return Line(text=text, box=_box_around(characters, scale), words=words) if words else None


def _text(word: list[Character], size: float, baseline: float) -> str:
    """Return a word's text, with superscripts and subscripts in Unicode."""
    text = ""

    def signs_of(character: Character) -> Mapping[str, str]:
        off = (character.across(character.angle) - baseline) / size
        if character.size > _SMALL * size or abs(off) < _RAISED:
            return {}
        return _SUBSCRIPTS if off > 0 else _SUPERSCRIPTS

    for signs, run in groupby(word, key=signs_of):
        part = "".join(character.text for character in run)
        text += "".join(map(signs.__getitem__, part)) if signs and all(one in signs for one in part) else part
    return text


def _box_around(characters: Sequence[Character], scale: float) -> Box:
    """Return a box of a line's height around characters."""
    return scaled_box(rectangle_around(characters), scale)


def rectangle_around(characters: Iterable[Character]) -> Rectangle:
    """Return the rectangle of characters in their line."""
    lefts, tops, rights, bottoms = zip(*(character.place for character in characters), strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def scaled_box(place: Rectangle, scale: float) -> Box:
    """Return the box around a rectangle on the scaled page."""
    left, top, right, bottom = (scale * side for side in place)
    return Box(left=math.floor(left), top=math.floor(top), right=math.ceil(right), bottom=math.ceil(bottom))
