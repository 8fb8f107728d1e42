"""Verification of a text layer's letters: whether the page's glyphs look like them.

A font of a PDF may declare any letter for a glyph: "5" is drawn, the layer has "6". Each shape of a font is compared
with the letters, digits and signs of pdfium's own fonts. A shape is a font, a code and the glyph's box relative to the
font's size, which is exact, so that two glyphs that claim the same letter are two shapes.

A font is wrong if too few of its letters look like their code points: at least 92 % of a sound font's have it among the
three most similar, at most 20 % of a scrambled font's, at most 40 % if each digit is off by one. A single shape that
looks much more like another letter is a suspect (2 % of the shapes of 87 sound fonts, 99 % of two swapped letters). Its
words are then read from their pixels: it is wrong if they have the other letter there. Where they cannot be read, a
claimed digit or sign becomes a doubt.

A font is also wrong if a glyph between its letters means no character (a zero-width sign, a space, the private use
area), or its O or l is used as a digit.

In scripts that pdfium's own fonts lack, a font is wrong if it has two dissimilar shapes for one letter. Chinese,
Japanese and Korean characters are also judged by size and frequency: a wrong code is mostly that of a rare character.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Final, TypeAlias
from unicodedata import category

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_schemas.blocks import Doubt, DoubtReason
from pecia_workers.media.layer_text import gap_between, scaled_box
from pecia_workers.media.overdrawn import drawn_signs, letters_over_letters
from pecia_workers.media.pdf_objects import Character
from pecia_workers.media.recognition import (
    INDEX,
    LETTERS,
    SIGNS,
    Context,
    distances,
    look_of,
    plain,
    read_again,
    word_around,
)

_Shape: TypeAlias = tuple[int, str, int, int, int, int]
"""Font, code and box, relative to the font's size, of a glyph."""

_LEAST_SIZE: Final = 8.0
"""Least font size, in pixels, at which glyphs can be distinguished."""
_FINE: Final = 500
"""Resolution of boxes, in parts of a font's size."""
_MOST_SHAPES: Final = 1000
_SAMPLES: Final = 8
"""Samples of a digit, since the boxes of two digits may be equal."""
_ALIKE: Final = 3
_LEAST_SHARE: Final = 0.6
_LEAST_GLYPHS: Final = 3
_MOST_WRONG: Final = 0.01
"""Share of a page's characters in wrong fonts."""
_OF_A_FONT, _READ_OF_A_FONT = 8, 0.3
"""Number of shapes of such fonts that are read again, and the share that a sound font must confirm."""

_SUSPECT_DOUBLE, _SUSPECT, _SUSPECT_LETTER = 0.05, 0.2, 0.25
"""How much closer another letter must be than the claimed one: for letters with two shapes, for values, for others. For
a digit no other may be closer at all."""
_NO_PICTURE: Final = {"-", "."}
"""Signs with similar, solid pictures."""
_DIGITS: Final = frozenset("0123456789µ")
_VALUES: Final = _DIGITS | frozenset("%‰°<>≤≥+±=")
_AS_DIGITS: Final = dict.fromkeys("Oo", "0") | dict.fromkeys("Il|", "1")
_OF_NUMBERS: Final = frozenset("0123456789OolI|.,:/-+%()<>")
_AS_WIDE: Final = 1.15
"""Greatest width of an O, relative to its font's digits, for it to be a zero."""
_FEW, _FEW_OF_ALL = 24, 0.02
"""Most characters, and share of a page's, in words that are read from their pixels; with more the whole page is."""
_A_LETTER: Final = 0.8
"""Greatest distance from a letter or digit of an unnamed glyph that is one."""
_BESIDE: Final = 0.25
"""Greatest gap, relative to the font's size, between a letter and the next glyph in a word."""
_LEAST_SUSPECT_SIZE: Final = 10.0
_MOST_SUSPECTS, _READINGS, _MOST_DOUBTS = 20, 3, 100

_UNLIKE: Final = 0.7
"""Squared distance between the pictures of two shapes from which they are different letters."""
_MOST_PAIRS: Final = 8
_JOINING: Final = "\u0600", "\u1fff"
"""Scripts whose letters have several shapes, Arabic to Mongolian."""
_SQUARE: Final = ("\u3400", "\u9fff"), ("\uac00", "\ud7a3")
"""Chinese characters and Korean syllables."""
_LEAST_SQUARE: Final = 0.6
_COMMON: Final = {
    "gb2312": range(0xB0, 0xD8),
    "big5": range(0xA4, 0xC7),
    "euc_jp": range(0xB0, 0xD0),
    "euc_kr": range(0xB0, 0xC9),
}
"""Encodings, and the first bytes of their common characters."""


