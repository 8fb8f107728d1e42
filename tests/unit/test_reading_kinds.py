import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from exact_pages import english_pages
from pecia.evaluation.metrics import plain
from pecia_schemas.blocks import BlockKind, Box, Line, Source
from pecia_workers.reading.layout import layout

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
    pieces = []
    for number, (text, top, size) in enumerate(
        (*lines, *((text, 500 + 32 * n, 22) for n, text in enumerate(PROSE)))
    ):
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
    pixels = np.asarray(page.image.convert("RGB"))
    blocks = layout(page.pieces, pixels, source=Source.LAYER).blocks
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
    assert (
        kinds(line("Table 2: values of the morning", 900))["Table 2: values of the morning"]
        is BlockKind.CAPTION
    )
