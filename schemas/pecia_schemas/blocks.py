"""What is on a page: blocks in reading order, tables with cells, lines, words, marks, and the doubts about them.

Names follow docling-core and hOCR where they have one. Boxes are in pixels of the page as it was read:
upright, level and scaled down.

Stored, each text stands once, and words are numbers. As plain JSON, a text and a box for each word, a page of 3,000
words takes 339 kB, and 97 in Postgres, which compresses it; like this 101 and 55. What is encrypted cannot be
compressed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

_DEEPEST: Final = 64
"""Levels of nesting; serializers end at a few hundred."""


def storable_text(text: str) -> str:
    """Return the text without NUL, and with a replacement for each half of a character that stands alone."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: Any, depth: int = 0) -> Any:
    """Return the same for every text in a JSON value. Raises `ValueError` if it is nested too deeply."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(name): storable(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner, depth + 1) for inner in value]
    return value


Text = Annotated[str, AfterValidator(storable_text)]
Confidence = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda value: round(value, 3))]


class Stored(BaseModel):
    """Part of a stored result. An error about it does not quote the document."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    def stored_json(self) -> str:
        """Return its shortest JSON, which `model_validate` reads."""
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
    """Two of these: some blocks or lines come from one, some from the other."""


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
    struck: bool = False
    """Whether a line runs through it, by which it is crossed out. The texts of lines, blocks and cells hold it all the
    same."""


class Line(Stored):
    """One line of text where it stands. `text` is its words with a space between them."""

    text: Text
    box: Box
    confidence: Confidence | None = None
    """None: the source has none; a text layer is exact."""
    words: tuple[Word, ...] = ()
    """From left to right; empty if the engine reports lines only. Of a language model's
    text, those whose place is known."""
    source: Source | None = None
    """None: as its block's."""

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
    BARCODE = "barcode"
    """Its text is what it encodes; it is no text that the page shows."""


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
    """None: the engine does not report where it stands."""
    text: Text
    """Of a table: its rows, with a tab between cells and a newline between rows."""
    lines: tuple[Line, ...] = ()
    """In reading order; empty if the engine does not report where text stands."""
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
    MISPLACED = "misplaced"
    """A witness reads it too, in another order, row or column: it may be the value of something else."""
    ONLY_WITNESS = "only_witness"
    """A witness reads it there; the result does not have it."""
    STRUCK_OUT = "struck_out"
    """It is crossed out: it stands there, and may hold no more. The verdict is `review`."""
    LANGUAGE_UNREAD = "language_unread"
    """Ink in a script that the engine does not read: the text is made up. `other` is the script, as in `Hangul`."""
    UNWITNESSED = "unwitnessed"
    """A witness was to read the page and could not: its values stand on the model's word alone."""
    MISSING_FIELDS = "missing_fields"
    """`fields` lacks what the page has: no answer followed the schema, it was cut, or a list has fewer rows than the
    page. `text` is the JSON pointer of the list, empty for all fields; `other` is the missing rows."""


class Doubt(Stored):
    """One place to look at."""

    reason: DoubtReason
    box: Box | None = None
    text: Text = ""
    """What the result has there."""
    other: Text | None = None
    """What the other witness read."""
    probability: Confidence | None = None
    """That the text is wrong, as measured on pages whose text is known; None: it was not measured."""
    on_value: bool = False
    """Whether it is on a number, unit, dose, date or name: then the verdict is `review`."""


def text_of(blocks: Iterable[Block]) -> str:
    """Return the text of blocks in their order, a blank line between them; barcodes show none."""
    return "\n\n".join(block.text for block in blocks if block.text and block.kind is not BlockKind.BARCODE)


def plain_blocks(
    text: Text, lines: tuple[Line, ...] = (), *, source: Source = Source.MODEL
) -> tuple[Block, ...]:
    """Return text of which only the lines are known, if that, as one block; nothing for no text."""
    if not text and not lines:
        return ()
    sure = mean_confidence(lines)
    return (Block(kind=BlockKind.TEXT, text=text, lines=lines, confidence=sure, source=source),)


def mean_confidence(lines: Iterable[Line | Word]) -> float | None:
    """Return the mean confidence of the lines that have one, weighted by their length; None if no text has one."""
    known = [(len(line.text), line.confidence) for line in lines if line.confidence is not None]
    length = sum(weight for weight, _ in known)
    return sum(weight * confidence for weight, confidence in known) / length if length else None


class Standing(StrEnum):
    """How a value stands beside a witness."""

    AGREES = "agrees"
    """The witness read the same."""
    DIFFERS = "differs"
    """The witness read something else there."""
    NOT_ON_PAGE = "not_on_page"
    """The witness finds it nowhere."""
    CONFIRMED = "confirmed"
    """A person has seen to it in a review."""


