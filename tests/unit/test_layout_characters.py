"""Lines as they were recognised, character by character: how sure, which spaces were lost, which signs are raised."""

from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.layout.characters import (
    Character,
    Raised,
    agreed,
    as_raised,
    place_of,
    raised_signs,
    sureness_of,
    text_of_characters,
    with_lost_spaces,
    words_and_spaces,
)


def line(*words: tuple[str, float]) -> list[Character]:
    """Words, each with the confidence of its last letter; a space between them."""
    found: list[Character] = []
    for text, confidence in words:
        if found:
            found.append(Character(" ", -1.0, 1.0))
        found += [Character(one, 0.0, 1.0) for one in text[:-1]] + [Character(text[-1], 0.0, confidence)]
    return found


def test_a_word_is_as_sure_as_its_weakest_letter_or_digit_or_sign_between_them() -> None:
    assert sureness_of(line(("1.5", 0.6))) == 0.6
    assert sureness_of([Character("2", 0, 1.0), Character(",", 0, 0.4), Character("8", 0, 1.0)]) == 0.4
    assert sureness_of(line(("-5", 0.9))[:1] + line(("x", 0.95))) == 0.95


@pytest.mark.parametrize("around", ["fee,", "(x)", "no_", "“a”"])
def test_punctuation_at_the_ends_of_a_word_says_nothing_of_its_sureness_nor_does_a_space(around: str) -> None:
    assert sureness_of([Character(one, 0.0, 0.9 if one.isalpha() else 0.1) for one in around]) == 0.9
    assert sureness_of([Character(" ", -1.0, 0.3)]) == 1.0


@pytest.mark.parametrize("again", ["fee", "fee!"])
def test_of_two_readings_of_a_word_the_surer_stands(again: str) -> None:
    found = agreed(line(("late", 1.0), ("fee", 0.6)), line(("late", 0.7), (again, 0.98)))
    words = [word for word in words_and_spaces(found) if not word[0].text.isspace()]
    assert [text_of_characters(word) for word in words] == ["late", again]
    assert [sureness_of(word) for word in words] == [1.0, 0.98 if again == "fee" else 1.0]


FIRST = line(("12.50", 0.7), ("12.50", 1.0), ("RM", 0.6))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FIRST, line(("12.5012.50", 0.99), ("RM", 0.5))),
        (FIRST, line(("12.5", 0.99), ("0", 0.99), ("12.50", 0.99), ("RM", 0.5))),
        (FIRST, line(("RM", 0.5))),
        (line(("Yes_or", 0.7), ("No_", 1.0)), line(("Yes", 0.99), ("or", 0.99), ("No", 0.99))),
    ],
    ids=["joined", "parted and joined", "lost", "parted"],
)
def test_a_second_reading_that_joins_or_parts_words_or_loses_them_changes_nothing(
    first: list[Character], second: list[Character]
) -> None:
    assert agreed(first, second) == first


needs_opencv = pytest.mark.skipif(not find_spec("cv2"), reason="pecia[cpu] brings OpenCV")

SIZE, LEFT = 40, 12


def respaced(drawn: str, recognised: str, *, off: float = 0.0) -> str:
    """What becomes of a line that was recognised with other spaces than it was drawn with.

    `off`: how far right of its place each character was seen, in pixels.
    """
    font = ImageFont.load_default(SIZE)
    width = round(font.getlength(drawn)) + 2 * LEFT
    image = Image.new("RGB", (width, 56), "white")
    ImageDraw.Draw(image).text((LEFT, 4), drawn, fill="black", font=font)
    middles = [
        (LEFT + (font.getlength(drawn[:n]) + font.getlength(drawn[: n + 1])) / 2 + off) / width
        for n, one in enumerate(drawn)
        if one != " "
    ]
    places = iter(middles)
    line = [Character(one, -1.0 if one == " " else next(places), 1.0) for one in recognised]
    return text_of_characters(with_lost_spaces(line, np.array(image)))


@needs_opencv
@pytest.mark.parametrize(
    ("drawn", "recognised"),
    [
        ("to ensure all information is", "to ensure allinformation is"),
        ("2 Small cones at 3 each", "2Small cones at 3 each"),
        ("Total (incl GST) is", "Total(incl GST) is"),
        ("5 mg", "5mg"),
        ("11.7 mg/dL", "11.7mg/dL"),
    ],
)
def test_a_space_that_recognition_lost_is_found_in_the_ink(drawn: str, recognised: str) -> None:
    assert respaced(drawn, recognised) == drawn


