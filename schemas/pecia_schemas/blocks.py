"""What is on a page: blocks in reading order, tables with cells, lines, words, marks, and the doubts about them.

Names follow docling-core and hOCR where they have one. Boxes are in pixels of the page as it was read:
upright, level and scaled down.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pecia_schemas.storable import storable_text

Text = Annotated[str, AfterValidator(storable_text)]
Confidence = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda value: round(value, 3))]


class Stored(BaseModel):
    """Part of a stored result. An error about it does not quote the document."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    def stored_json(self) -> str:
        """Return it as JSON of the least size, which `model_validate` reads."""
        return self.model_dump_json()


class Source(StrEnum):
    """Where text comes from."""

    LAYER = "layer"
    """The file's own text, exact."""
    OCR = "ocr"
    """The CPU engine, from the pixels."""
    MODEL = "model"
    """A language model, from the pixels."""
    PERSON = "person"
    """A person wrote it in a review."""
    BOTH = "both"
    """Two of these: some blocks come from one, some from the other."""


class Box(Stored):
    """A rectangle on the page, in pixels from its top left corner."""

    left: int
    top: int
    right: int
    bottom: int


class Word(Stored):
    """One word of a line."""

    text: Text
    box: Box
    confidence: Confidence | None = None


class Line(Stored):
    """One line of text where it stands. `text` is its words with a space between them."""

    text: Text
    box: Box
    confidence: Confidence | None = None
    """None: the source has none; a text layer is exact."""
    words: tuple[Word, ...] = ()
    """From left to right; empty if the engine tells lines only. Of a language model's
    text, those whose place is known."""

    @property
    def has_every_word(self) -> bool:
        """Whether `words` are all of its text."""
        return "".join("".join(word.text for word in self.words).split()) == "".join(self.text.split())


class BlockKind(StrEnum):
    """What a block is."""

    TITLE = "title"
    HEADING = "heading"
    TEXT = "text"
    LIST = "list"
    TABLE = "table"
    FIGURE = "figure"
    CAPTION = "caption"
    FORMULA = "formula"
    HEADER = "header"
    FOOTER = "footer"
    PAGE_NUMBER = "page_number"
    STAMP = "stamp"
    HANDWRITING = "handwriting"


class Cell(Stored):
    """One cell of a table; rows and columns are counted from 0. An empty cell is a cell."""

    row: int = Field(ge=0)
    column: int = Field(ge=0)
    row_span: int = Field(default=1, ge=1)
    column_span: int = Field(default=1, ge=1)
    text: Text
    """Its lines with a newline between them."""
    box: Box | None = None
    confidence: Confidence | None = None


class Table(Stored):
    """The grid of a block of kind `table`. Every place of the grid belongs to one cell."""

    rows: int = Field(ge=1)
    columns: int = Field(ge=1)
    cells: tuple[Cell, ...]
    """By row, then column, of their first place."""

    def to_rows(self) -> list[list[str]]:
        """Return the texts as a list of rows, each with one text a column.

        A cell that spans several places has its text at the first and empty texts at the others.
        """
        rows = [[""] * self.columns for _ in range(self.rows)]
        for cell in self.cells:
            rows[cell.row][cell.column] = cell.text
        return rows

    @property
    def text(self) -> str:
        """The rows, with a tab between cells and a newline between rows."""
        return "\n".join("\t".join(" ".join(text.split()) for text in row) for row in self.to_rows())

    def to_csv(self) -> str:
        """Return the table as CSV (RFC 4180)."""
        file = io.StringIO()
        csv.writer(file).writerows(self.to_rows())
        return file.getvalue()


class MarkKind(StrEnum):
    """What kind of mark a form has."""

    CHECKBOX = "checkbox"
    RADIO = "radio"
    SIGNATURE_LINE = "signature_line"


class MarkState(StrEnum):
    """Whether a mark is made."""

    TICKED = "ticked"
    EMPTY = "empty"
    UNCLEAR = "unclear"


class Mark(Stored):
    """A box or circle to be ticked, or a line to be signed. In a line's text a box is ☑ or ☐."""

    kind: MarkKind
    box: Box
    state: MarkState
    label: Text = ""
    """The text beside it."""


class Block(Stored):
    """A piece of a page that is read as one."""

    kind: BlockKind
    box: Box | None = None
    """None: the engine cannot tell where it stands."""
    text: Text
    """Of a table: its rows, with a tab between cells and a newline between rows."""
    lines: tuple[Line, ...] = ()
    """In reading order; empty if the engine cannot tell where text stands."""
    confidence: Confidence | None = None
    """Mean of its lines, weighted by length."""
    source: Source
    level: int | None = Field(default=None, ge=1, le=6)
    """Of a heading, 1 to 6."""
    table: Table | None = None
    marks: tuple[Mark, ...] = ()


class DoubtReason(StrEnum):
    """Why a place of a page should be looked at by a person."""

    LOW_CONFIDENCE = "low_confidence"
    DISAGREES = "disagrees"
    """Another witness read it differently."""
    UNCOVERED = "uncovered"
    """There is ink that looks like text, and it was not read."""
    NOT_ON_PAGE = "not_on_page"
    """The model wrote it; no witness finds it on the page."""
    TABLE_UNCLEAR = "table_unclear"
    """It looks like a table whose grid was not understood; its lines are there, in rows."""
    ORDER_UNCLEAR = "order_unclear"
    """Two pieces of text stand side by side: they are there in rows, and may be meant one after the other."""
    ONLY_WITNESS = "only_witness"
    """A witness reads it there; the result does not have it."""
    UNWITNESSED = "unwitnessed"
    """A witness was to read the page and could not: its values stand on the model's word alone."""


class Doubt(Stored):
    """One place to look at."""

    reason: DoubtReason
    box: Box | None = None
    text: Text = ""
    """What the result has there."""
    other: Text | None = None
    """What the other witness read."""
    on_value: bool = False
    """Whether it is on a number, unit, dose, date or name: then the verdict is `review`."""


def text_of(blocks: Iterable[Block]) -> str:
    """Return the text of blocks in their order, a blank line between them."""
    return "\n\n".join(block.text for block in blocks if block.text)


def plain_blocks(
    text: Text, lines: tuple[Line, ...] = (), *, source: Source = Source.MODEL
) -> tuple[Block, ...]:
    """Return text of which only the lines are known, if that, as one block; nothing for no text."""
    if not text and not lines:
        return ()
    block = Block(
        kind=BlockKind.TEXT, text=text, lines=lines, confidence=mean_confidence(lines), source=source
    )
    return (block,)


def mean_confidence(lines: Iterable[Line | Word]) -> float | None:
    """Return the mean confidence of the lines that have one, weighted by their length; None if no text has one."""
    known = [(len(line.text), line.confidence) for line in lines if line.confidence is not None]
    length = sum(weight for weight, _ in known)
    return sum(weight * confidence for weight, confidence in known) / length if length else None
