"""Tables as offices print them: few rules or none, colour instead, heads of several rows, labels of several lines.

They are drawn with their cells, and judged by the pairs of neighbouring cells that agree.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from pecia.evaluation.metrics import adjacency, in_place
from pecia_schemas.blocks import BlockKind, DoubtReason, Word
from tests.shared.drawn_tables import Cells, Sheet, plain, table_of

LEFT, TOP, PITCH, LINE = 80, 160, 34, 26
LABELS = (
    "Austria", "Belgium", "Czech Republic", "Denmark", "Estonia", "Finland", "Germany", "Hungary", "Ireland",
)  # fmt: skip
LONG = (
    ("Outpatient visits to", "hospitals and clinics"),
    ("Persons who need", "personal assistance"),
    ("Costs that are borne", "by private insurers"),
)
HEADS = ("Domestic", "Imported", "Unknown", "Cases", "Rate", "Total")
PROSE = (
    "The rates for other groups of age varied between these and were lower than",
    "in the year before, when fewer countries had reported their cases in time and",
    "the methods of the laboratories were still those of the previous decade alone.",
)
STYLES = (
    "none", "head", "booktabs", "box", "groups", "rows", "head_columns", "one_wall", "white", "zebra", "full",
)  # fmt: skip


def number(rng: random.Random) -> str:
    return rng.choice(
        (f"{rng.uniform(0, 100):.1f}", f"{rng.randint(1000, 99999):,}", str(rng.randint(0, 999)))
    )


@dataclass
class Drawing:
    """A table that is drawn row by row."""

    style: str
    xs: list[int]
    sheet: Sheet = field(default_factory=Sheet)
    cells: Cells = field(default_factory=dict)
    ys: list[float] = field(default_factory=lambda: [float(TOP)])

    def row(self, *texts: str, wide: int = 1, is_head: bool = False) -> None:
        """Draw a row; each text after the first spans so many columns, centred if these are several."""
        row = 1 + max((row for row, _ in self.cells), default=-1)
        top, deep = self.ys[-1], PITCH + LINE * max(text.count("\n") for text in texts)
        ground = {"white": ("#4472a8", "#a7bfde"), "zebra": ("#d9d9d9", "#efefef")}.get(self.style)
        if ground and (self.style == "white" or is_head or row % 2):
            self.sheet.fill(LEFT, top, self.xs[-1], top + deep - 1, colour=ground[not is_head])
        column = 0
        for text in texts:
            span = wide if column else 1
            self.cells[row, column] = (text, 1, span)
            for number, line in enumerate(text.split("\n") if text else []):
                left, right = self.xs[column] + 12, self.xs[column + span] - 14
                free = right - left - self.sheet.width(line)
                left += round(free / 2 if span > 1 else free) if column else 0
                colour = "white" if self.style == "white" and is_head else "black"
                self.sheet.write(line, left, top + 5 + LINE * number, colour)
            column += span
        if not is_head:
            self.ys.append(top + deep)
        else:
            self.ys[-1] = top + deep


def drawn(
    seed: int, style: str, *, empty: float = 0.0, long: bool = False, spans: bool = False, head: str = ""
) -> tuple[Sheet, Cells]:
    """Draw a table of numbers with a column of labels, a head of one row or two, and prose above and below it.

    `head`: what there is besides; `all` and `short` names of several columns above it, `units` and a `group` below it.
    """
    rng = random.Random(seed)  # noqa: S311
    columns = rng.choice((4, 6)) if spans or head else rng.randint(2, 5)
    width = rng.choice((110, 130, 150))
    drawing = Drawing(style, [LEFT, *(LEFT + 280 + width * n for n in range(columns + 1))])
    if spans:
        drawing.row("", *(f"Estimates of {2005 + 5 * n}" for n in range(columns // 2)), wide=2, is_head=True)
    if head == "all":
        drawing.row("", "Cases of the year", wide=columns, is_head=True)
    if head in ("all", "short"):
        drawing.row("", *("Men", "Women", "All")[: columns // 2], wide=2, is_head=True)
    drawing.row("Country", *(HEADS[(seed + n) % len(HEADS)] for n in range(columns)), is_head=True)
    if head == "units":
        drawing.row("", *(("(%)", "mmol/L", "(n)")[n % 3] for n in range(columns)), is_head=True)
    drawing.ys.insert(0, TOP)
    if head == "group":
        drawing.row("North", *[""] * columns)
    for _ in range(rng.randint(5, 12)):
        label = "\n".join(rng.choice(LONG)) if long and rng.random() < 0.3 else rng.choice(LABELS)
        drawing.row(label, *("" if rng.random() < empty else number(rng) for _ in range(columns)))
    rule(drawing.sheet, style, drawing.xs, drawing.ys)
    for line, text in enumerate(PROSE):
        drawing.sheet.write(text, LEFT, 30 + 28 * line)
        drawing.sheet.write(text, LEFT, drawing.ys[-1] + 40 + 28 * line)
    return drawing.sheet, drawing.cells


def rule(sheet: Sheet, style: str, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Draw the rules of a table: `ys` are its top, the end of its head, and the end of each row."""
    ends = xs[0], xs[-1]
    across = {
        "head": ys[:2],
        "booktabs": [ys[0], ys[1], ys[-1]],
        "box": [ys[0], ys[-1]],
        "groups": [ys[0], ys[1], *ys[4:-1:3], ys[-1]],
        "rows": ys,
        "head_columns": ys,
        "one_wall": [ys[0], ys[1], ys[-1]],
        "full": ys,
    }.get(style, [])
    for y in across:
        sheet.rule(ends[0], y, ends[1], y)
    down = {
        "box": [(x, ys[0], ys[-1]) for x in ends],
        "groups": [(x, ys[0], ys[-1]) for x in ends],
        "head_columns": [(x, ys[0], ys[1]) for x in xs] + [(x, ys[0], ys[-1]) for x in ends],
        "one_wall": [(xs[1], ys[0], ys[-1])],
        "full": [(x, ys[0], ys[-1]) for x in xs],
    }.get(style, [])
    for x, top, bottom in down:
        sheet.rule(x, top, x, bottom)
    if style == "white":
        for y in ys[1:-1]:
            sheet.rule(*(ends[0], y), *(ends[1], y), colour="white", width=3)
        for x in xs[1:-1]:
            sheet.rule(x, ys[0], x, ys[-1], colour="white", width=3)