@dataclass(frozen=True, slots=True)
class Naming:
    """Verification result of a page's glyphs."""

    is_wrong: bool = False
    """Whether letters or values differ from the text layer."""
    doubts: tuple[Doubt, ...] = ()
    """Unverified values, and signs that differ from the text layer."""
    unsure: tuple[range, ...] = ()
    """Places of words to be read from their pixels."""


def judge_naming(characters: Sequence[Character | None], grey: Image.Image) -> Naming:
    """Verify the characters, None for a space, against their glyphs on a grey page."""
    page = _Page(characters, grey)
    drawn = [
        sample
        for sample in islice(page.places, _MOST_SHAPES)
        if sample.size >= _LEAST_SIZE and sample.has_glyph and not sample.is_turned
    ]
    known = [sample for sample in drawn if sample.code in INDEX]
    unlike = distances([look_of(sample, grey) for sample in known])
    wrong = list(_of_wrong_fonts([*_alike(known, unlike), *_square(page.places)]))
    if page.share_of(wrong) > _MOST_WRONG and not page.has_most_of(wrong):
        return Naming(is_wrong=True)
    twofold = set(_of_two_shapes(drawn, grey))
    if any(category(one.code).startswith("L") and one.code not in INDEX for one in twofold):
        return Naming(is_wrong=True)
    unsure = tuple(set(page.unsure(drawn, twofold)))
    if sum(map(len, unsure)) > max(_FEW, _FEW_OF_ALL * len(characters)):
        return Naming(is_wrong=True)
    doubts = list(page.drawn_signs())
    sound: set[tuple[int, str, str]] = set()
    for suspect, nearer in islice(_suspects(known, unlike, twofold), _MOST_SUSPECTS):
        likeness = suspect.font, suspect.code, nearer[0]
        reading = plain(suspect.code) if likeness in sound else page.reading_of(suspect, nearer)
        if reading == plain(suspect.code):
            sound.add(likeness)
            continue
        other = reading or nearer[0]
        is_value = suspect.code in _VALUES or other in _DIGITS
        if reading or is_value:
            doubts += page.doubts_on(suspect, other, on_value=is_value)
        if reading and (is_value or any(one.isalpha() or one in SIGNS for one in reading)):
            return Naming(is_wrong=True, doubts=tuple(doubts))
    return Naming(doubts=tuple(doubts), unsure=unsure)