class MergeRule(StrEnum):
    """How a property that several pages fill becomes one."""

    AGREED = "agreed"
    """The value of most pages; a value that a witness read too comes before all others; of equals the first."""
    FIRST = "first"
    """That of the first page that has one."""
    ALL = "all"
    """A list of all: the items of lists one page after the other, and of single values each once."""
    SUM = "sum"
    """The sum of the numbers, of a list's items too."""


class Witnessed(Stored):
    """What an independent witness of a page says of its text, in words and numbers, punctuation aside."""

    source: Source
    """`layer`: the file's own text; `ocr`: the CPU engine."""
    words: int
    """Of the text."""
    agrees: int
    differs: int
    not_on_page: int
    only_witness: int
    """That the witness read and the text does not have."""
    values: int
    """Of the words that the witness can read: numbers, units, dates, codes and names."""
    values_agree: int
    seconds: float = 0.0
    """What the witness and the comparison took, in seconds: this page alone waited for it."""


class Place(Stored):
    """Where a value stands in a document."""

    page: int = Field(ge=1)
    box: Box


class Grounding(Stored):
    """One leaf of `fields`: a text, a number, a truth value or null."""

    path: str
    """JSON pointer (RFC 6901), as in `/items/0/amount`."""
    value: Any
    pages: tuple[int, ...] = ()
    """Pages whose fields have it."""
    lacking: tuple[int, ...] = ()
    """Of a list in a document, or of all its fields (the empty path): pages that gave none of its rows, or not all.
    Lists that lack none have no leaf of their own; `pages` are those that gave rows."""
    places: tuple[Place, ...] = ()
    """Where it stands; empty: unknown."""
    witness: Source | None = None
    """None: there was none, or nothing to be looked for: null, true and false are written on no page."""
    standing: Standing | None = None
    other: Text | None = None
    """What the witness read there, if it `differs`."""
    confidence: Confidence | None = None
    """How sure the witness is: 1 for a text layer that agrees, 0 for text that is not on the page."""
    conflicts: tuple[Grounding, ...] = ()
    """Of a document: what other pages have in its place."""


_BLOCKS: Final = TypeAdapter(tuple[Block, ...], config=ConfigDict(defer_build=True))
_WORDS: Final[Any] = {"__all__": {"lines": {"__all__": {"words"}}}}
_SURE: Final = 1000
"""A confidence has three digits behind the point."""


def packed(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return blocks as JSON for `unpacked`."""
    written: list[dict[str, Any]] = _BLOCKS.dump_python(
        tuple(blocks), mode="json", exclude_defaults=True, exclude=_WORDS
    )
    for block, plain in zip(blocks, written, strict=True):
        for line, plain_line in zip(block.lines, plain.get("lines", ()), strict=True):
            if line.words:
                words: list[Any] | None = _lengths(line)
                plain_line["words"] = words or [word.model_dump(mode="json") for word in line.words]
        if block.lines and [line.text for line in block.lines] == block.text.split("\n"):
            for plain_line in plain["lines"]:
                del plain_line["text"]
    return written


def unpacked(blocks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return packed blocks as plain JSON."""
    plain = []
    for block in blocks:
        lines, texts = [], block["text"].split("\n")
        for number, line in enumerate(block.get("lines", ())):
            full = {"text": texts[number], **line} if "text" not in line else line
            words, rest, inner = line.get("words", ()), full["text"], []
            if words and not isinstance(words[0], Mapping):
                for length, left, top, width, height, sure, *struck in words:
                    rest = rest.lstrip(" ")
                    x, y = line["box"]["left"] + left, line["box"]["top"] + top
                    box = {"left": x, "top": y, "right": x + width, "bottom": y + height}
                    confidence = None if sure is None else sure / _SURE
                    word = {"text": rest[:length], "box": box, "confidence": confidence}
                    inner.append({**word, "struck": True} if struck else word)
                    rest = rest[length:]
                full = {**full, "words": inner}
            lines.append(full)
        plain.append({**block, "lines": lines})
    return plain


def _lengths(line: Line) -> list[list[int | None]] | None:
    """Return length, box within the line's and confidence of each word, and 1 if it is struck out.

    None if the line's text does not show them.
    """
    rest, words = line.text, []
    for word in line.words:
        rest = rest.lstrip(" ")
        if not word.text or not rest.startswith(word.text):
            return None
        box, sure = word.box, None if word.confidence is None else round(word.confidence * _SURE)
        place = (box.left - line.box.left, box.top - line.box.top, box.right - box.left, box.bottom - box.top)
        words.append([len(word.text), *place, sure, *[1] * word.struck])
        rest = rest[len(word.text) :]
    return words
