"""Tables are drawn with their exact cells, and given to the layout as pieces of text where they stand."""

import random

import numpy as np
import pytest

from pecia_schemas.blocks import BlockKind, Box, DoubtReason, Line, Table
from tests.shared.drawn_tables import Cells, Sheet, draw, plain

NAMES = ("Haemoglobin", "Leucocytes", "Sodium", "Potassium", "Creatinine", "Ferritin", "Platelets", "Glucose")
WORDS = (
    *("fasting", "venous blood", "repeat in a week", "see comment"),
    *("slightly raised", "normal", "after meal"),
)


def random_table(rng: random.Random) -> tuple[Cells, list[int]]:
    """A table of results: names, numbers some of which are missing, notes of up to three lines."""
    columns = rng.randint(3, 6)
    cells: Cells = {(0, column): (f"Head {column}", 1, 1) for column in range(columns)}
    for row in range(1, rng.randint(4, 11)):
        cells[row, 0] = (rng.choice(NAMES), 1, 1)
        for column in range(1, columns - 1):
            cells[row, column] = (f"{rng.uniform(0, 900):.1f}" if rng.random() < 0.8 else "", 1, 1)
        cells[row, columns - 1] = ("\n".join(rng.sample(WORDS, rng.choice((0, 1, 1, 2, 3)))), 1, 1)
    return cells, [220, *[130] * (columns - 2), 260]


def right_cells(table: Table, truth: Cells) -> float:
    found = {(cell.row, cell.column): (cell.text, cell.row_span, cell.column_span) for cell in table.cells}
    return sum(found.get(place) == cell for place, cell in truth.items()) / len(truth)


@pytest.mark.parametrize("rules", ["full", "rows", "head", "none"])
def test_the_cells_of_drawn_tables_are_right(rules: str) -> None:
    shares = []
    for seed in range(12):
        sheet, (cells, widths) = Sheet(), random_table(random.Random(seed))  # noqa: S311
        draw(sheet, cells, rules, widths)
        sheet.write("The values are those of the morning, taken before the first dose was given.", 80, 60)
        tables = sheet.tables()
        shares.append(right_cells(tables[0], cells) if len(tables) == 1 else 0.0)
    assert np.mean(shares) >= 0.97, shares


@pytest.mark.parametrize("rules", ["head", "none"])
def test_without_rules_between_rows_several_cells_may_have_several_lines(rules: str) -> None:
    notes = ("fasting\nvenous blood", "slightly raised\nafter a meal", "repeat in\na week")
    rows = [(name, f"{row}2.5", notes[row % 3], notes[row % 2]) for row, name in enumerate(NAMES[:6], 1)]
    cells, sheet = plain(("Analyte", "Result", "Note", "Comment"), *rows), Sheet()
    draw(sheet, cells, rules, [220, 180, 240, 240])

    [table] = sheet.tables()

    assert right_cells(table, cells) == 1


def test_spans_and_empty_cells_are_those_that_are_drawn() -> None:
    cells = plain(
        ("Parameter", "Morning", "", "Note"),
        ("", "Day 1", "Day 2"),
        ("Pulse", "72", "", "regular,\nno pause"),
    )
    del cells[0, 2], cells[1, 0]
    cells |= {(0, 0): ("Parameter", 2, 1), (0, 1): ("Morning", 1, 2), (0, 3): ("Note", 2, 1)}
    sheet = Sheet()
    draw(sheet, cells, "full", [200, 140, 140, 240])

    [table] = sheet.tables()

    assert (table.rows, table.columns) == (3, 4)
    assert right_cells(table, cells) == 1


def test_rows_without_lines_between_them_are_parted_where_columns_are_ruled() -> None:
    cells = plain(
        ("Head 0", "Head 1", "Head 2"), *((f"{row}.5", f"{row}1.5", f"{row}2.5") for row in range(1, 6))
    )
    sheet = Sheet()
    draw(sheet, cells, "head", [160, 160, 160])
    bottom = max(piece.box.bottom for piece in sheet.pieces) + 10
    for x in (80, 240, 400, 560):
        sheet.rule(x, 120, x, bottom)

    [table] = sheet.tables()

    assert right_cells(table, cells) == 1


def test_a_piece_that_runs_through_a_line_is_cut_between_its_words() -> None:
    sheet = Sheet()
    cells = plain(("", "", "Unit"), ("", "", "mmol/L"), ("Sodium", "139", ""))
    draw(sheet, cells, "full", [160, 160, 160])
    sheet.pieces.append(Line(text="Test      Result", box=Box(left=90, top=132, right=330, bottom=156)))
    [table] = sheet.tables()
    assert table.to_rows()[0] == ["Test", "Result", "Unit"]


def test_the_block_of_a_table_stands_in_the_order_of_the_page_and_holds_its_lines() -> None:
    sheet = Sheet()
    sheet.write("Results of the morning", 80, 40)
    draw(sheet, plain(("Sodium", "139"), ("TSH", "2.4")), "full", [200, 200])
    sheet.write("Please repeat in two weeks.", 80, 500)

    blocks = sheet.blocks()

    assert [block.text for block in blocks][0::2] == ["Results of the morning", "Please repeat in two weeks."]
    assert blocks[1].kind is BlockKind.TABLE
    assert blocks[1].text == "Sodium\t139\nTSH\t2.4"
    assert [line.text for line in blocks[1].lines] == ["Sodium", "139", "TSH", "2.4"]


