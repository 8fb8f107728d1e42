"""Results of jobs: a document of pages, or the captions of a video."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Confidence,
    Doubt,
    DoubtReason,
    Grounding,
    Line,
    MergeRule,
    Source,
    Stored,
    Table,
    Text,
    Witnessed,
    packed,
    plain_blocks,
    text_of,
    unpacked,
)
from pecia_schemas.bundles import DocumentPart
from pecia_schemas.failures import Failure
from pecia_schemas.merging import lacking, merged
from pecia_schemas.rendering import html_of, markdown_of

if TYPE_CHECKING:
    from pydantic_core import InitErrorDetails

M = TypeVar("M", bound=BaseModel)
_LINES: Final = TypeAdapter(tuple[Line, ...], config=ConfigDict(defer_build=True))


class Verdict(StrEnum):
    """How reliable a page's text is. Declared from the best to the worst."""

    OK = "ok"
    BLANK = "blank"
    REVIEW = "review"
    """A number, unit, dose, date or name is in doubt."""
    LOW_CONFIDENCE = "low_confidence"
    INCOMPLETE = "incomplete"
    """The page has unread ink that looks like text."""
    TRUNCATED = "truncated"
    REPETITION = "repetition"
    UNREADABLE = "unreadable"

    @property
    def needs_review(self) -> bool:
        """Whether the page needs a review."""
        return self not in (Verdict.OK, Verdict.BLANK)

    @property
    def rank(self) -> int:
        """Rank of the verdict; a better verdict has a higher rank."""
        return -list(Verdict).index(self)

    @staticmethod
    def worst(*verdicts: Verdict) -> Verdict:
        """Return the worst of these."""
        return min(verdicts, key=lambda verdict: verdict.rank)


VerdictName = Literal[
    "ok", "blank", "review", "low_confidence", "incomplete", "truncated", "repetition", "unreadable"
]
NEEDS_REVIEW: Final = "verdict NOT IN ('ok', 'blank')"
"""SQL condition: a part needs a review. Written as in its index."""


class TokenUsage(Stored):
    """Tokens that the engine used for a part, or the sum over parts."""

    prompt: int = 0
    image: int = 0
    """Tokens of the prompt that encode pictures."""
    cached: int = 0
    """Tokens of the prompt that a cache already had."""
    output: int = 0
    wasted: int = 0
    """Tokens of attempts whose text was discarded."""

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both."""
        names = type(self).model_fields
        return TokenUsage(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Timings(Stored):
    """Seconds that a part spent in each step."""

    queued: float = 0.0
    decode: float = 0.0
    engine: float = 0.0
    first_token: float | None = None


class Change(StrEnum):
    """How a repeated reading of a page differed from the first."""

    TEMPERATURE = "temperature"
    """Sampling was more random."""
    PENALTY = "penalty"
    """Repeated words were less likely."""
    SMALLER = "smaller"
    """The picture was smaller."""
    FALLBACK = "fallback"
    """Another engine read the page."""


class ReadingAttempt(Stored):
    """One reading of a page that was discarded for a better one."""

    engine: str
    verdict: Verdict
    """For an answer to `fields=`: `unreadable` if it is complete but does not follow the schema."""
    change: Change | None = None
    """The difference from the first reading; None for the first one."""
    fields: bool = False
    """Whether this was an answer to `fields=` instead of the page's text."""
    usage: TokenUsage = TokenUsage.model_construct()


class Shrunk(Stored):
    """The size at which the engine saw a picture, if that was smaller than the picture."""

    width: int
    height: int


class CachedFrom(Stored):
    """The earlier reading that was reused, without an engine; `usage` and `timings.engine` are then 0."""

    part: UUID
    """The part that was read; it may have been erased since."""
    read_at: datetime
    """When it was read, by the database's clock."""
    usage: TokenUsage = TokenUsage.model_construct()
    """Tokens that the engine used for the earlier reading."""


class Correction(Stored):
    """A person's text that replaces the engine's."""

    place: str
    """JSON pointer into the page before the correction: `/blocks/3`, `/blocks/3/table/cells/7`, `/fields/total`."""
    before: Text
    """The replaced text; empty if the text was missing."""
    after: Text
    """The new text; empty if it is not on the page."""
    box: Box | None = None


class Revision(Stored):
    """A review of a page, with its author and time."""

    number: int = Field(ge=1)
    """Number of the revision, from 1, counted over all pages of the job."""
    by: str
    """Name of the client, as in the audit trail."""
    at: datetime
    correction: Correction | None = None
    """None if doubts were dropped and no text was changed."""
    accepted: int = 0
    """Number of doubts that were checked and dropped, because the text is right."""
    checked: bool = False
    """Whether a person has compared every line of the page with its picture, in this revision or an earlier one."""


