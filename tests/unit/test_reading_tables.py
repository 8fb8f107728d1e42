"""Tables are drawn with their exact cells, and given to the layout as pieces of text where they stand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.blocks import Block, Box, Line, Source, Table
from pecia_workers.reading.layout import layout

Cells: TypeAlias = dict[tuple[int, int], tuple[str, int, int]]
"""By row and column: the text, with a newline between lines, and the spans."""

NAMES = ("Haemoglobin", "Leucocytes", "Sodium", "Potassium", "Creatinine", "Ferritin", "Platelets", "Glucose")
WORDS = (
    "fasting",
    "venous blood",
    "repeat in a week",
    "see comment",
    "slightly raised",
    "normal",
    "after meal",
)


@dataclass
class Sheet:
    image: Image.Image = field(default_factory=lambda: Image.new("RGB", (1240, 1100), "white"))
    pieces: list[Line] = field(default_factory=list)
    size: int = 22

    def write(self, text: str, left: float, top: float) -> None:
        font = ImageFont.load_default(self.size)
        ImageDraw.Draw(self.image).text((left, top), text, fill="black", font=font)
        x0, y0, x1, y1 = font.getbbox(text)
        box = Box(
            left=round(left + x0) - 2,
            top=round(top + y0) - 2,
            right=round(left + x1) + 2,
            bottom=round(top + y1) + 2,
        )
        self.pieces.append(Line(text=text, box=box))

    def rule(self, *place: float, colour: str = "black", width: int = 2) -> None:
        ImageDraw.Draw(self.image).line(place, fill=colour, width=width)

    def blocks(self) -> tuple[Block, ...]:
        return layout(self.pieces, np.asarray(self.image), source=Source.OCR).blocks

    def tables(self) -> list[Table]:
        return [block.table for block in self.blocks() if block.table]


def draw(
    sheet: Sheet,
    cells: Cells,
    rules: str,
    widths: list[int],
    *,
    left: int = 80,
    top: int = 120,
    pad: int = 12,
) -> None:
    """Draw a table. `rules`: full, rows (lines between rows alone), head (three lines), none."""
    pitch = round(sheet.size * 1.25)
    rows = 1 + max(row for row, _ in cells)
    deep = [max(cells[place][0].count("\n") + 1 for place in cells if place[0] == row) for row in range(rows)]
    xs = np.cumsum([left, *widths]).tolist()
    ys = np.cumsum([top, *(lines * pitch + 2 * pad for lines in deep)]).tolist()
    for (row, column), (text, high, wide) in cells.items():
        x0, y0, x1, y1 = xs[column], ys[row], xs[column + wide], ys[row + high]
        if rules == "full":
            for side in ((x0, y0, x1, y0), (x0, y1, x1, y1), (x0, y0, x0, y1), (x1, y0, x1, y1)):
                sheet.rule(*side)
        for number, line in enumerate(text.split("\n") if text else []):
            sheet.write(line, x0 + 10, y0 + pad + number * pitch)
    for y in {"rows": ys, "head": [ys[0], ys[1], ys[-1]]}.get(rules, []):
        sheet.rule(xs[0], y, xs[-1], y, colour="grey")


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
