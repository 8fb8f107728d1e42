from __future__ import annotations

from pecia_schemas.blocks import Box, Line, mean_confidence
from pecia_workers.engines.reading_order import in_reading_order


def piece(text: str, left: int, top: int, right: int, confidence: float = 1.0) -> Line:
    return Line(text=text, box=Box(left=left, top=top, right=right, bottom=top + 30), confidence=confidence)


def texts(*pieces: Line) -> list[str]:
    return [line.text for line in in_reading_order(pieces)]


def test_lines_are_read_from_top_to_bottom_whatever_order_they_were_found_in() -> None:
    assert texts(piece("second", 100, 150, 400), piece("first", 100, 100, 400)) == ["first", "second"]


def test_cells_of_a_row_become_one_line_from_left_to_right() -> None:
    cells = (
        piece("12.0 - 16.0", 700, 102, 830),
        piece("Haemoglobin", 100, 98, 270),
        piece("13.2", 310, 104, 370),
    )

    assert texts(*cells) == ["Haemoglobin 13.2 12.0 - 16.0"]


def test_a_joined_line_covers_its_cells_and_weighs_their_confidence_by_length() -> None:
    [line] = in_reading_order([piece("abc", 100, 100, 150, 1.0), piece("d", 300, 104, 350, 0.6)])

    assert line.box == Box(left=100, top=100, right=350, bottom=134)
    assert line.confidence == (3 * 1.0 + 1 * 0.6) / 4


def test_columns_of_prose_are_read_one_after_the_other() -> None:
    left = [piece(f"left {n}", 100, 200 + 40 * n, 580 - 10 * (n % 3)) for n in range(6)]
    right = [piece(f"right {n}", 640, 202 + 40 * n, 1130 - 10 * (n % 3)) for n in range(6)]
    heading, footer = piece("heading", 100, 100, 1130), piece("footer", 100, 600, 1130)

    order = texts(footer, *[p for pair in zip(left, right, strict=True) for p in pair], heading)

    assert order == ["heading", *(f"left {n}" for n in range(6)), *(f"right {n}" for n in range(6)), "footer"]


def test_a_table_is_read_row_by_row_though_its_columns_are_clear() -> None:
    rows = [
        [piece(f"name {n}", 100, 200 + 40 * n, 240), piece(f"value {n}", 640, 200 + 40 * n, 700)]
        for n in range(8)
    ]
    wide = piece("a rather long name", 100, 160, 500)

    order = texts(wide, *(cell for row in rows for cell in row))

    assert order == ["a rather long name", *(f"name {n} value {n}" for n in range(8))]


def test_nothing_found_is_nothing_to_read() -> None:
    assert in_reading_order([]) == ()
    assert mean_confidence([]) is None
