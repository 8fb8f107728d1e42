from __future__ import annotations

import numpy as np
import pytest

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


def test_large_print_is_a_title_or_a_heading_and_what_follows_is_text() -> None:
    found = kinds(line("Discharge letter", 100, 48), line("Further course", 462, 34))

    assert list(found.values()) == [BlockKind.TITLE, BlockKind.HEADING, BlockKind.TEXT]


def test_lines_with_bullets_or_numbers_are_a_list() -> None:
    items = ("• Ramipril in the morning", "• Ferrous at night", "3. Rest")
    found = kinds(*(line(text, 900 + 32 * number) for number, text in enumerate(items)))

    assert found["\n".join(items)] is BlockKind.LIST


def test_what_begins_as_a_caption_does_is_a_caption() -> None:
    assert (
        kinds(line("Table 2: values of the morning", 900))["Table 2: values of the morning"]
        is BlockKind.CAPTION
    )
