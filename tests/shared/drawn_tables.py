"""Tables that are drawn with their exact cells, as a page and as the pieces of text that stand on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.blocks import Block, Box, Cell, Line, Source, Table
from pecia_workers.layout.blocks import Layout, layout

Cells: TypeAlias = dict[tuple[int, int], tuple[str, int, int]]
"""By row and column: the text, with a newline between lines, and the spans."""


@dataclass
class Sheet:
    image: Image.Image = field(default_factory=lambda: Image.new("RGB", (1240, 1100), "white"))
    pieces: list[Line] = field(default_factory=list)
    size: int = 22

    def write(self, text: str, left: float, top: float, colour: str = "black") -> None:
        font = ImageFont.load_default(self.size)
        ImageDraw.Draw(self.image).text((left, top), text, fill=colour, font=font)
        x0, y0, x1, y1 = font.getbbox(text)
        (x0, x1), (y0, y1) = (round(left + x0), round(left + x1)), (round(top + y0), round(top + y1))
        self.pieces.append(Line(text=text, box=Box(left=x0 - 2, top=y0 - 2, right=x1 + 2, bottom=y1 + 2)))

    def fill(self, *box: float, colour: str) -> None:
        ImageDraw.Draw(self.image).rectangle(box, fill=colour)

    def width(self, text: str) -> float:
        return ImageFont.load_default(self.size).getlength(text)

    def rule(self, *place: float, colour: str = "black", width: int = 2) -> None:
        ImageDraw.Draw(self.image).line(place, fill=colour, width=width)

    def frame(self, x0: float, y0: float, x1: float, y1: float) -> None:
        for side in ((x0, y0, x1, y0), (x0, y1, x1, y1), (x0, y0, x0, y1), (x1, y0, x1, y1)):
            self.rule(*side)

    def layout(self) -> Layout:
        return layout(self.pieces, np.asarray(self.image), source=Source.OCR)

    def blocks(self) -> tuple[Block, ...]:
        return self.layout().blocks

    def tables(self) -> list[Table]:
        return [block.table for block in self.blocks() if block.table]


def plain(*rows: Sequence[str]) -> Cells:
    """Return cells none of which spans others."""
    return {
        (row, column): (text, 1, 1) for row, texts in enumerate(rows) for column, text in enumerate(texts)
    }


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
            sheet.frame(x0, y0, x1, y1)
        for number, line in enumerate(text.split("\n") if text else []):
            sheet.write(line, x0 + 10, y0 + pad + number * pitch)
    for y in {"rows": ys, "head": [ys[0], ys[1], ys[-1]]}.get(rules, []):
        sheet.rule(xs[0], y, xs[-1], y, colour="grey")


def table_of(cells: Cells) -> Table:
    """Return the table that is drawn from these cells."""
    placed = tuple(
        Cell(row=row, column=column, text=text, row_span=high, column_span=wide)
        for (row, column), (text, high, wide) in cells.items()
    )
    return Table(
        rows=max(cell.row + cell.row_span for cell in placed),
        columns=max(cell.column + cell.column_span for cell in placed),
        cells=placed,
    )
