"""Raised signs are drawn beside and inside numbers, and put into lines as they were recognised."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.reading.characters import Character, Raised, as_raised, place_of, raised_signs


@pytest.mark.parametrize(
    ("before", "text", "after", "raised"),
    [
        ("RBC 3.60 x10", "6", "/L", "⁶"),
        ("WBC 5.1 × 10", "9", "", "⁹"),  # noqa: RUF001  the sign of multiplication
        ("10", "9", "/L", "⁹"),
        ("about 10", "-12", " mol", "⁻¹²"),
        ("32 kg/m", "2", ", obese", "²"),
        ("25 cm", "3", "", "³"),
    ],
)
def test_exponents_of_ten_and_of_lengths_are_raised(before: str, text: str, after: str, raised: str) -> None:
    assert as_raised(text, before, after) == raised


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        *(("95", "1", "657010"), ("RM", "5", "1.50"), ("Sa", "1", "les"), ("K", "1", "L.")),
        *(("INVOICE NO:180", "7", "8/103"), ("2 x 10", "1", ".50"), ("2 x 10", "1", "5"), ("210", "9", "/L")),
        *(("10", "1", "/12/2018"), ("10", "2", " boxes"), ("from", "2", ""), ("5 m", "2", "nd")),
        *(("5 m", "7", ""), ("x10", "0", "")),
    ],
)
def test_other_numbers_and_words_keep_what_was_recognised(before: str, text: str, after: str) -> None:
    assert as_raised(text, before, after) is None


@pytest.mark.parametrize(("text", "base"), [("x10", "x10"), ("RM5", None), ("Sa", None), ("1.73m", "1.73m")])
def test_only_what_has_exponents_has_a_place_for_one(text: str, base: str | None) -> None:
    line = [Character(one, 0.1 * n, 1) for n, one in enumerate(text)]
    sign = Raised(
        start=0.1 * len(text), end=0.1 * len(text) + 0.05, margin=0.01, picture=np.zeros((1, 1, 3), np.uint8)
    )
    assert place_of(sign, line) == (base and slice(len(base), len(base)))


def test_a_ring_that_was_read_for_a_raised_nine_gives_way_to_it() -> None:
    line = [Character(one, 0.1 * n, 1) for n, one in enumerate("x10°/L")]
    sign = Raised(start=0.27, end=0.33, margin=0.01, picture=np.zeros((1, 1, 3), np.uint8))
    assert place_of(sign, line) == slice(3, 4)


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
