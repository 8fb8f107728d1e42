"""Contents of a page: blocks in reading order, tables with cells, lines, words, marks and doubts.

Names follow docling-core and hOCR where they exist. Boxes are in pixels of the page in the form that was read: upright,
level and scaled down.

In storage, each text occurs once, and words are numbers. A page of 3,000 words then takes 101 kB, or 55 in Postgres,
which compresses it; as plain JSON, with text and box of each word, 339 and 97. Encrypted data cannot be compressed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

_DEEPEST: Final = 64
"""Maximum nesting; serializers end at a few hundred levels."""


def storable_text(text: str) -> str:
    """Return the text without NUL, with a replacement for each lone surrogate."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with every text made storable. Raises `ValueError` if it is nested too deeply."""
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
    """Part of a stored result. Its errors do not quote the document."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    def stored_json(self) -> str:
        """Return its compact JSON, which `model_validate` reads."""
        return self.model_dump_json()


class Source(StrEnum):
    """Where a text comes from."""

    LAYER = "layer"
    """The file's own text, exact."""
    OCR = "ocr"
    """The CPU engine, from the pixels."""
    MODEL = "model"
    """A language model, from the pixels."""
    PERSON = "person"
    """A person wrote it in a review."""
    BOTH = "both"
    """Several sources: some blocks or lines come from one, some from another."""


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
    """Whether the word is crossed out. The texts of lines, blocks and cells contain it nevertheless."""


class Line(Stored):
    """A line of text with its position. `text` joins its words with spaces."""

    text: Text
    box: Box
    confidence: Confidence | None = None
    """None if the source has none; a text layer is exact."""
    words: tuple[Word, ...] = ()
    """From left to right; empty if the engine reports lines only. From a language model, only words with a known
    position."""
    source: Source | None = None
    """None: the same as its block's."""

    @property
    def has_every_word(self) -> bool:
        """Whether `words` cover the entire text."""
        return "".join("".join(word.text for word in self.words).split()) == "".join(self.text.split())


class BlockKind(StrEnum):
    """Kind of a block."""

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
    """The text is the encoded content, which the page does not show."""


class Cell(Stored):
    """A cell of a table; rows and columns count from 0. Empty cells are included."""

    row: int = Field(ge=0)
    column: int = Field(ge=0)
    row_span: int = Field(default=1, ge=1)
    column_span: int = Field(default=1, ge=1)
    text: Text
    """Lines of the cell, joined by newlines."""
    box: Box | None = None
    confidence: Confidence | None = None


class Table(Stored):
    """The grid of a block of kind `table`. Every position of the grid belongs to one cell."""

    rows: int = Field(ge=1)
    columns: int = Field(ge=1)
    cells: tuple[Cell, ...]
    """Sorted by their first row, then column."""

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
        """The rows as text, with tabs between cells and newlines between rows."""
        return "\n".join("\t".join(" ".join(text.split()) for text in row) for row in self.to_rows())

    def to_csv(self) -> str:
        """Return the table as CSV (RFC 4180)."""
        file = io.StringIO()
        csv.writer(file).writerows(self.to_rows())
        return file.getvalue()


class MarkKind(StrEnum):
    """Kind of a mark on a form."""

    CHECKBOX = "checkbox"
    RADIO = "radio"
    SIGNATURE_LINE = "signature_line"


class MarkState(StrEnum):
    """State of a mark."""

    TICKED = "ticked"
    EMPTY = "empty"
    UNCLEAR = "unclear"


class Mark(Stored):
    """A box or circle to tick, or a line to sign. In a line's text a box is ☑ or ☐."""

    kind: MarkKind
    box: Box
    state: MarkState
    label: Text = ""
    """The text beside the mark."""


class Block(Stored):
    """A piece of a page that belongs together."""

    kind: BlockKind
    box: Box | None = None
    """None if the engine does not report positions."""
    text: Text
    """For a table, its rows, with tabs between cells and newlines between rows."""
    lines: tuple[Line, ...] = ()
    """In reading order; empty if the engine does not report positions."""
    confidence: Confidence | None = None
    """Mean of the lines, weighted by length."""
    source: Source
    level: int | None = Field(default=None, ge=1, le=6)
    """Level of a heading, 1 to 6."""
    table: Table | None = None
    marks: tuple[Mark, ...] = ()


