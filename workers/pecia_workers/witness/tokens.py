"""A page's text as tokens: which of them say the same, and where those of a witness stand.

A token is a number with its sign and separators, a run of letters, one Chinese character, or one of few symbols. The
rest is punctuation and markup, and not compared.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Block, BlockKind, Box, Line, Source, Word
from pecia_schemas.misread import at_least, distance, shape_of
from pecia_workers.layout.lines import (
    box_of,
    corners_of,
    is_decisive,
    is_unit,
    is_value,
    middle,
    runs_of,
    words_of,
)

_HAN: Final = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_DASHES: Final = r"-\u2010-\u2015\u2212"
_RAISED: Final = "⁰¹²³⁴-⁹"
_TOKEN: Final = re.compile(
    rf"(?:(?<![\w.,)\]])[{_DASHES}+](?=\d))?\d+(?:[.,:/]\d+)*|[{_RAISED}]+|[{_HAN}]"
    rf"|(?:(?![{_HAN}{_RAISED}])[^\W\d_])+|[<>≤≥±%‰€£$¥₩]"
)
_RAISED_NUMBER: Final = re.compile(rf"[{_RAISED}]+")
_WORD_BEFORE: Final = re.compile(r"[^\W\d_]*$")
_SEPARATOR: Final = re.compile(r"[.,:/]")
_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DASH: Final = re.compile(f"[{_DASHES}]")
_CODE: Final = re.compile(r"\S*\d\S*")
_NAMES: Final = re.compile(
    r"[A-Z][^\W\d_]*(?:['\u2019.-][^\W\d_]+)*\.?(?:[ ,]+[A-Z][^\W\d_]*(?:['\u2019.-][^\W\d_]+)*)+"
)
"""Adjacent capitalised words: names of people, and many headings, look like this."""
_LATEX: Final = re.compile(
    r"\\(?:[dt]?frac|text\w*|math\w+|times|cdot|pm|leq?|geq?|approx|sim|circ|mu|alpha|beta|gamma|delta|Delta|sqrt|left"
    r"|right|begin|end|quad|hline|rightarrow|to|degree|percent|underline|overline|hat|bar|sum|infty)(?![A-Za-z])"
)
"""LaTeX commands that are no words of the page; other letters after a backslash count as text."""
_DIGITS: Final = str.maketrans("OoQDlI|iZzSsBGq", "000011112255869")
"""Characters that a recogniser confuses with digits, and these digits."""
_BEFORE: Final = 40
"""Preceding characters of a line that decide whether a word is a name."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token at its place in a text."""

    text: str
    start: int
    end: int
    line: int
    """Number of its line, counted over all texts."""
    before: str
    """The point or slash between it and the previous token, if nothing else but spaces is there."""
    key: str
    """Key that equal tokens share."""
    is_value: bool
    """Whether it is a number, unit, date, code, name, negation or side, or a part of one."""
    is_mark: bool = False
    """Whether it is a raised number that refers to a footnote, and no value."""
    is_name: bool = False
    """Whether it is part of a name, in which every letter must agree."""
    ends_range: bool = False
    """Whether a number and a dash precede it: a recogniser may take the dash for its sign."""

    @property
    def is_number(self) -> bool:
        """Whether it is a number, in which every digit must agree."""
        return self.key[-1:].isdigit() and self.key[:1] in "-+0123456789"


