"""Reading order of lines in Hebrew, Arabic and other right-to-left scripts.

pdfium loses the order of such lines with numbers and Latin words. It is restored from the line's characters from left
to right: the Unicode Bidirectional Algorithm turns logical into visual order, and this module inverts it. Where two
texts look the same, a number precedes its unit, and hyphens separate numbers in an Arabic line.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import bidirectional, category

from bidi.algorithm import (
    explicit_embed_and_overrides,
    get_embedding_levels,
    get_empty_storage,
    reorder_resolved_levels,
    resolve_implicit_levels,
    resolve_neutral_types,
    resolve_weak_types,
)
from bidi.mirror import MIRRORED

from pecia_workers.layout.lines import is_backward, is_mostly_backward, is_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pecia_workers.media.pdf_objects import Character

_STEP, _GAP, _SPACE = 0.6, 0.8, 0.12
"""Step or gap, relative to the font's size, that begins another line, piece or word."""
_NUMBER: Final = re.compile(r"\d+")
_ARABIC_DIGIT: Final = "\N{ARABIC-INDIC DIGIT ZERO}"


class _Letter(NamedTuple):
    """A character with the accents and vowel signs that belong to it."""

    place: int
    """Index among the characters of its line."""
    characters: list[Character]

    @property
    def code(self) -> str:
        return self.characters[0].code

    @property
    def left(self) -> float:
        return self.characters[0].box[0]

    @property
    def right(self) -> float:
        return self.characters[0].box[2]


def by_direction(
    characters: Sequence[Character | None],
) -> Iterator[tuple[bool | None, list[Character | None]]]:
    """Yield a page's characters in stretches, with None for left-to-right lines.

    For a line with right-to-left letters: whether most letters of the page are right-to-left.
    """
    if not any(one and is_backward(one.code) for one in characters):
        yield None, list(characters)
        return
    page = is_mostly_backward("".join(one.code for one in characters if one))
    lines: list[list[Character | None]] = [[]]
    last: Character | None = None
    for character in characters:
        if (
            character
            and last
            and abs(character.across(last.angle) - last.across(last.angle))
            > _STEP * max(last.size, character.size)
        ):
            lines.append([])
        lines[-1].append(character)
        last = character or last
    marked = (
        (any(one and is_backward(one.code) and not one.is_turned for one in line), line) for line in lines
    )
    for is_line, some in groupby(marked, key=lambda pair: pair[0]):
        if is_line:
            yield from ((page, line) for _, line in some)
        else:
            yield None, [character for _, line in some for character in line]


def pieces_of(line: Sequence[Character | None], *, is_page: bool) -> Iterator[list[list[Character]]]:
    """Yield the pieces of a line without wide gaps, each of words in the order in which they are read.

    `is_page`: whether the page runs from right to left.
    """
    letters = sorted(_letters(line), key=lambda letter: letter.left + letter.right)
    piece: list[_Letter] = []
    for letter in letters:
        if piece and letter.left - max(one.right for one in piece) > _GAP * letter.characters[0].size:
            yield _words(piece, line, is_page=is_page)
            piece = []
        piece.append(letter)
    if piece:
        yield _words(piece, line, is_page=is_page)


def _letters(line: Sequence[Character | None]) -> list[_Letter]:
    letters: list[_Letter] = []
    for place, character in enumerate(line):
        if character and character.is_mark and letters:
            letters[-1].characters.append(character)
        elif character:
            letters.append(_Letter(place, [character]))
    return letters


def _words(
    piece: Sequence[_Letter], line: Sequence[Character | None], *, is_page: bool
) -> list[list[Character]]:
    """Return the words of letters from left to right."""
    drawn: list[_Letter | None] = []
    for number, letter in enumerate(piece):
        if number and _is_space(piece[number - 1], letter, line):
            drawn.append(None)
        drawn.append(letter)
    text = "".join(letter.code if letter else " " for letter in drawn)
    level = int(is_mostly_backward(text) or (is_page and any(map(is_backward, text))))
    read = [drawn[place] for place in _reading_order(_with_arabic_numbers(text), level)]
    words = [
        [character for letter in some if letter for character in letter.characters]
        for is_word, some in groupby(read, key=bool)
        if is_word
    ]
    return _with_units_behind(_with_brackets(words)) if level else words


def _is_space(left: _Letter, right: _Letter, line: Sequence[Character | None]) -> bool:
    first, last = sorted((left.place, right.place))
    gap = (right.left - left.right) / max(left.characters[0].size, right.characters[0].size)
    between = line[first + 1 : last]
    if all(one is None or one.is_mark for one in between):  # neighbours in the file
        return None in between and gap > _SPACE / 2
    return gap > _SPACE


def _reading_order(text: str, level: int) -> list[int]:
    """Return the permutation between a text's reading order and drawing order, which is its own inverse."""
    storage = get_empty_storage()
    storage.update(base_level=level, base_dir="LR"[level])
    get_embedding_levels(text, storage)
    for place, entry in enumerate(storage["chars"]):
        entry["place"] = place
    explicit_embed_and_overrides(storage)
    for resolve in (
        resolve_weak_types,
        resolve_neutral_types,
        resolve_implicit_levels,
        reorder_resolved_levels,
    ):
        resolve(storage, debug=False)
    return [entry["place"] for entry in storage["chars"]]


def _with_arabic_numbers(text: str) -> str:
    """Return an Arabic text whose numbers outside of Latin words have the algorithm's class of Arabic digits."""
    if not any(bidirectional(one) == "AL" for one in text):
        return text

    def replaced(number: re.Match[str]) -> str:
        before, after = text[number.start() :: -1], text[number.end() :]
        sides = (next(filter(str.isalpha, side), "") for side in (before, after))
        is_latin = any(side and bidirectional(side) == "L" for side in sides)
        return number[0] if is_latin else _ARABIC_DIGIT * len(number[0])

    return _NUMBER.sub(replaced, text)


def _with_units_behind(words: list[list[Character]]) -> list[list[Character]]:
    """Return words with each unit after its number, since both orders look the same."""
    texts = ["".join(one.code for one in word) for word in words]
    words = list(words)
    for place in range(len(words) - 1):
        before = texts[place - 1] if place else ""
        is_alone = not before or is_backward(before[-1])
        if is_alone and is_unit(texts[place]) and texts[place + 1][0].isdigit():
            words[place : place + 2] = words[place + 1], words[place]
            texts[place : place + 2] = texts[place + 1], texts[place]
    return words


def _with_brackets(words: list[list[Character]]) -> list[list[Character]]:
    """Return words with brackets in reading direction: files store them as read, or as drawn."""
    kinds = [category(one.code) for word in words for one in word if category(one.code) in ("Ps", "Pe")]
    if kinds[:1] != ["Pe"]:
        return words
    return [[_mirrored(one) if category(one.code) in ("Ps", "Pe") else one for one in word] for word in words]


def _mirrored(character: Character) -> Character:
    other = MIRRORED.get(character.code, character.code)
    return character._replace(code=other, text=other)
