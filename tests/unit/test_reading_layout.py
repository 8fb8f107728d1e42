from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pecia_schemas.blocks import Box, DoubtReason, Line, Source, Word
from pecia_workers.reading.layout import layout

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
