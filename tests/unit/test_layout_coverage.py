"""How much of a page was read, from its letters alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("cv2", reason="pecia[cpu] brings OpenCV")


from pecia_schemas.blocks import Box, DoubtReason, Line, Source, Word, text_of
from pecia_workers.engines.cpu.ocr_engine import PageRead, page_read
from pecia_workers.layout.blocks import layout
from pecia_workers.layout.coverage import Letters

DOUBTFUL = 0.75
LINE = "the patient was seen in clinic with cough and fever"


def sheet(*lines: tuple[int, int], size: int = 26) -> Image.Image:
    """Return a page with a line of print at each height, in an ink of its own."""
    image = Image.new("RGB", (1240, 1754), "white")
    for top, ink in lines:
        font = ImageFont.load_default(size)
        ImageDraw.Draw(image).text((100, top), LINE, fill=(ink, ink, ink), font=font)
    return image


ONE_LINE, TWO_LINES = [(200, 0)], [(200, 0), (600, 0)]


def letters(image: Image.Image) -> Letters:
    return Letters.of(np.array(image))


def read(pieces: list[Line], image: Image.Image, *left_out: Line) -> PageRead:
    found = layout(pieces, np.array(image), source=Source.OCR)
    all_letters = letters(image)
    beneath = all_letters.beneath(np.array(image))
    return page_read(found, pieces, all_letters, DOUBTFUL, beneath=beneath, left_out=left_out, others={})


def piece(top: int, confidence: float = 1.0, text: str = "12.5") -> Line:
    box = Box(left=90, top=top, right=1000, bottom=top + 40)
    words = (Word(text=text, box=box, confidence=confidence), Word(text=LINE, box=box))
    return Line(text=f"{text} {LINE}", box=box, words=words)


def test_faint_print_beside_strong_print_is_found() -> None:
    strong, faint = sheet(*ONE_LINE), sheet(*ONE_LINE, (600, 225))
    assert len(letters(faint)) == pytest.approx(2 * len(letters(strong)), abs=4)


def test_all_ink_but_rules_and_specks_is_within_known_words_or_beside_them() -> None:
    """A white number on a small field is no letter, and may be text."""
    known = [Box(left=90, top=195, right=1000, bottom=240)]

    def beside(image: Image.Image) -> int:
        return len(Letters.or_other_ink(np.array(image)).beside(known))

    image = sheet(*ONE_LINE)
    draw = ImageDraw.Draw(image)
    draw.line([(80, 250), (1100, 250)], fill="black", width=2)
    draw.point([(600, 700), (900, 900)], fill="black")
    assert letters(image)
    assert beside(image) == 0
    assert beside(sheet(*TWO_LINES)) > 0
    draw.rectangle((700, 600, 750, 665), fill=(190, 145, 40))
    draw.text((715, 630), "13", fill="white", font=ImageFont.load_default(26))
    assert len(letters(image).beside(known)) == 0
    assert beside(image) > 0


def test_the_height_is_that_of_the_small_print() -> None:
    image = sheet(*((top, 0) for top in range(200, 600, 60)), size=40)
    small = sheet(*((top, 0) for top in range(800, 1000, 30)), size=20)
    image.paste(small.crop((0, 700, 1240, 1754)), (0, 700))
    alone = letters(sheet(*ONE_LINE, size=20)).small_height
    assert letters(image).small_height == pytest.approx(alone, abs=1)


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
    image = sheet(*TWO_LINES)
    missed = letters(image).outside([np.array([(90, 190), (1000, 190), (1000, 240), (90, 240)], np.float32)])
    [row] = missed.rows()
    assert missed.share_of(letters(image)) == pytest.approx(0.5)
    assert 600 <= row.top < row.bottom <= 640


def test_a_page_of_which_a_line_was_not_read_has_a_doubt_where_it_stands() -> None:
    page = read([piece(190)], sheet(*TWO_LINES))
    [doubt] = page.doubts
    assert page.coverage == pytest.approx(0.5)
    assert doubt.reason is DoubtReason.UNCOVERED
    assert doubt.box
    assert 600 <= doubt.box.top < doubt.box.bottom <= 640
    assert read([], sheet()).coverage is None


@pytest.mark.parametrize("text", ["12.5", "today"])
def test_a_word_that_is_likely_wrong_is_a_doubt_with_its_probability_a_value_or_not(text: str) -> None:
    page = read([piece(190, 0.74, text)], sheet(*ONE_LINE))
    [doubt] = page.doubts
    assert (doubt.text, doubt.on_value) == (text, text != "today")
    assert doubt.probability == pytest.approx(0.26)
    assert read([piece(190, 0.76, text)], sheet(*ONE_LINE)).doubts == ()


def test_a_doubt_has_the_other_reading_and_is_on_a_value_if_that_is_one() -> None:
    unsure = piece(190, 0.6, "IO")
    found = layout([unsure], np.array(sheet(*ONE_LINE)), source=Source.OCR)
    all_letters = letters(sheet(*ONE_LINE))
    beneath = all_letters.beneath(np.array(sheet(*ONE_LINE)))
    other: dict[Box, str] = {}
    other[unsure.box] = "10"
    page = page_read(found, [unsure], all_letters, DOUBTFUL, beneath=beneath, others=other)
    assert [(doubt.text, doubt.other, doubt.on_value) for doubt in page.doubts] == [("IO", "10", True)]


def test_what_may_be_a_number_or_a_speck_is_a_doubt_and_no_text() -> None:
    speck = Line(text="11", box=Box(left=90, top=500, right=120, bottom=540), confidence=0.8)
    page = read([piece(190)], sheet(*ONE_LINE), speck)
    [doubt] = page.doubts
    assert (doubt.text, doubt.on_value) == ("11", True)
    assert "11" not in text_of(page.blocks)


def test_a_number_alone_in_its_cell_is_told_apart_from_specks() -> None:
    image = sheet(*ONE_LINE)
    draw = ImageDraw.Draw(image)
    draw.text((300, 500), "14", fill="black", font=ImageFont.load_default(26))
    draw.ellipse((700, 500, 704, 504), fill="black")
    draw.rectangle((300, 800, 420, 900), fill="black")

    [alone] = letters(image).lone_rows()

    assert 300 <= alone.left < alone.right <= 335
    assert 500 <= alone.top < alone.bottom <= 530


def test_light_letters_on_a_small_dark_field_are_found() -> None:
    image = sheet(*ONE_LINE)
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


def test_a_text_that_has_no_room_for_the_letters_in_its_box_has_not_read_them() -> None:
    box = Box(left=90, top=190, right=1000, bottom=240)
    image = sheet(*TWO_LINES)
    whole, short = Line(text=LINE, box=box), Line(text="stamp", box=box)
    tall = Line(text=LINE.upper(), box=Box(left=90, top=100, right=1000, bottom=340))
    assert len(letters(image).unread([whole])) == pytest.approx(len(letters(image)) / 2, abs=1)
    for piece in (short, tall):
        assert len(letters(image).unread([piece])) == len(letters(image))
        assert read([piece], image).coverage == 0


VALUES = ["140 mmol/l", "4.2 mmol/l", "87 umol/l", "5.46 mmol/l", "141 g/l"]


def values(size: int) -> tuple[Image.Image, list[Line]]:
    """Return a page with a table of values, and its text."""
    image, font = Image.new("RGB", (1240, 900), "white"), ImageFont.load_default(size)
    pieces = []
    for number, value in enumerate(VALUES):
        for left, text in ((100, "Serum concentration"), (460, value)):
            top = 200 + 2 * size * number
            ImageDraw.Draw(image).text((left, top), text, fill="black", font=font)
            right = left + round(font.getlength(text))
            pieces.append(
                Line(text=text, box=Box(left=left, top=top, right=right, bottom=top + round(1.3 * size)))
            )
    return image, pieces


@given(
    size=st.integers(20, 32),
    ink=st.sampled_from([(200, 30, 30), (30, 60, 190), (20, 130, 60), (128, 128, 128), (160, 60, 160)]),
    strength=st.floats(0.5, 1.0),
    angle=st.integers(-40, 40),
    word=st.sampled_from(["COPY", "PAID", "CONFIDENTIAL", "VOID"]),
    grain=st.sampled_from([0, 5]),
)
def test_values_under_a_stamp_are_read_or_a_doubt_with_their_box(  # noqa: PLR0917  what stamps differ in
    size: int, ink: tuple[int, int, int], strength: float, angle: int, word: str, grain: int
) -> None:
    image, pieces = values(size)
    font = ImageFont.load_default(3 * size)
    stamp = Image.new("L", (round(font.getlength(word)) + 2 * size, 5 * size), 0)
    draw = ImageDraw.Draw(stamp)
    draw.rectangle((2, 2, stamp.width - 3, stamp.height - 3), outline=255, width=5)
    draw.text((size, size // 2), word, fill=255, font=font)
    stamp = stamp.rotate(angle, expand=True).point([round(level * strength) for level in range(256)])
    at = (480 - stamp.width // 2, 200 + 5 * size - stamp.height // 2)
    image.paste(ink, (at[0], at[1]), stamp)
    noise = np.random.default_rng(size).normal(0, grain, np.array(image).shape)
    image = Image.fromarray((np.array(image) + noise).clip(0, 255).astype(np.uint8))
    stamped = Line(
        text=word, box=Box(left=at[0], top=at[1], right=at[0] + stamp.width, bottom=at[1] + stamp.height)
    )

    lost = read([stamped, *pieces[::2]], image)

    boxes = [doubt.box for doubt in lost.doubts if doubt.reason is DoubtReason.UNCOVERED]
    assert any(box and box.left >= 440 and 190 < box.top < 200 + 10 * size for box in boxes)
    assert lost.coverage is not None
    assert lost.coverage < 1
    whole = read([stamped, *pieces], image)
    assert not [doubt for doubt in whole.doubts if doubt.reason is DoubtReason.UNCOVERED]


@pytest.mark.parametrize("ground", ["white", "lightyellow", "lightgrey", "lightblue"])
def test_no_letter_of_a_page_without_a_stamp_is_under_one(ground: str) -> None:
    image = sheet(*TWO_LINES)
    draw = ImageDraw.Draw(image)
    draw.rectangle((80, 380, 1100, 560), fill=ground)
    draw.text((100, 400), LINE, fill="black", font=ImageFont.load_default(26))
    draw.text((100, 700), LINE, fill="crimson", font=ImageFont.load_default(26))
    draw.text((100, 900), "Report", fill="navy", font=ImageFont.load_default(90))
    assert len(letters(image).beneath(np.array(image))) == 0
