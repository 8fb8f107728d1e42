"""Where pieces of text stand decides what they are: lines, blocks, kinds, values."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from pecia.evaluation.metrics import plain
from pecia_schemas.blocks import BlockKind, Box, DoubtReason, Line, Source, Word
from pecia_workers.layout.blocks import layout
from pecia_workers.layout.lines import is_value
from tests.shared.exact_pages import english_pages

WHITE = np.full((1000, 1400, 3), 255, dtype=np.uint8)


def piece(text: str, left: int, top: int, right: int, confidence: float | None = None) -> Line:
    box = Box(left=left, top=top, right=right, bottom=top + 30)
    return Line(text=text, box=box, confidence=confidence)


def beside(rows: Sequence[tuple[str, str]]) -> list[Line]:
    """Rows of two pieces each, side by side."""
    return [
        piece(text, x, 100 + 44 * number, x + 200)
        for number, row in enumerate(rows)
        for x, text in zip((100, 800), row, strict=True)
    ]


def texts(*pieces: Line) -> list[str]:
    return [block.text for block in layout(pieces, WHITE, source=Source.OCR).blocks]


def test_lines_are_read_from_top_to_bottom_whatever_order_they_were_found_in() -> None:
    assert texts(piece("second", 100, 150, 400), piece("first", 100, 100, 400)) == ["first\nsecond"]


def test_pieces_that_stand_side_by_side_become_one_line() -> None:
    row = (piece("Maria Keller", 300, 98, 470, 0.6), piece("Patient", 100, 104, 220, 1.0))
    [block] = layout(row, WHITE, source=Source.LAYER).blocks
    [line] = block.lines
    assert line.text == block.text == "Patient Maria Keller"
    assert line.box == block.box == Box(left=100, top=98, right=470, bottom=134)
    assert line.confidence == pytest.approx((7 * 1.0 + 12 * 0.6) / 19, abs=0.001)


def test_a_joined_line_keeps_every_word() -> None:
    box = Box(left=100, top=100, right=220, bottom=130)
    first = Line(text="Patient", box=box, words=(Word(text="Patient", box=box),))
    [block] = layout([first, piece("Maria", 300, 100, 470)], WHITE, source=Source.OCR).blocks
    assert [word.text for word in block.lines[0].words] == ["Patient", "Maria"]


def test_two_addresses_side_by_side_are_read_one_after_the_other() -> None:
    left = ["Dr. Helena Vogt", "Family practice", "Marktplatz 3", "79312 Emmendingen"]
    right = ["Phone 0761 55 210", "Fax 0761 55 219", "heart@uhc.example", "14.03.2026"]
    assert texts(*beside(list(zip(left, right, strict=True)))) == ["\n".join(left), "\n".join(right)]


def test_labels_beside_an_address_are_read_row_by_row() -> None:
    labels, values = ("Name", "Street", "City"), ("Anton Weiss", "Lindenweg 14", "79100 Freiburg")
    rows = [*zip(labels, values, strict=True), ("Phone", "0761 55 210")]
    assert texts(*beside(rows)) == ["\n".join(" ".join(row) for row in rows)]


def test_rows_that_may_be_two_blocks_side_by_side_are_a_doubt_unless_they_have_labels() -> None:
    rows = [
        ("Cardiology ward", "Dr. Anna Weiss"),
        ("Second floor", "Head physician"),
        ("East wing", "Medicine"),
    ]

    [doubt] = layout(beside(rows), WHITE, source=Source.OCR).doubts

    assert (doubt.reason, doubt.on_value) == (DoubtReason.ORDER_UNCLEAR, True)
    assert doubt.text == "\n".join(" ".join(row) for row in rows)
    labelled = [("Ward:", "Cardiology ward"), ("Physician:", "Dr. Anna Weiss"), ("Wing:", "East wing")]
    assert layout(beside(labelled), WHITE, source=Source.OCR).doubts == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 1300), st.integers(0, 900), st.integers(1, 900), st.integers(1, 100)),
        max_size=40,
    ),
    st.tuples(st.integers(90, 600), st.integers(40, 400)),
)
@settings(max_examples=60, deadline=None)
def test_every_piece_is_in_exactly_one_line_of_one_block(
    places: list[tuple[int, int, int, int]], pitches: tuple[int, int]
) -> None:
    pieces = [
        Line(text=f"p{number}", box=Box(left=x, top=y, right=x + w, bottom=y + h))
        for number, (x, y, w, h) in enumerate(places)
    ]
    ruled = WHITE.copy()
    ruled[100 : 802 : pitches[1], 100:1302] = ruled[100:802, 100 : 1302 : pitches[0]] = 0

    blocks = layout(pieces, ruled, source=Source.OCR).blocks

    written = [word for block in blocks for line in block.lines for word in line.text.split()]
    assert sorted(word for word in written if word[0] == "p") == sorted(piece.text for piece in pieces)


PAGE = np.full((1400, 1000, 3), 255, dtype=np.uint8)
PROSE = [f"the course was without complication {number}" for number in range(8)]


def line(text: str, top: int, height: int = 24, left: int = 100) -> Line:
    return Line(text=text, box=Box(left=left, top=top, right=left + 12 * len(text), bottom=top + height))


def kinds(*lines: Line) -> dict[str, BlockKind]:
    prose = [line(text, 500 + 32 * number) for number, text in enumerate(PROSE)]
    blocks = layout([*lines, *prose], PAGE, source=Source.LAYER).blocks
    return {block.text: block.kind for block in blocks}


@pytest.mark.parametrize("text", ["7", "- 12 -", "Page 3 of 9", "Seite 4/5", "xii"])
def test_a_number_alone_at_the_edge_is_the_pages(text: str) -> None:
    assert kinds(line(text, 1350))[text] is BlockKind.PAGE_NUMBER
    assert kinds(line(text, 900))[text] is BlockKind.TEXT


def test_small_print_apart_at_the_edges_is_header_and_footer() -> None:
    found = kinds(line("Annals of Cardiology 2026", 40), line("St. Anna Hospital, Lindenweg 14", 1350))
    assert list(found.values()) == [BlockKind.HEADER, BlockKind.TEXT, BlockKind.FOOTER]


def drawn(*lines: tuple[str, int, int], weight: int = 0) -> dict[str, BlockKind]:
    """Kinds of lines that are drawn at a height in letters of a size above prose; `weight`: of the first one."""
    image = Image.new("RGB", (1000, 1400), "white")
    pieces, prose = [], [(text, 500 + 32 * n, 22) for n, text in enumerate(PROSE)]
    for number, (text, top, size) in enumerate((*lines, *prose)):
        font = ImageFont.load_default(size)
        bold = 0 if number else weight
        ImageDraw.Draw(image).text((100, top), text, fill="black", font=font, stroke_width=bold)
        left, upper, right, lower = map(round, font.getbbox(text))
        box = Box(left=100 + left, top=top + upper, right=100 + right, bottom=top + lower)
        pieces.append(Line(text=text, box=box))
    blocks = layout(pieces, np.asarray(image), source=Source.OCR).blocks
    return {block.text: block.kind for block in blocks}


def test_large_print_is_a_title_or_a_heading_and_what_follows_is_text() -> None:
    found = drawn(("Discharge letter", 150, 46), ("Further course", 450, 30))
    assert list(found.values()) == [BlockKind.TITLE, BlockKind.HEADING, BlockKind.TEXT]


def test_bold_print_of_the_same_size_is_a_heading_and_so_are_a_few_words_above_prose() -> None:
    assert drawn(("Findings", 470, 22), weight=1)["Findings"] is BlockKind.HEADING
    assert drawn(("Further course", 450, 22))["Further course"] is BlockKind.HEADING
    assert drawn(("further course", 450, 22))["further course"] is BlockKind.TEXT


@pytest.mark.parametrize("text", ["Account: 98292881", "Total due 322.58", "It healed well."])
def test_a_bold_field_amount_or_sentence_is_no_heading(text: str) -> None:
    assert drawn((text, 450, 22), weight=1)[text] is BlockKind.TEXT


@pytest.mark.parametrize("name", [page.name for page in english_pages() if page.pieces])
def test_every_paragraph_title_list_table_and_stamp_is_a_block_of_its_kind(name: str) -> None:
    page = next(page for page in english_pages() if page.name == name)
    blocks = layout(page.pieces, np.asarray(page.image.convert("RGB")), source=Source.LAYER).blocks
    no_text = {BlockKind.TABLE, BlockKind.STAMP}
    found = [(block.kind, "" if block.kind in no_text else plain(block.text)) for block in blocks]
    assert found == [(kind, plain(text)) for kind, text in page.blocks]


def test_an_indented_line_one_after_a_line_that_ends_early_and_one_below_a_rule_begin_a_paragraph() -> None:
    lines = [line(text, 900 + 32 * number) for number, text in enumerate(PROSE)]
    plain_lines, ruled = lines.copy(), PAGE.copy()
    ruled[900 + 32 * 3 - 5 : 900 + 32 * 3 - 3, 100:600] = 0
    lines[3] = line("the wound at the wrist healed and scars", 996, left=130)
    lines[5] = line("which is the end.", 1060)

    blocks = layout(lines, PAGE, source=Source.LAYER).blocks
    parted = layout(plain_lines, ruled, source=Source.LAYER).blocks

    assert [len(block.lines) for block in blocks] == [3, 3, 2]
    assert [len(block.lines) for block in parted] == [3, 5]


def test_lines_with_bullets_or_numbers_are_a_list() -> None:
    items = ("• Ramipril in the morning", "• Ferrous at night", "3. Rest")
    found = kinds(*(line(text, 900 + 32 * number) for number, text in enumerate(items)))
    assert found["\n".join(items)] is BlockKind.LIST


def test_what_begins_as_a_caption_does_is_a_caption() -> None:
    text = "Table 2: values of the morning"
    assert kinds(line(text, 900))[text] is BlockKind.CAPTION


NUMBERS = ("12.5", "3.60", "x10", "140/90", "2026-11-22", "tablets(2)", "B12")


@pytest.mark.parametrize("word", [*NUMBERS, "mg/dL", "mmol/L", "µg", "mmHg", "%", "March", "RM"])
def test_numbers_units_doses_and_dates_are_values(word: str) -> None:
    assert is_value(word)


@pytest.mark.parametrize("word", ["patient", "was", "Clinic", "/", "-", "", "the"])
def test_prose_is_no_value(word: str) -> None:
    assert not is_value(word, "seen in the")


@pytest.mark.parametrize("before", ["Dr.", "Dear Mrs", "Name:", "seen by Dr. John", "환자:"])
def test_a_name_is_known_by_what_stands_before_it(before: str) -> None:
    assert is_value("Sampleton", before)
    assert not is_value("sampled", before)