def tokens_of(text: str, line: int = 0, *, before: str = "") -> Iterator[Token]:
    """Yield the tokens of one line; `start` and `end` are offsets in its text. `before`: the text before it."""
    values = [  # whole words, for a code is as strict in its letters as in its digits
        word.span()
        for word in re.finditer(r"\S+", text)
        if _CODE.fullmatch(word.group())
        or is_value(_RAISED_NUMBER.sub("", word.group()), f"{before} {text[: word.start()]}"[-_BEFORE:])
    ]
    names = [found.span() for found in _NAMES.finditer(text)]
    commands = [found.span() for found in _LATEX.finditer(text)] if "\\" in text else []
    last = 0

    def within(places: Sequence[tuple[int, int]], found: re.Match[str]) -> bool:
        return any(start < found.end() and found.start() < end for start, end in places)

    for found in _TOKEN.finditer(text):
        written = found.group()
        key = _key(written)
        if key and not within(commands, found):
            between = text[last : found.start()].strip()
            parted = between.replace(",", ".") if _SEPARATOR.fullmatch(between) else ""
            has_digit = any(map(str.isdigit, key))
            is_plain = has_digit or is_unit(written) or is_decisive(written)
            is_mark = _is_mark(text, found)
            # a sign of Chinese has no spaces
            of_value = not is_mark and (has_digit or within(values, found) or is_decisive(written))
            of_name = not is_plain and (of_value or within(names, found))
            ends_range = _DASH.fullmatch(between) is not None and text[:last][-1:].isdigit()
            yield Token(
                written, *found.span(), line, parted, key, of_value or of_name, is_mark, of_name, ends_range
            )
            last = found.end()


def _is_mark(text: str, found: re.Match[str]) -> bool:
    """Return whether a token refers to a footnote: a raised number that is neither a power nor a charge."""
    if not _RAISED_NUMBER.fullmatch(found.group()) or text[found.end() :].startswith(("⁺", "⁻")):
        return False
    before = text[: found.start()].rstrip("⁺⁻")
    letters = _WORD_BEFORE.search(before)
    return not before[-1:].isdigit() and not (letters and letters[0] and is_unit(letters[0]))