class Page(Stored):
    """One page as it was read, or revised."""

    number: int = Field(ge=1)
    """Number of the page in the document, from 1."""
    blocks: tuple[Block, ...] = ()
    """All text of the page, in reading order."""
    verdict: Verdict
    coverage: float | None = Field(default=None, ge=0, le=1)
    """Share of the text-like ink that was read; None if not measured."""
    doubts: tuple[Doubt, ...] = ()
    """Places that need a review."""
    confidence: Confidence | None = None
    """Mean confidence of the lines, weighted by length; None if the source reports none."""
    width: int
    height: int
    """Height of the page as it was read, upright, level and scaled down, in pixels. Boxes refer to this size."""
    blank: bool = False
    """Whether the page is empty, so that no engine read it."""
    attachments: int = 0
    """Number of files attached to the document, or to the page by a note. None of them is read."""
    rotation: int = 0
    """Clockwise rotation that made the page upright: 0, 90, 180 or 270 degrees. The rotation in the file itself (EXIF,
    /Rotate) does not count.
    """
    skew: float = 0.0
    """Clockwise rotation in degrees that then made the lines level: -10 to 10; 0 if it was not needed, or in doubt."""
    scale: float = Field(default=1.0, gt=0, le=1)
    """Factor by which the sides were then scaled down; 1 if they were not."""
    engine: str
    fields: dict[str, Any] | None = None
    """Extracted fields by `fields=`; None if none were requested, or if no answer followed the schema."""
    grounding: tuple[Grounding, ...] = ()
    """Place of each leaf of `fields`, and whether a witness read the same; empty without a witness."""
    merge: dict[str, MergeRule] = Field(default_factory=dict)
    """How the fields of a document's pages become one object, by JSON pointer, from `x-merge` in the schema."""
    witness: Witnessed | None = None
    """Comparison with an independent reading of the page; None without one."""
    fields_text: str | None = None
    """Text of the best answer to `fields=`, if none followed the schema."""
    shrunk: Shrunk | None = None
    """Set if the page was read at a smaller size, because the engine cannot take more, or by `change`."""
    change: Change | None = None
    """How the kept reading differed from the first; None if the first was kept."""
    attempts: tuple[ReadingAttempt, ...] = ()
    """All other readings, in order; empty if the first was good."""
    usage: TokenUsage = TokenUsage.model_construct()
    """Tokens of all readings; `wasted` has those of `attempts`."""
    timings: Timings = Timings.model_construct()
    cached_from: CachedFrom | None = None
    """Set if the result was reused, because the same page had been read before in the same way."""
    revision: Revision | None = None
    """The last review, or None if never revised."""

    @model_validator(mode="before")
    @classmethod
    def _as_stored(cls, data: Any) -> Any:
        """Convert the stored form of blocks: packed blocks, or `text` and `lines` of versions before blocks existed."""
        if not isinstance(data, Mapping) or "blocks" in data:
            return data
        rest = dict(data)
        if "packed" in rest:
            return rest | {"blocks": unpacked(rest.pop("packed"))}
        if "text" not in rest:
            return rest
        lines = _LINES.validate_python(rest.pop("lines", ()))
        source = Source.OCR if lines else Source.MODEL
        return rest | {"blocks": plain_blocks(rest.pop("text"), lines, source=source)}

    @property
    def text(self) -> str:
        """Text of the blocks without barcodes: blank lines between blocks, tabs between the cells of a table's row."""
        return text_of(self.blocks)

    @property
    def source(self) -> Source | None:
        """Source of the text: `both` if blocks differ; None without text."""
        sources = {block.source for block in self.blocks if block.kind is not BlockKind.BARCODE}
        return next(iter(sources)) if len(sources) == 1 else Source.BOTH if sources else None

    @property
    def lines(self) -> tuple[Line, ...]:
        """The blocks' lines, in reading order; empty if the engine reports no places."""
        return tuple(line for block in self.blocks for line in block.lines)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, in reading order."""
        return tuple(block.table for block in self.blocks if block.table)

    @property
    def markdown(self) -> str:
        """The blocks as Markdown, with Markdown tables."""
        return markdown_of(self.blocks)

    @property
    def html(self) -> str:
        """The blocks as a sequence of HTML elements."""
        return html_of(self.blocks)

    def stored_json(self) -> str:
        """Return compact JSON with each text once, and words as numbers."""
        page = self.model_dump(mode="json", exclude={"blocks"}) | {"packed": packed(self.blocks)}
        return json.dumps(page, ensure_ascii=False, separators=(",", ":"))

    def fields_as(self, model: type[M]) -> M | None:
        """Return the fields as an instance of the model that `fields=` was given, or None without fields.

        Another model may raise `pydantic.ValidationError`. Its text does not quote the page; its `errors()` contain the
        values.
        """
        return _as_model(self.fields, model)


def plain(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored result in the form of its JSON Schema."""
    rest = dict(stored)
    return rest | {"blocks": unpacked(rest.pop("packed"))} if "packed" in rest else stored