@dataclass(slots=True)
class _Page:
    """Characters at their places on a grey page, by the shapes of their glyphs."""

    characters: Sequence[Character | None]
    grey: Image.Image
    places: dict[Character, list[int]] = field(default_factory=dict)
    """Places of each shape, the largest character first; similar digits in several groups."""

    def __post_init__(self) -> None:
        shapes: dict[_Shape, list[int]] = defaultdict(list)
        for place, (last, character) in enumerate(pairwise([None, *self.characters])):
            if character and not (last and last.box == character.box):  # several letters of one glyph
                shapes[_shape_of(character)].append(place)
        for (_, code, *_), places in shapes.items():
            for start in range(min(len(places), _SAMPLES) if code.isdigit() else 1):
                part = places[start::_SAMPLES] if code.isdigit() else places
                sized = [(one.size, -place, one) for place in part if (one := self.characters[place])]
                _, first, sample = max(sized)
                self.places[sample] = [-first, *(place for place in part if place != -first)]

    def unsure(self, drawn: Sequence[Character], twofold: Container[Character]) -> Iterator[range]:
        """Yield the words whose text differs from their glyphs."""
        unnamed = [one for one in drawn if one.unmapped]
        unlike = distances([look_of(one, self.grey) for one in unnamed])
        letters = [one for one, row in zip(unnamed, unlike, strict=True) if row.min() < _A_LETTER]
        digits = [one for one in drawn if self.is_digit(one, twofold)]
        places = chain(
            _unnamed(self.characters),
            letters_over_letters(self.characters),
            *(self.places[one] for one in (*letters, *digits)),
        )
        return (word_around(self.characters, place) for place in places)

    def is_digit(self, sample: Character, twofold: Container[Character]) -> bool:
        """Return whether an O or l is a digit: it is in a number, and its font has no other glyph for that digit.

        It is also as narrow as other digits, or another glyph of its font has the letter's name.
        """
        digit = _AS_DIGITS.get(sample.code)
        contexts = (Context.of(self.characters, place, word=True).text for place in self.places[sample])
        if digit is None or not any(
            _OF_NUMBERS.issuperset(text) and any(map(str.isdecimal, text)) for text in contexts
        ):
            return False
        digits = [one for one in self.places if one.font == sample.font and one.code.isdecimal()]
        if any(one.code == digit for one in digits):
            return False
        widths = [(one.box[2] - one.box[0]) / one.size for one in digits if one.code != "1"]
        width = (sample.box[2] - sample.box[0]) / sample.size
        is_narrow = digit == "0" and bool(widths) and width <= _AS_WIDE * float(np.median(widths))
        return is_narrow or sample in twofold

    def drawn_signs(self) -> Iterator[Doubt]:
        """Yield the numbers with a point or minus sign that is drawn but is no character."""
        for place, sign in drawn_signs(self.characters, np.asarray(self.grey)):
            context = Context.of(self.characters, place, word=True)
            other = context.text[: context.place] + sign + context.text[context.place :]
            yield _doubt(context, other, on_value=True)

    def share_of(self, samples: Iterable[Character]) -> float:
        """Return the share of all characters that have these shapes."""
        shapes = set(map(_shape_of, samples))
        count = sum(len(places) for sample, places in self.places.items() if _shape_of(sample) in shapes)
        return count / max(1, sum(map(len, self.places.values())))

    def has_most_of(self, samples: Sequence[Character]) -> bool:
        """Return whether enough of these can be read, and most of them confirm the text layer."""
        commonest = sorted(samples, key=lambda sample: -len(self.places[sample]))[:_OF_A_FONT]
        readings = [(self.reading_of(sample), plain(sample.code)) for sample in commonest]
        known = [reading == claimed for reading, claimed in readings if reading]
        return sum(known) > max(len(known) / 2, _READ_OF_A_FONT * len(readings))

    def reading_of(self, sample: Character, nearer: str | None = None) -> str | None:
        """Return the letter of a shape by the words around it, or None if they cannot be read.

        `nearer`: letters that it resembles more than the claimed one, empty for other shapes.
        """
        places, found = self.places[sample], Counter[str]()
        chosen = places[:: max(1, len(places) // _READINGS)][: 1 if sample.code.isdigit() else _READINGS]
        for place in chosen:
            reading = read_again(Context.of(self.characters, place), self.grey)
            if reading == plain(sample.code):
                return reading
            if reading and (
                len(reading) > 1 or reading not in INDEX or nearer is None or reading in map(plain, nearer)
            ):
                found[reading] += 1
        return next((reading for reading, count in found.items() if 2 * count > len(chosen)), None)

    def doubts_on(self, sample: Character, other: str, *, on_value: bool) -> Iterator[Doubt]:
        """Yield the places of a shape with its other possible letters; only the first place if it is no value."""
        for place in self.places[sample][: _MOST_DOUBTS if on_value else 1]:
            context = Context.of(self.characters, place, word=True)
            yield _doubt(context, context.with_other(other), on_value=on_value)


def _doubt(context: Context, other: str, *, on_value: bool) -> Doubt:
    return Doubt(
        reason=DoubtReason.DISAGREES,
        box=scaled_box(context.box, 1.0),
        text=context.text,
        other=other,
        on_value=on_value,
    )


def _unnamed(characters: Sequence[Character | None]) -> Iterator[int]:
    """Yield the places of unnamed glyphs next to a letter or digit of their font.

    A bullet has another font, or is isolated.
    """
    for place, (last, character) in enumerate(pairwise(characters)):
        for at, one, beside in ((place, last, character), (place + 1, character, last)):
            if one and beside and one.unmapped and one.font == beside.font and beside.code.isalnum():
                gap = gap_between(one, beside)
                if gap is not None and gap <= _BESIDE:
                    yield at


def _shape_of(character: Character) -> _Shape:
    left, top, right, bottom = (side / character.size for side in character.box)
    x, y = (side / character.size for side in character.origin)
    sides = (y - bottom, bottom - top, left - x, right - left)
    below, high, ahead, wide = (round(_FINE * side) for side in sides)
    return character.font, character.code, below, high, ahead, wide


def _alike(known: Sequence[Character], unlike: NDArray[np.float32]) -> Iterator[tuple[Character, bool]]:
    """Yield each letter or digit once, and whether its glyph looks most like it."""
    letters = np.array([letter not in SIGNS for letter in LETTERS])
    judged: set[_Shape] = set()
    for sample, row in zip(known, unlike, strict=True):
        index, shape = INDEX.get(sample.code), _shape_of(sample)
        if index is not None and letters[index] and shape not in judged:
            judged.add(shape)
            yield sample, int((row[letters] < row[index]).sum()) < _ALIKE


def _square(samples: Iterable[Character]) -> Iterator[tuple[Character, bool]]:
    """Yield each Chinese character and Korean syllable, and whether its size and frequency are normal."""
    for sample in samples:
        if any(first <= sample.code <= last for first, last in _SQUARE):
            left, top, right, bottom = sample.box
            is_large = max(right - left, bottom - top) >= _LEAST_SQUARE * sample.size
            encoded = ((sample.code.encode(encoding, "ignore"), lead) for encoding, lead in _COMMON.items())
            is_common = any(len(both) == 2 and both[0] in lead for both, lead in encoded)  # noqa: PLR2004  bytes
            yield sample, is_large and is_common


def _of_wrong_fonts(judged: Iterable[tuple[Character, bool]]) -> Iterator[Character]:
    """Yield the shapes of mostly wrong fonts, judged separately for digits, lower-case and other letters."""
    fonts: dict[tuple[int, str], list[tuple[Character, bool]]] = defaultdict(list)
    for sample, is_sound in judged:
        kind = "digit" if sample.code.isdigit() else "lower" if sample.code.islower() else "other"
        fonts[sample.font, kind].append((sample, is_sound))
    groups = [glyphs for glyphs in fonts.values() if len(glyphs) >= _LEAST_GLYPHS]
    rest = [one for glyphs in fonts.values() if len(glyphs) < _LEAST_GLYPHS for one in glyphs]
    for glyphs in (*groups, rest):
        if len(glyphs) >= _LEAST_GLYPHS and sum(sound for _, sound in glyphs) < _LEAST_SHARE * len(glyphs):
            yield from (sample for sample, _ in glyphs)


def _of_two_shapes(drawn: Iterable[Character], grey: Image.Image) -> Iterator[Character]:
    """Yield each shape of a letter for which its font has another, dissimilar one."""
    shapes: dict[tuple[int, str], list[Character]] = defaultdict(list)
    for sample in drawn:
        if not _JOINING[0] <= sample.code <= _JOINING[1]:
            shapes[sample.font, sample.code].append(sample)
    for samples in (several[:_MOST_PAIRS] for several in shapes.values() if len(several) > 1):
        pictures = np.array([look_of(sample, grey)[:-3] for sample in samples])
        apart = np.square(pictures[:, np.newaxis] - pictures).sum(axis=2).max(axis=1)
        yield from (sample for sample, most in zip(samples, apart.tolist(), strict=True) if most > _UNLIKE)


def _suspects(
    known: Sequence[Character], unlike: NDArray[np.float32], twofold: Container[Character]
) -> Iterator[tuple[Character, str]]:
    """Yield each glyph that looks much more like other letters than its own, with those, best first."""
    plains = np.array([plain(letter) for letter in LETTERS])
    for sample, row in zip(known, unlike, strict=True):
        own = row[plains == plain(sample.code)].min()
        nearer = [LETTERS[index] for index in row.argsort() if row[index] < own]
        if not nearer or sample.size < _LEAST_SUSPECT_SIZE or {sample.code, nearer[0]} == _NO_PICTURE:
            continue
        is_value = sample.code in _VALUES or nearer[0] in _DIGITS
        least = _SUSPECT_DOUBLE if sample in twofold else _SUSPECT if is_value else _SUSPECT_LETTER
        is_other_digit = sample.code in _DIGITS and not _DIGITS.isdisjoint(nearer)
        if is_other_digit or own - row.min() > least:
            yield sample, "".join(nearer)