def test_boxes_round_paragraphs_are_no_table() -> None:
    sheet = Sheet()
    for x, y in ((80, 100), (640, 100), (80, 500), (640, 500)):
        sheet.frame(x, y, x + 500, y + 360)
        for number in range(9):
            sheet.write("the wound at the wrist healed well and", x + 12, y + 12 + 36 * number)
    assert sheet.tables() == []


def test_a_grid_of_fields_stays_text_in_the_pages_order_and_has_its_cells_beside() -> None:
    sheet = Sheet()
    xs, ys = (80, 300, 520, 700, 900, 1150), (100, 200, 300, 400, 500)
    fields = [
        (0, 0, 3),
        (0, 3, 5),
        (1, 0, 1),
        (1, 1, 4),
        (1, 4, 5),
        (2, 0, 2),
        (2, 2, 5),
        (3, 0, 4),
        (3, 4, 5),
    ]
    for row, first, last in fields:
        sheet.frame(xs[first], ys[row], xs[last], ys[row + 1])
        sheet.write(f"Field {row}{first}", xs[first] + 10, ys[row] + 10)

    [block] = sheet.blocks()

    assert block.kind is BlockKind.TEXT
    assert block.text.split("\n")[0] == "Field 00 Field 03"
    assert block.table
    assert len([cell for cell in block.table.cells if cell.text]) == len(fields)


def test_fields_with_their_values_above_a_table_without_lines_are_no_part_of_it() -> None:
    sheet = Sheet()
    for top, first, second in (
        (60, "Patient: Maria Keller", "Born: 04.05.1961"),
        (90, "Record: 220093", "Ward: 4B"),
    ):
        sheet.write(first, 80, top)
        sheet.write(second, 560, top)
    rows = ((name, f"{row}.5", "g/L", "low") for row, name in enumerate(NAMES[:4], 1))
    cells = plain(("Test", "Result", "Unit", "Flag"), *rows)
    draw(sheet, cells, "none", [220, 140, 140, 140], top=110, pad=3)

    blocks = sheet.blocks()

    assert [block.kind for block in blocks] == [BlockKind.TEXT, BlockKind.TABLE]
    assert blocks[0].text == "Patient: Maria Keller Born: 04.05.1961\nRecord: 220093 Ward: 4B"
    assert right_cells(blocks[1].table, cells) == 1 if blocks[1].table else False


def test_rows_whose_columns_are_not_clear_are_a_table_with_a_doubt() -> None:
    rng = random.Random(3)  # noqa: S311
    sheet = Sheet()
    for row in range(8):
        x = 80 + rng.randint(0, 60)
        for _ in range(5):
            sheet.write(f"{rng.uniform(1, 99):.1f} mg", x, 100 + 40 * row)
            x += 110 + rng.randint(0, 120)

    found = sheet.layout()

    assert [(block.kind, block.table) for block in found.blocks] == [(BlockKind.TABLE, None)]
    assert len(found.blocks[0].lines) == 8
    [doubt] = found.doubts
    assert (doubt.reason, doubt.on_value) == (DoubtReason.TABLE_UNCLEAR, True)


@pytest.mark.parametrize(
    ("head", "values", "is_unclear"),
    [
        (("13.03. 21.03.", ""), ("5.2", "4.1 H"), True),
        (("03.03.2405.03.24", ""), ("5.2", "4.1"), True),
        (("Day 1 Day 2", ""), ("5.2", "4.1"), True),
        (("13.03.", "21.03."), ("5.2", "H 4.1"), True),
        (("Morning", "Noon"), ("5.2 H 4.1", ""), True),
        (("Morning", ""), ("5.2", "4.1"), True),
        (("13.03.", "21.03."), ("5.2 L", "4.1 H"), False),
        (("2019/20", "Year Ended December 31"), ("1 234 567", "4.1"), False),
        (("Dose", "Range"), ("120/80", "2.5 - 4.1"), False),
    ],
    ids=[
        "dates",
        "joined dates",
        "names",
        "flag before",
        "flag between",
        "no name",
        "flags",
        "years",
        "words",
    ],
)
def test_values_that_may_be_of_the_column_beside_theirs_are_in_doubt(
    head: tuple[str, str], values: tuple[str, str], is_unclear: bool
) -> None:
    cells = plain(("Name", *head), ("Sodium", *values), ("Potassium", "3.9", "4.4 L"), ("Urea", "12", "17"))
    sheet = Sheet()
    draw(sheet, cells, "full", [200, 320, 320])

    found = sheet.layout()

    assert [block.kind for block in found.blocks] == [BlockKind.TABLE]
    assert [doubt.reason for doubt in found.doubts] == [DoubtReason.TABLE_UNCLEAR] * is_unclear


def test_a_note_below_the_last_ruling_line_is_no_row_of_the_table() -> None:
    sheet = Sheet()
    rows = [
        ("Country", "Cases", "Rate"),
        *((name, "152", "4.1") for name in ("Austria", "Belgium", "Denmark")),
    ]
    for number, texts in enumerate((*rows, ("Notes",))):
        for left, text in zip((80, 420, 640), texts, strict=False):
            sheet.write(text, left, 120 + 34 * number)
    for top in (114, 148, 250):
        sheet.rule(76, top, 720, top)
    table, note = sheet.blocks()
    assert table.table
    assert table.table.rows == len(rows)
    assert note.text == "Notes"