@needs_opencv
@pytest.mark.parametrize(
    "text",
    [
        "received by the 1st of 11 patients, i.e. 11.1 % (all ill)",
        *("Tel: 01-117 171, M.D.I.", "5mg", "ward 4B", "III", "7"),
    ],
)
def test_no_word_is_torn_apart(text: str) -> None:
    assert respaced(text, text) == text


@needs_opencv
def test_figures_are_not_parted_for_a_gap_nor_a_word_for_a_character_seen_beside_its_place() -> None:
    assert respaced("the 12 34 of it", "the 1234 of it") == "the 1234 of it"
    assert respaced("no pause", "no pause", off=-9) == "no pause"


@needs_opencv
def test_chinese_is_written_without_spaces() -> None:
    line = [Character("如", 0.2, 1.0), Character("、", 0.3, 1.0), Character("气", 0.9, 1.0)]
    assert with_lost_spaces(line, np.full((40, 200, 3), 255, np.uint8)) == line


@pytest.mark.parametrize(
    ("before", "text", "after", "raised"),
    [
        ("RBC 3.60 x10", "6", "/L", "⁶"),
        ("WBC 5.1 × 10", "9", "", "⁹"),  # noqa: RUF001  the sign of multiplication
        ("10", "9", "/L", "⁹"),
        ("about 10", "-12", " mol", "⁻¹²"),
        ("32 kg/m", "2", ", obese", "²"),
        ("25 cm", "3", "", "³"),
        *(("5", "1", "", "¹"), ("56.4", "1", " mIU/l", "¹"), ("(see", "2", ")", "²")),
    ],
)
def test_exponents_of_ten_and_of_lengths_are_raised_and_signs_of_footnotes(
    before: str, text: str, after: str, raised: str
) -> None:
    assert as_raised(text, before, after) == raised


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        *(("95", "1", "657010"), ("RM", "5", "1.50"), ("Sa", "1", "les"), ("x10", "0", "")),
        *(("INVOICE NO:180", "7", "8/103"), ("2 x 10", "1", ".50"), ("2 x 10", "1", "5"), ("210", "9", "/L")),
        *(("10", "1", "/12/2018"), ("5 m", "2", "nd"), ("36", "0", "C")),
        *(("0.77", "1", "¹ g/l"), ("haemolytic²", "2", "")),  # recognised beside its ink
    ],
)
def test_other_numbers_and_words_keep_what_was_recognised(before: str, text: str, after: str) -> None:
    assert as_raised(text, before, after) is None


@pytest.mark.parametrize(
    ("text", "at", "place"),
    [
        *(("x10", 3, slice(3, 3)), ("1.73m", 5, slice(5, 5)), ("RM5", 3, slice(3, 3)), (": ", 2, None)),
        ("x10°/L", 3, slice(3, 4)),  # a ring that was read for a raised nine gives way to it
    ],
)
def test_only_numbers_words_and_units_take_a_raised_sign(text: str, at: int, place: slice | None) -> None:
    line = [Character(one, 0.1 * n, 1) for n, one in enumerate(text)]
    nothing = np.zeros((1, 1, 3), np.uint8)
    sign = Raised(start=0.1 * at - 0.03, end=0.1 * at + 0.03, margin=0.01, picture=nothing)
    assert place_of(sign, line) == place


def crop(text: str, raised: str = "") -> Image.Image:
    image = Image.new("RGB", (260, 44), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(32)
    draw.text((10, 3), text, fill="black", font=font)
    draw.text((11 + font.getlength(text), 1), raised, fill="black", font=ImageFont.load_default(19))
    return image


def test_a_small_number_above_the_line_is_a_raised_sign() -> None:
    [sign] = raised_signs(np.array(crop("3.6 x10", "6")))
    assert 0.4 < sign.start < sign.end < 0.75


def test_the_upper_part_of_a_broken_letter_is_none() -> None:
    broken = crop("3.6 x105")
    ImageDraw.Draw(broken).line(
        (10 + ImageFont.load_default(32).getlength("3.6 x10"), 22, 260, 22), fill="white", width=3
    )
    assert list(raised_signs(np.array(broken))) == []