def _as_model(fields: dict[str, Any] | None, model: type[M]) -> M | None:
    try:
        return None if fields is None else model.model_validate(fields)
    except ValidationError as error:
        details = cast("list[InitErrorDetails]", error.errors(include_url=False))
        raise ValidationError.from_exception_data(error.title, details, hide_input=True) from None


class PageFailure(Stored):
    """A page that could not be read, with the reason."""

    number: int
    failure: Failure


class Document(Stored):
    """The result of `ReadDocument`."""

    pages: tuple[Page, ...]
    """Pages that were read, in document order."""
    failed: tuple[PageFailure, ...] = ()
    """Pages that could not be read: empty unless the job is `partial`. A cancelled page is in neither list."""

    @property
    def text(self) -> str:
        """The pages' text, with a form feed between pages, as plain-text tools expect."""
        return "\f".join(page.text for page in self.pages)

    @property
    def markdown(self) -> str:
        """The pages' Markdown, with a rule between pages."""
        return "\n\n---\n\n".join(page.markdown for page in self.pages)

    @property
    def html(self) -> str:
        """The pages as HTML sections."""
        return "\n".join(f'<section id="page_{page.number}">\n{page.html}\n</section>' for page in self.pages)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of all pages, in reading order."""
        return tuple(table for page in self.pages for table in page.tables)

    @property
    def attachments(self) -> int:
        """Least number of files that are attached to the document and were not read."""
        return max((page.attachments for page in self.pages), default=0)

    @property
    def fields(self) -> dict[str, Any] | None:
        """The pages' extracted fields, merged into one object by the rules of the schema; None if no page has any."""
        return self._merged[0]

    @property
    def grounding(self) -> tuple[Grounding, ...]:
        """The pages, places and witness of each leaf of `fields`, and the values of other pages that differ.

        A list that lacks rows has a leaf with the list's path, whose `lacking` names the pages with missing rows.
        """
        return self._merged[1]

    @cached_property
    def _merged(self) -> tuple[dict[str, Any] | None, tuple[Grounding, ...]]:
        filled = [page for page in self.pages if page.fields is not None]
        rules = next((page.merge for page in filled), {})
        value, leaves = merged([(page.number, page.fields or {}, page.grounding) for page in filled], rules)
        missing = {
            page.number: [one.text for one in page.doubts if one.reason is DoubtReason.MISSING_FIELDS]
            for page in self.pages
        }
        if not filled and not any(missing.values()):
            return value, leaves  # no fields were requested
        known: dict[int, dict[str, Any] | None] = {
            page.number: page.fields for page in self.pages if not page.blank
        }
        known |= {page.number: None for page in self.failed}
        return value, (*leaves, *lacking(value, dict(sorted(known.items())), missing))

    def fields_as(self, model: type[M]) -> M | None:
        """Return the fields as a pydantic model, like `Page.fields_as`."""
        return _as_model(self.fields, model)

    @property
    def revision(self) -> int:
        """Number of the last revision of the pages; 0 if never revised."""
        return max((page.revision.number for page in self.pages if page.revision), default=0)

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all pages."""
        return sum((page.usage for page in self.pages), TokenUsage())


class BundledDocument(Document):
    """A document of a bundle: its pages, with their numbers in the bundle."""

    part: DocumentPart


class Segment(Stored):
    """The caption of one segment of a video."""

    number: int = Field(ge=1)
    """Number of the segment, from 1, in order of time."""
    start: timedelta
    end: timedelta
    text: str
    verdict: Verdict
    frames: int
    """Number of frames taken from the video. If `shrunk` is set, the engine saw fewer or smaller ones."""
    width: int
    height: int
    """Height of the frames in pixels."""
    damaged: bool = False
    """Whether the file ended within the segment, so that fewer frames than requested were seen."""
    engine: str
    shrunk: Shrunk | None = None
    usage: TokenUsage = TokenUsage.model_construct()
    timings: Timings = Timings.model_construct()
    cached_from: CachedFrom | None = None
    """Set if the result was reused, because the same frames had been captioned before in the same way."""


class SegmentFailure(Stored):
    """A segment that could not be captioned, with the reason."""

    number: int
    failure: Failure


class Summary(Stored):
    """A summary of the video, from the captions of its segments."""

    text: str
    verdict: Verdict
    engine: str
    usage: TokenUsage = TokenUsage.model_construct()
    timings: Timings = Timings.model_construct()
    cached_from: CachedFrom | None = None
    """Set if the result was reused, because the same captions had been summarised before in the same way."""


class Captions(Stored):
    """The result of `CaptionVideo`."""

    segments: tuple[Segment, ...]
    """Segments that were captioned, in order of time."""
    failed: tuple[SegmentFailure, ...] = ()
    """Segments that could not be captioned: empty unless the job is `partial`."""
    summary: Summary | None = None
    """None for a video of one segment, or if the summary failed."""

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all segments and of the summary."""
        spent = [segment.usage for segment in self.segments]
        return sum([*spent, self.summary.usage] if self.summary else spent, TokenUsage())
