"""Lines are drawn with spaces, and recognised without some of them."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("cv2", reason="pecia[cpu] brings OpenCV")

from pecia_workers.reading.characters import Character, text_of_characters, with_lost_spaces

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


@pytest.mark.parametrize(
    "text",
    [
        "received by the 1st of 11 patients, i.e. 11.1 % (all ill)",
        "Tel: 01-117 171, M.D.I.",
        "5mg",
        "ward 4B",
        "III",
        "7",
    ],
)
def test_no_word_is_torn_apart(text: str) -> None:
    assert respaced(text, text) == text


def test_figures_are_not_parted_for_a_gap_nor_a_word_for_a_character_seen_beside_its_place() -> None:
    assert respaced("the 12 34 of it", "the 1234 of it") == "the 1234 of it"
    assert respaced("no pause", "no pause", off=-9) == "no pause"


def test_chinese_is_written_without_spaces() -> None:
    line = [Character("如", 0.2, 1.0), Character("、", 0.3, 1.0), Character("气", 0.9, 1.0)]
    assert with_lost_spaces(line, np.full((40, 200, 3), 255, np.uint8)) == line
