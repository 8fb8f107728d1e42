"""Words that look like others, settled by shape, score and pixels; the shapes are drawn in several faces."""

from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

if not find_spec("cv2"):
    pytest.skip("pecia[cpu] brings OpenCV", allow_module_level=True)

from pecia_workers.layout.alike import Settled, calibration, confirmed, settled
from pecia_workers.layout.characters import Character, line_ink
from pecia_workers.layout.glyph_shapes import (
    Glyph,
    digit_height,
    enlarged,
    glyphs,
    looks_like,
)

SIZE, LEFT = 40, 12
HEIGHT = 56


def drawn(text: str) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], dict[int, float]]:
    """A line of print, and where each of its characters is, in shares of the width."""
    font = ImageFont.load_default(SIZE)
    width = round(font.getlength(text)) + 2 * LEFT
    image = Image.new("RGB", (width, HEIGHT), "white")
    ImageDraw.Draw(image).text((LEFT, 4), text, fill="black", font=font)
    ends = [LEFT + font.getlength(text[:n]) for n in range(len(text) + 1)]
    return np.array(image), {n: (ends[n] + ends[n + 1]) / 2 / width for n in range(len(text))}


def read_as(
    printed: str, read: str, score: float = 0.9, rival: str = "", rival_score: float = 0.0
) -> Settled:
    """What becomes of a word that was read with other signs than it was printed with."""
    crop, middles = drawn(printed)
    word = [
        Character(one, middles[n], score, rival, rival_score)
        if one != printed[n]
        else Character(one, middles[n], 0.99)
        for n, one in enumerate(read)
    ]
    return settled(word, glyphs(word, crop), HEIGHT)


@pytest.mark.parametrize(("sign", "signs"), [("0", "0O"), ("O", "O0"), ("1", "I1"), ("I", "1I")])
def test_a_zero_an_o_a_one_and_an_i_are_told_apart_by_their_shape(sign: str, signs: str) -> None:
    crop, middles = drawn(f"{sign}4")
    [glyph, _] = glyphs([Character(sign, middles[0], 1.0), Character("4", middles[1], 1.0)], crop)
    assert looks_like(glyph, signs) == sign
    assert looks_like(None, signs) == ""


@pytest.mark.parametrize("sign", "1I")
def test_a_one_and_an_i_are_told_apart_in_italics(sign: str) -> None:
    crop, middles = drawn(f"{sign}4")
    [glyph, _] = glyphs([Character(sign, middles[0], 1.0), Character("4", middles[1], 1.0)], crop)
    assert glyph
    high, wide = glyph.picture.shape
    slanted = np.zeros((high, wide + high // 4 + 1), np.int32)
    for row, ink in enumerate(glyph.picture):
        shift = (high - row) // 4
        slanted[row, shift : shift + wide] = ink
    look = looks_like(Glyph(0, slanted.shape[1], slanted, frozenset({1})), "1I")
    assert (look == "1") is (sign == "1")


@pytest.mark.parametrize("sign", "zZcCxX")
def test_a_letter_and_its_capital_are_told_apart_by_their_height_beside_a_digit(sign: str) -> None:
    word, signs = read_alone(f"{sign}40", 0)
    assert looks_like(signs[0], sign + sign.swapcase(), digit_height(signs, word, 0)) == sign


def read_alone(text: str, place: int, rival: str = "") -> tuple[list[Character], list[Glyph | None]]:
    """A word that was read as it is printed, with a strong rival at one place, and its ink."""
    crop, middles = drawn(text)
    word = [Character(one, middles[n], 0.99) for n, one in enumerate(text)]
    word[place] = Character(text[place], middles[place], 0.8, rival, 0.19)
    return word, glyphs(word, crop)


@pytest.mark.parametrize(("text", "rival"), [("O40.2", "0"), ("I48.1", "1"), ("0.25", "O"), ("Z29.1", "z")])
def test_a_rival_that_the_ink_rules_out_is_no_doubt(text: str, rival: str) -> None:
    word, signs = read_alone(text, 0, rival)
    read = settled(word, signs, HEIGHT)
    again = [Character(one, 0.5, 0.99) for one in text]
    assert read.text == text
    assert 1 - confirmed(read, again).confidence < calibration().doubtful


def test_a_second_look_that_differs_by_signs_that_look_alike_says_that_the_others_are_right() -> None:
    word, signs = read_alone("I39.65", 3, "9")
    read = settled(word, signs, HEIGHT)
    same, alike, other = (
        confirmed(read, [Character(one, 0.5, 0.99) for one in text]).wrong
        for text in ("I39.65", "139.65", "I39.95")
    )
    assert same < other
    assert alike < other


@pytest.mark.parametrize("word", [slice(0, 3), slice(4, 8), slice(9, 10)])
def test_a_word_is_cut_out_without_its_neighbours(word: slice) -> None:
    text = "all Cell 1"
    crop, middles = drawn(text)
    line = [Character(one, -1.0 if one == " " else middles[n], 1.0) for n, one in enumerate(text)]
    part = enlarged(line, [None] * len(line), word, crop)
    alone, _ = drawn(text[word])
    assert runs_of_ink(part) == runs_of_ink(alone)


def runs_of_ink(crop: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    """How many pieces of ink stand side by side."""
    return int((np.diff(line_ink(crop).any(axis=0).astype(int), prepend=0) == 1).sum())


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("O43.0", "043.0"),
        ("I35", "135"),
        ("110", "I10"),
        ("mmol/l", "mmo1/l"),
        ("U/l", "U/I"),
        ("HbA1c", "HbAlc"),
        ("SpO2", "Sp02"),
    ],
)
def test_a_word_that_pixels_and_shape_know_better_is_corrected(printed: str, read: str) -> None:
    rival = next(true for true, one in zip(printed, read, strict=True) if true != one)
    found = read_as(printed, read, 0.8, rival, 0.2)
    assert (found.text, found.other) == (printed, read)


@pytest.mark.parametrize("word", ["110", "I10", "10.5", "HbA1c", "mmol/l", "2026-11-26", "O43.0", "850"])
def test_what_is_right_stays_and_is_sure(word: str) -> None:
    found = read_as(word, word)
    assert found.text == word
    assert found.confidence > 0.9


def test_what_the_pixels_speak_against_is_not_corrected() -> None:
    """A room that is called `043.0` after all."""
    assert read_as("043.0", "043.0").text == "043.0"


@pytest.mark.parametrize(("sign", "rival"), [("I", "l"), ("1", "l"), ("9", "g")])
def test_a_sign_alone_is_no_unit_that_looks_like_it(sign: str, rival: str) -> None:
    crop, middles = drawn(sign)
    word = [Character(sign, middles[0], 0.55, rival, 0.45)]
    read = settled(word, glyphs(word, crop), HEIGHT)
    assert (read.text, read.other) == (sign, None)


def test_a_word_with_a_strong_rival_is_less_sure_than_one_without() -> None:
    unsure = read_as("A7", "A1", 0.5, "7", 0.5)
    assert unsure.confidence < read_as("A1", "A1").confidence