def agreement(sheet: Sheet, cells: Cells) -> float:
    found = sheet.layout()
    tables = [block.table for block in found.blocks if block.table]
    return adjacency(tables, [table_of(cells)]).f1 or 0.0


@pytest.mark.parametrize("style", STYLES)
def test_the_neighbours_in_a_table_are_those_that_are_drawn(style: str) -> None:
    scores = [agreement(*drawn(seed, style)) for seed in range(8)]
    assert np.mean(scores) >= 0.97, scores


@pytest.mark.parametrize("style", STYLES)
def test_empty_cells_move_no_others(style: str) -> None:
    scores = [agreement(*drawn(seed, style, empty=0.25)) for seed in range(8)]
    assert np.mean(scores) >= 0.95, scores


@pytest.mark.parametrize("style", ["none", "booktabs", "head_columns", "groups", "white", "full"])
def test_a_label_of_two_lines_stands_beside_one_row_of_values(style: str) -> None:
    scores = [agreement(*drawn(seed, style, long=True)) for seed in range(8)]
    assert np.mean(scores) >= 0.95, scores


@pytest.mark.parametrize("style", ["none", "booktabs", "box", "one_wall"])
def test_a_head_of_two_rows_spans_columns(style: str) -> None:
    scores = [agreement(*drawn(seed, style, spans=True)) for seed in range(8)]
    assert np.mean(scores) >= 0.93, scores


@pytest.mark.parametrize("head", ["all", "short", "units", "group"])
@pytest.mark.parametrize("style", ["none", "head", "booktabs"])
def test_a_row_more_at_the_head_moves_no_cell(style: str, head: str) -> None:
    for seed in range(4):
        sheet, cells = drawn(seed, style, head=head)
        [(share, _)] = in_place(sheet.tables(), [table_of(cells)])
        assert share.part > 0.9 * share.whole, (seed, share)


def write_words(sheet: Sheet, text: str, left: int, top: int) -> None:
    sheet.write(text, left, top)
    line, words = sheet.pieces[-1], list[Word]()
    for word in re.finditer(r"\S+", text):
        start, end = (left + round(sheet.width(text[:end])) for end in word.span())
        words.append(Word(text=word.group(), box=line.box.model_copy(update={"left": start, "right": end})))
    sheet.pieces[-1] = line.model_copy(update={"words": tuple(words)})


