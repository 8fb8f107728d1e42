"""How much of a page was read, from its letters alone."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("cv2", reason="pecia[cpu] brings OpenCV")


from pecia_schemas.blocks import Box, DoubtReason, Line, Word, text_of
from pecia_workers.engines.cpu.page_reading import Doubtful, page_read
from pecia_workers.reading.coverage import Letters

DOUBTFUL = Doubtful(word=0.7, value=0.8)
LINE = "the patient was seen in clinic with cough and fever"


def sheet() -> Image.Image:
    return Image.new("RGB", (1240, 1754), "white")


def print_line(image: Image.Image, top: int, ink: int = 0, size: int = 26) -> None:
    ImageDraw.Draw(image).text((100, top), LINE, fill=(ink, ink, ink), font=ImageFont.load_default(size))


def two_lines() -> Image.Image:
    image = sheet()
    for top in (200, 600):
        print_line(image, top)
    return image


def letters(image: Image.Image) -> Letters:
    return Letters.of(np.array(image))


def piece(top: int, confidence: float = 1.0, text: str = "12.5") -> Line:
    box = Box(left=90, top=top, right=1000, bottom=top + 40)
    return Line(text=text, box=box, words=(Word(text=text, box=box, confidence=confidence),))


def test_faint_print_beside_strong_print_is_found() -> None:
    image = sheet()
    print_line(image, 200)
    both = len(letters(image))
    print_line(image, 600, ink=225)
    assert len(letters(image)) == pytest.approx(2 * both, abs=4)


def test_the_height_is_that_of_the_small_print() -> None:
    image = sheet()
    for top in range(200, 600, 60):
        print_line(image, top, size=40)
    for top in range(800, 1000, 30):
        print_line(image, top, size=20)
    small = sheet()
    print_line(small, 200, size=20)
    assert letters(image).small_height == pytest.approx(letters(small).small_height, abs=1)


def test_rules_dashes_fields_and_noise_are_no_letters() -> None:
    image = sheet()
    draw = ImageDraw.Draw(image)
    draw.line((100, 300, 1100, 300), fill="black", width=3)
    for left in range(100, 1100, 26):
        draw.rectangle((left, 500, left + 16, 505), fill="black")
        draw.rectangle((left, 700, left + 14, 714), fill="teal")
    grain = np.random.default_rng(0).normal(0, 10, (1754, 1240, 1))
    assert len(Letters.of((np.array(image) + grain).clip(0, 255).astype(np.uint8))) == 0


def test_the_letters_of_a_line_that_no_box_covers_are_told_as_one_row() -> None:
    image = two_lines()
    missed = letters(image).outside([np.array([(90, 190), (1000, 190), (1000, 240), (90, 240)], np.float32)])
    [row] = missed.rows()
    assert missed.share_of(letters(image)) == pytest.approx(0.5)
    assert 600 <= row.top < row.bottom <= 640


def test_a_page_of_which_a_line_was_not_read_has_a_doubt_where_it_stands() -> None:
    image = two_lines()
    page = page_read([piece(190)], np.array(image), letters(image), DOUBTFUL)
    [doubt] = page.doubts
    assert page.coverage == pytest.approx(0.5)
    assert doubt.reason is DoubtReason.UNCOVERED
    assert doubt.box
    assert 600 <= doubt.box.top < doubt.box.bottom <= 640
    assert page_read([], np.array(sheet()), letters(sheet()), DOUBTFUL).coverage is None


@pytest.mark.parametrize(
    ("text", "confidence", "doubts"),
    [("12.5", 0.79, [True]), ("12.5", 0.81, []), ("today", 0.69, [False]), ("today", 0.79, [])],
)
def test_a_word_that_the_engine_is_not_sure_of_is_a_doubt_a_value_sooner(
    text: str, confidence: float, doubts: list[bool]
) -> None:
    image = sheet()
    print_line(image, 200)
    page = page_read([piece(190, confidence, text)], np.array(image), letters(image), DOUBTFUL)
    assert [doubt.on_value for doubt in page.doubts] == doubts


def test_what_may_be_a_number_or_a_speck_is_a_doubt_and_no_text() -> None:
    image = sheet()
    print_line(image, 200)
    page = page_read(
        [piece(190)], np.array(image), letters(image), DOUBTFUL, left_out=[piece(500, 0.8, "11")]
    )
    [doubt] = page.doubts
    assert (doubt.text, doubt.on_value) == ("11", True)
    assert "11" not in text_of(page.blocks)


def test_a_number_alone_in_its_cell_is_told_apart_from_specks() -> None:
    image = sheet()
    print_line(image, 200)
    draw = ImageDraw.Draw(image)
    draw.text((300, 500), "14", fill="black", font=ImageFont.load_default(26))
    draw.ellipse((700, 500, 704, 504), fill="black")
    draw.rectangle((300, 800, 420, 900), fill="black")

    [alone] = letters(image).lone_rows()

    assert 300 <= alone.left < alone.right <= 335
    assert 500 <= alone.top < alone.bottom <= 530


def test_light_letters_on_a_small_dark_field_are_found() -> None:
    image = sheet()
    print_line(image, 200)
    before = letters(image)
    draw = ImageDraw.Draw(image)
    draw.rectangle((300, 500, 440, 536), fill="teal")
    draw.text((310, 504), "Friday", fill="white", font=ImageFont.load_default(26))
    after = letters(image)
    assert len(after) + len(after.lone) - len(before) - len(before.lone) >= 5


def test_the_holes_of_letters_are_no_letters_though_there_is_a_field() -> None:
    image = sheet()
    draw = ImageDraw.Draw(image)
    draw.text((100, 200), "obedpoqg " * 6, fill="black", font=ImageFont.load_default(40))
    draw.rectangle((300, 500, 440, 536), fill="teal")
    assert len(letters(image)) <= 48