class DoubtReason(StrEnum):
    """Why a person should check a place on a page."""

    LOW_CONFIDENCE = "low_confidence"
    DISAGREES = "disagrees"
    """Another witness read different text."""
    UNCOVERED = "uncovered"
    """The place has ink that looks like text, but no text was read."""
    NOT_ON_PAGE = "not_on_page"
    """The model wrote text that no witness finds on the page."""
    TABLE_UNCLEAR = "table_unclear"
    """A possible table whose grid was not recognised; its lines are given as rows."""
    ORDER_UNCLEAR = "order_unclear"
    """Two columns of text in doubt: they are given as rows, but may belong one after the other."""
    MISPLACED = "misplaced"
    """A witness reads the text in another order, row or column: it may belong to something else."""
    ONLY_WITNESS = "only_witness"
    """A witness reads text that the result does not have."""
    STRUCK_OUT = "struck_out"
    """The text is crossed out and may not be valid. The verdict is `review`."""
    LANGUAGE_UNREAD = "language_unread"
    """The engine cannot read this script, so the text is invented. `other` is the script, such as `Hangul`."""
    UNWITNESSED = "unwitnessed"
    """The witness of the page failed, so nothing confirms the model's values."""
    MISSING_FIELDS = "missing_fields"
    """`fields` lacks content of the page: no answer followed the schema, it was cut off, or a list has fewer rows than
    the page. `text` is the JSON pointer of the list, empty for all fields; `other` is the missing rows."""


class Doubt(Stored):
    """A place to check."""

    reason: DoubtReason
    box: Box | None = None
    text: Text = ""
    """Text of the result at this place."""
    other: Text | None = None
    """Text that the other witness read."""
    probability: Confidence | None = None
    """Probability that the text is wrong, measured on pages with known text; None without a measurement."""
    on_value: bool = False
    """Whether a number, unit, dose, date or name is concerned: then the verdict is `review`."""


def text_of(blocks: Iterable[Block]) -> str:
    """Return the text of blocks in their order, separated by blank lines, without barcodes."""
    return "\n\n".join(block.text for block in blocks if block.text and block.kind is not BlockKind.BARCODE)


def plain_blocks(
    text: Text, lines: tuple[Line, ...] = (), *, source: Source = Source.MODEL
) -> tuple[Block, ...]:
    """Return text as one block with its lines, if these are known; no block for empty text."""
    if not text and not lines:
        return ()
    sure = mean_confidence(lines)
    return (Block(kind=BlockKind.TEXT, text=text, lines=lines, confidence=sure, source=source),)


def mean_confidence(lines: Iterable[Line | Word]) -> float | None:
    """Return the mean confidence of lines, weighted by their length; None if none has a confidence."""
    known = [(len(line.text), line.confidence) for line in lines if line.confidence is not None]
    length = sum(weight for weight, _ in known)
    return sum(weight * confidence for weight, confidence in known) / length if length else None


class Standing(StrEnum):
    """Comparison of a value with a witness."""

    AGREES = "agrees"
    """The witness read the same."""
    DIFFERS = "differs"
    """The witness read different text there."""
    NOT_ON_PAGE = "not_on_page"
    """The witness finds it nowhere."""
    CONFIRMED = "confirmed"
    """A person confirmed it in a review."""


class MergeRule(StrEnum):
    """How values of a property on several pages are merged."""

    AGREED = "agreed"
    """The most frequent value, values that a witness also read before all others; the first of equal ones."""
    FIRST = "first"
    """The value of the first page that has one."""
    ALL = "all"
    """A list of all values: items of lists in page order, and single values without repetition."""
    SUM = "sum"
    """The sum of all numbers, including items of lists."""


class Witnessed(Stored):
    """Comparison of a page's text with an independent witness, in words and numbers, without punctuation."""

    source: Source
    """`layer`: the file's own text; `ocr`: the CPU engine."""
    words: int
    """Number of words in the text."""
    agrees: int
    differs: int
    not_on_page: int
    only_witness: int
    """Words that the witness read and the text lacks."""
    values: int
    """Numbers, units, dates, codes and names, among words that the witness can read."""
    values_agree: int
    seconds: float = 0.0
    """Seconds that the witness and the comparison took; only this page waited for it."""


class Place(Stored):
    """Position of a value in a document."""

    page: int = Field(ge=1)
    box: Box


class Grounding(Stored):
    """A leaf of `fields`: text, number, boolean or null."""

    path: str
    """JSON pointer (RFC 6901), as in `/items/0/amount`."""
    value: Any
    pages: tuple[int, ...] = ()
    """Pages whose fields contain it."""
    lacking: tuple[int, ...] = ()
    """For a list in a document, or all its fields (an empty path): pages that gave none or only some of its rows.
    Complete lists have no leaf of their own; `pages` are then the pages that gave rows."""
    places: tuple[Place, ...] = ()
    """Where the value was found; empty if unknown."""
    witness: Source | None = None
    """None without a witness, or for null, true and false, which are not printed on pages."""
    standing: Standing | None = None
    other: Text | None = None
    """Text that the witness read there, for `differs`."""
    confidence: Confidence | None = None
    """Certainty of the witness: 1 for a text layer that agrees, 0 for text that is not on the page."""
    conflicts: tuple[Grounding, ...] = ()
    """For a document, the values of other pages."""


_BLOCKS: Final = TypeAdapter(tuple[Block, ...], config=ConfigDict(defer_build=True))
_WORDS: Final[Any] = {"__all__": {"lines": {"__all__": {"words"}}}}
_SURE: Final = 1000
"""A confidence is stored with three decimals."""


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
    """Return length, box within the line and confidence of each word, and 1 if it is struck out.

    None if the line's text does not contain them.
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