def _key(written: str) -> str:
    key = unicodedata.normalize("NFKD", written).casefold()
    key = _DASH.sub("-", "".join(sign for sign in key if not unicodedata.combining(sign)))
    if _THOUSANDS.fullmatch(key):
        return key.replace(",", "")
    return key.replace(",", ".") if key[-1:].isdigit() else key


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rules for comparing two readings. Numbers, units, dates, codes and names must agree in every character."""

    exact: bool
    """Whether the witness makes no mistakes of its own, as a text layer does not."""

    def same(self, written: Sequence[Token], seen: Sequence[Token]) -> bool:
        """Return whether both are equal as far as the witness can tell, except for spaces between tokens."""
        one, other = _joined(written), _joined(seen)
        if one == other or self.exact:
            return one == other
        if any(map(str.isdigit, one)):
            as_digits = _key("".join(token.text for token in seen).translate(_DIGITS))
            if len(written) == 1 and written[0].ends_range:
                as_digits = as_digits.lstrip("-")
            return all(token.is_number for token in written) and one == as_digits
        is_one = len(written) == len(seen) == 1
        is_digit = is_one and seen[0].is_number and written[0].before != "/"  # of `mmol/l` it may be the unit
        if is_digit or any(token.is_name for token in written):
            return False
        one, other = shape_of(one), shape_of(other)
        is_prose = is_one and not (written[0].is_value or seen[0].is_value)
        most = len(one) // 5 if is_prose else 0
        return one == other or (at_least(one, other) <= most and distance(one, other) <= most)


def look_alike(written: Sequence[Token], seen: Sequence[Token]) -> bool:
    """Return whether both differ only in spaces and in characters that recognisers confuse."""
    return shape_of(_joined(written)) == shape_of(_joined(seen))


def _joined(tokens: Sequence[Token]) -> str:
    """Return tokens joined, with the point between two numbers."""
    first, *rest = tokens
    return first.key + "".join(
        token.before + token.key if token.is_number and before.is_number else token.key
        for before, token in zip(tokens, rest, strict=False)
    )


_UNKNOWN: Final = re.compile(
    r"[^\W\d_\u0000-\u024f\u1e00-\u1eff⁰⁴-⁹\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaffµ\u03bc]"
)
"""Letters of scripts that the CPU engine does not read."""
_OXYGEN: Final = re.compile(r"\b(p|pC|[pP][aevt]C?|S[pavc]|Fi|etC)02\b")
"""Of which a recogniser takes the letter for a digit. `C02` and `S02` are codes of diagnoses, too."""
_HANGUL: Final = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Seen:
    """A token of the witness, and where it stands."""

    token: Token
    box: Box
    confidence: float
    row: int
    word: str
    origin: Box
    """That of its word, as it was read."""


class WitnessText:
    """What a witness read of a page."""

    def __init__(
        self,
        blocks: Sequence[Block],
        source: Source,
        *,
        pixels: NDArray[np.uint8] | None = None,
        language: str | None = None,
    ) -> None:
        """`pixels`: the page, where the witness is not sure of its places. `language`: what it took the page for."""
        self.source = source
        self.comparison = Comparison(exact=source is Source.LAYER)
        self.seen: list[Seen] = []
        self.kinds: list[BlockKind] = []
        """Of each line, or row of a table: what it is of."""
        self._reads_hangul = language == "ko"
        for block in blocks:
            for row in _rows_of(block):
                words = [
                    (word, read.box)
                    for line in row
                    for word, read in zip(placed_words(line, pixels), words_of(line), strict=True)
                ]
                self._take_words(words, len(self.kinds), pixels)
                self.kinds.append(block.kind)

    def _take_words(
        self, words: Iterable[tuple[Word, Box]], row: int, pixels: NDArray[np.uint8] | None
    ) -> None:
        for word, origin in words:
            sure = 1.0 if word.confidence is None else word.confidence
            last = (one.word for one in self.seen[-3:] if one.row == row)  # as many as identify a name
            tokens = [*tokens_of(_OXYGEN.sub(r"\1O2", word.text), row, before=" ".join(last))]
            ends_range = (
                bool(self.seen)
                and self.seen[-1].row == row
                and self.seen[-1].token.is_number
                and word.box.left - self.seen[-1].box.right < word.box.bottom - word.box.top
            )
            boxes = token_boxes(word, tokens, pixels, ends_range=ends_range)
            for token, box in zip(tokens, boxes, strict=True):
                self.seen.append(Seen(token, box, sure, row, word.text, origin))

    def can_read(self, token: Token) -> bool:
        """Return whether the witness knows the script of a token."""
        if self.comparison.exact or not _UNKNOWN.search(token.text):
            return True
        return self._reads_hangul and _HANGUL.search(token.text) is not None


def _rows_of(block: Block) -> Iterator[Sequence[Line]]:
    """Yield its lines, those of a table's row together and from its first to its last column."""
    cells = [cell for cell in block.table.cells if cell.box] if block.table else []
    if not cells:
        yield from ([line] for line in block.lines)
        return
    corners = corners_of(cell.box for cell in cells if cell.box)
    places = []
    for line in block.lines:
        at = np.array(middle(line.box))
        outside = np.maximum(corners[:, :2] - at, at - corners[:, 2:]).clip(0).sum(axis=1)
        cell = cells[int(outside.argmin())]
        places.append((cell.row, cell.column))
    order = sorted(range(len(places)), key=places.__getitem__)
    for _, row in groupby(order, key=lambda number: places[number][0]):
        yield [block.lines[number] for number in row]


_CONTRAST: Final = 0.4
"""Share of a line's strongest contrast from which a pixel is ink."""
_LEAST_CONTRAST: Final = 24
_ASIDE: Final = 0.3
"""How far a line may reach beyond its box, by its height."""
_SHORT: Final = 3
"""Most characters of a line that is higher than wide without being turned."""
_DOT: Final = 0.12
"""Greatest gap between a letter and its dot, as a share of the line's height."""
_RULE: Final = 0.9
"""Share of a pixel row that makes it a rule rather than print."""