@pytest.mark.parametrize("style", ["none", "head", "booktabs"])
def test_a_sentence_close_above_a_table_is_not_of_it(style: str) -> None:
    for seed in range(8):
        sheet, cells = drawn(seed, style)
        text = f"Give {seed} - 18 drops of the solution of 2.5 mg by mouth, not with milk."
        write_words(sheet, text, LEFT + 20, TOP - LINE)
        assert agreement(sheet, cells) == 1


@pytest.mark.parametrize("seed", range(6))
def test_fields_close_above_or_below_a_table_are_not_of_it(seed: int) -> None:
    for is_above in (True, False):
        sheet, cells = drawn(seed, "none")
        sheet.pieces = [piece for piece in sheet.pieces if piece.text not in PROSE]
        bottom = max(piece.box.bottom for piece in sheet.pieces)
        for number, text in enumerate(("Name: Anna Schmidt", "Born: 12.03.1954", "Ward: 9")):
            write_words(sheet, text, LEFT + 12 + 267 * number, TOP - LINE if is_above else bottom + 10)
        assert agreement(sheet, cells) == 1


def test_columns_that_other_lines_close_above_run_into_are_parted_or_in_doubt() -> None:
    sheet, cells = drawn(2, "none")
    sheet.pieces = [piece for piece in sheet.pieces if piece.text not in PROSE]
    for number, (left, right) in enumerate(
        [("Dr. Erik Larsen", "Tel. 030 1234567"), ("10115 Berlin", "info@larsen.example")]
    ):
        write_words(sheet, left, LEFT + 12, TOP + LINE * (number - 2))
        write_words(sheet, right, LEFT + 290, TOP + LINE * (number - 2))

    found = sheet.layout()

    [table] = [block.table for block in found.blocks if block.table]
    parted = adjacency([table], [table_of(cells)]).f1 == 1
    assert parted or [doubt.reason for doubt in found.doubts] == [DoubtReason.TABLE_UNCLEAR]


def test_names_at_the_left_of_columns_whose_numbers_stand_at_the_right_are_of_them() -> None:
    sheet, xs = Sheet(), (340, 520, 700)
    cells = plain(("Country", *["Per cent\nof all"] * 3), *((name, "7.5", "8.1", "9.4") for name in LABELS))
    for (row, column), (text, _, _) in cells.items():
        for line, part in enumerate(text.split("\n")):
            free = 120 - sheet.width(text) if row and column else 0
            sheet.write(part, (80, *xs)[column] + free, 100 + PITCH * row + LINE * line + LINE * bool(row))

    assert agreement(sheet, cells) == 1


def test_the_first_label_may_have_two_lines_above_its_values() -> None:
    sheet, cells, xs = Sheet(), plain(("Country", "Cases", "Rate")), (80, 400, 560)
    for x, name in zip(xs, ("Country", "Cases", "Rate"), strict=True):
        sheet.write(name, x, 100)
    sheet.write("Outpatient visits to", 80, 140)
    for row, name in enumerate(("hospitals and clinics", *LABELS[:5]), 1):
        for column, text in enumerate((name, f"{row}1.5", f"{row}2.7")):
            sheet.write(text, xs[column], 132 + PITCH * row)
            cells[row, column] = (text, 1, 1)
    cells[1, 0] = ("Outpatient visits to\nhospitals and clinics", 1, 1)

    assert agreement(sheet, cells) == 1


def test_a_narrow_column_between_double_rules_is_none() -> None:
    sheet, cells, xs = (
        Sheet(),
        plain(("", "1997", "1995"), *((name, "42", "29") for name in LABELS)),
        (80, 300, 420),
    )
    for (row, column), (text, _, _) in cells.items():
        sheet.write(text, xs[column] + 20, 105 + PITCH * row)
    rows = 1 + len(LABELS)
    for y in (100 + PITCH * row for row in range(rows + 1)):
        sheet.rule(80, y, 540, y)
    for x in (80, 300, 404, 420, 540):
        sheet.rule(x, 100, x, 100 + PITCH * rows)

    [(share, _)] = in_place(sheet.tables(), [table_of(cells)])
    assert share.part == share.whole


def test_lines_below_names_that_may_be_rows_or_of_the_names_are_in_doubt() -> None:
    sheet = Sheet()
    rows = (
        ("Country", "Cases", "Rate"),
        ("", "weekly", "crude"),
        *((name, "17.5", "22.4") for name in LABELS),
    )
    for row, texts in enumerate(rows):
        for x, text in zip((80, 320, 460), texts, strict=True):
            if text:
                sheet.write(text, x, 100 + 24 * row)

    assert [doubt.reason for doubt in sheet.layout().doubts] == [DoubtReason.TABLE_UNCLEAR]


def test_two_tables_side_by_side_are_parted_or_in_doubt() -> None:
    sheet = Sheet()
    for row, name in enumerate(("Country", *LABELS)):
        for column, text in enumerate((name, f"{row}1.5", f"{row}7", name, f"{row}2.5", f"{row}3")):
            head = ("Country", "Rate", "Cases")[column % 3]
            sheet.write(text if row else head, (80, 300, 400, 500, 720, 820)[column], 100 + PITCH * row)

    found = sheet.layout()

    parted = len([block for block in found.blocks if block.table]) == 2
    assert parted or [doubt.reason for doubt in found.doubts] == [DoubtReason.TABLE_UNCLEAR]


def test_names_to_the_left_of_a_grid_of_numbers_are_its_first_column() -> None:
    sheet, cells = drawn(2, "none")
    columns = 1 + max(column for _, column in cells)
    rows = 1 + max(row for row, _ in cells)
    boxes = [piece.box for piece in sheet.pieces if TOP < piece.box.top < TOP + rows * PITCH]
    left, right = LEFT + 280, max(box.right for box in boxes) + 14
    width = (right - left) / (columns - 1)
    for x in (left + n * width for n in range(columns)):
        sheet.rule(x, TOP, x, TOP + rows * PITCH)
    for y in (TOP + n * PITCH for n in range(rows + 1)):
        sheet.rule(left, y, right, y)

    assert agreement(sheet, cells) == 1


def test_a_title_and_notes_in_the_frame_of_a_table_are_not_of_it() -> None:
    sheet, cells = drawn(4, "full")
    rows, right = 1 + max(row for row, _ in cells), 0
    boxes = [piece.box for piece in sheet.pieces if TOP < piece.box.top < TOP + rows * PITCH]
    right = max(box.right for box in boxes) + 14
    sheet.frame(LEFT, TOP - 38, right, TOP)
    sheet.write("Exhibit 4: cases", LEFT + 200, TOP - 32)

    assert agreement(sheet, cells) == 1
    assert sheet.blocks()[1].text.endswith("Exhibit 4: cases")


def test_a_cell_with_three_numbers_is_parted_or_in_doubt() -> None:
    sheet = Sheet()
    xs, ys = (80, 300, 600), [100 + 40 * row for row in range(7)]
    for row, (top, _) in enumerate(pairwise(ys)):
        sheet.write(f"Row {row}", 90, top + 8)
        sheet.write(
            "   ".join(str(100 * row + column + 10) for column in range(3)), 320 + 7 * (row % 3), top + 8
        )
    for y in ys:
        sheet.rule(80, y, 600, y)
    for x in xs:
        sheet.rule(x, 100, x, ys[-1])

    found = sheet.layout()

    [block] = [block for block in found.blocks if block.kind is BlockKind.TABLE]
    parted = block.table is not None and block.table.columns == 4
    assert parted or [doubt.reason for doubt in found.doubts] == [DoubtReason.TABLE_UNCLEAR]


def test_a_dash_that_recognition_passed_over_is_read_in_an_empty_cell() -> None:
    sheet, cells = drawn(1, "full")
    place = next(place for place, (text, _, _) in cells.items() if place[0] == 3 and place[1] == 2)
    known = cells[place][0]
    piece = next(piece for piece in sheet.pieces if piece.text == known)
    sheet.pieces.remove(piece)
    box = piece.box
    sheet.fill(box.left - 2, box.top - 2, box.right + 2, box.bottom + 2, colour="white")
    y = (box.top + box.bottom) // 2
    sheet.fill(box.right - 14, y, box.right - 4, y + 1, colour="black")
    cells[place] = ("-", 1, 1)

    assert agreement(sheet, cells) == 1