def placed_words(line: Line, pixels: NDArray[np.uint8] | None) -> Sequence[Word]:
    """Return a line's words, each as wide as its ink and as high as the line's ink; unchanged without ink."""
    words, box = words_of(line), line.box
    height, width = box.bottom - box.top, box.right - box.left
    is_turned = height > width and len(line.text) > _SHORT
    if pixels is None or not words or is_turned:
        return words
    aside = round(_ASIDE * height)
    left, top = max(0, box.left - aside), max(0, box.top)
    ink = _ink(pixels[top : box.bottom, left : box.right + aside])
    inked = np.flatnonzero(ink.any(axis=1))
    if not inked.size:
        return words
    # Its rows are those around the middle: what is farther apart is of the lines above and below.
    bands = np.split(inked, np.flatnonzero(np.diff(inked) > round(_DOT * height) + 1) + 1)
    band = max(bands, key=lambda band: (band[0] <= len(ink) / 2 <= band[-1], len(band)))
    upper, lower = int(band[0]), int(band[-1]) + 1
    columns: NDArray[np.bool_] = np.any(ink[upper:lower], axis=0)
    spaces = [(one.box.right - left, other.box.left - left) for one, other in pairwise(words)]
    walls = [0, *(_gap(columns, *space, height) for space in spaces)]
    found = []
    for word, start, end in zip(words, walls, [*walls[1:], len(columns)], strict=True):
        across = np.flatnonzero(columns[start:end])
        if across.size:
            x0, x1 = (left + start + int(place) for place in (across[0], across[-1] + 1))
            box = box_of(x0, top + upper, x1, top + lower)
            found.append(word.model_copy(update={"box": box}))
        else:
            found.append(word)
    return found


def token_boxes(
    word: Word, tokens: Sequence[Token], pixels: NDArray[np.uint8] | None, *, ends_range: bool
) -> Iterator[Box]:
    """Yield the boxes of a word's tokens: around their characters' ink, or by their share of its width.

    Adjacent punctuation belongs to a token, except the dash of a range.
    """
    box, count = word.box, len(word.text)
    dash = 1 if ends_range and _DASH.match(word.text) else 0
    lefts = [box.left + (box.right - box.left) * place / count for place in range(count + 1)]
    rights = lefts[1:]
    if pixels is not None and (dash or len(tokens) > 1):
        left, height = max(0, box.left), box.bottom - box.top
        columns: NDArray[np.bool_] = np.any(
            _ink(pixels[max(0, box.top) : box.bottom, left : box.right]), axis=0
        )
        edges = runs_of(columns).ravel() + left
        if len(edges) == 2 * count:  # each character has its own
            lefts, rights = edges[::2].tolist(), edges[1::2].tolist()
        else:
            for place in {end for token in tokens for end in (token.start or dash, token.end)} - {0, count}:
                wall = left + _gap(columns, round(lefts[place]) - left, round(lefts[place]) - left, height)
                lefts[place] = min(edges[edges >= wall], default=wall)
                rights[place - 1] = max(edges[edges <= wall], default=wall)
    for number, token in enumerate(tokens):
        start, end = token.start if number else dash, token.end if number < len(tokens) - 1 else count
        left, right = round(lefts[start]), round(rights[end - 1])
        yield box.model_copy(update={"left": left, "right": max(left + 1, right)})


def _ink(crop: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of a line's print, dark or light, without rules."""
    if not crop.size:
        return np.zeros(crop.shape[:2], dtype=bool)
    green = crop[:, :, 1].astype(np.int16)
    apart = np.abs(green - int(np.bincount(crop[:, :, 1].ravel()).argmax()))
    ink: NDArray[np.bool_] = apart > max(_LEAST_CONTRAST, _CONTRAST * int(apart.max()))
    ink[np.count_nonzero(ink, axis=1) > _RULE * ink.shape[1]] = False
    ink[:, np.count_nonzero(ink, axis=0) == ink.shape[0]] = False
    return ink


def _gap(columns: NDArray[np.bool_], end: int, start: int, height: int) -> int:
    """Return the gap between two words, near the recogniser's end of the first and start of the second."""
    about = (end + start) / 2
    low, high = max(0, round(about - height)), min(len(columns), round(about + height))
    gaps: list[tuple[int, int]] = (runs_of(~columns[low:high]) + low).tolist()
    if not gaps:
        return round(about)
    first, last = max(gaps, key=lambda gap: (gap[1] - gap[0]) - 0.7 * abs(sum(gap) / 2 - about))
    return (first + last) // 2
