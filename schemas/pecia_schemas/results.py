"""What a finished job returns: a document of pages, or the captions of a video."""

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
    """How far a page's text can be trusted. Declared from the best to the worst."""

    OK = "ok"
    BLANK = "blank"
    REVIEW = "review"
    """A doubt is on a number, unit, dose, date or name."""
    LOW_CONFIDENCE = "low_confidence"
    INCOMPLETE = "incomplete"
    """There is ink that looks like text, and it was not read."""
    TRUNCATED = "truncated"
    REPETITION = "repetition"
    UNREADABLE = "unreadable"

    @property
    def needs_review(self) -> bool:
        """Whether a person should look at the page."""
        return self not in (Verdict.OK, Verdict.BLANK)

    @property
    def rank(self) -> int:
        """A number that is larger the better the verdict."""
        return -list(Verdict).index(self)

    @staticmethod
    def worst(*verdicts: Verdict) -> Verdict:
        """Return the worst of these."""
        return min(verdicts, key=lambda verdict: verdict.rank)


VerdictName = Literal[
    "ok", "blank", "review", "low_confidence", "incomplete", "truncated", "repetition", "unreadable"
]
NEEDS_REVIEW: Final = "verdict NOT IN ('ok', 'blank')"
"""SQL: the same of a part, as its index has it."""


class TokenUsage(Stored):
    """Tokens the engine spent on a part, or the sum over parts."""

    prompt: int = 0
    image: int = 0
    """Of the prompt, those that are pixels."""
    cached: int = 0
    """Of the prompt, those that a cache held already."""
    output: int = 0
    wasted: int = 0
    """Spent on attempts whose text was thrown away."""

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both."""
        names = type(self).model_fields
        return TokenUsage(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Timings(Stored):
    """Where a part's time went, in seconds."""

    queued: float = 0.0
    decode: float = 0.0
    engine: float = 0.0
    first_token: float | None = None


class Change(StrEnum):
    """What was different when a page was read again."""

    TEMPERATURE = "temperature"
    """Words were picked more freely."""
    PENALTY = "penalty"
    """Words that had been written already were less likely."""
    SMALLER = "smaller"
    """The picture was smaller."""
    FALLBACK = "fallback"
    """Another engine read it."""


class ReadingAttempt(Stored):
    """One reading of a page that was thrown away for a better one."""

    engine: str
    verdict: Verdict
    """For an answer to `fields=`: `unreadable` if it came to its end but does not follow the schema."""
    change: Change | None = None
    """What was different from the first; None: it was the first."""
    fields: bool = False
    """Whether it was an answer to `fields=`, not the page's text."""
    usage: TokenUsage = TokenUsage.model_construct()


class Shrunk(Stored):
    """The size at which the engine saw a picture, if it was smaller than the picture is."""

    width: int
    height: int


class CachedFrom(Stored):
    """The earlier reading that is the result, so that no engine was asked; `usage` and `timings.engine` are 0 then."""

    part: UUID
    """Whose reading it was; it may have been erased since."""
    read_at: datetime
    """When it was read, by the database's clock."""
    usage: TokenUsage = TokenUsage.model_construct()
    """What the engine spent on it then."""


class Correction(Stored):
    """A person's text in place of the engine's."""

    place: str
    """JSON pointer into the page as it was before: `/blocks/3`, `/blocks/3/table/cells/7`, `/fields/total`."""
    before: Text
    """Empty: it was missing."""
    after: Text
    """Empty: it is not on the page."""
    box: Box | None = None


class Revision(Stored):
    """A review of a page: who, when, what."""

    number: int = Field(ge=1)
    """Counted from 1 through all pages of the job."""
    by: str
    """The client's name, as the audit trail has it."""
    at: datetime
    correction: Correction | None = None
    """None: doubts were dropped, and nothing written."""
    accepted: int = 0
    """Doubts that were looked at and dropped, as the text is right."""
    checked: bool = False
    """Whether a person has compared every line of the page with its picture, in this revision or before."""


class Page(Stored):
    """One page as it was read, or revised."""

    number: int = Field(ge=1)
    """Counted from 1, as in the document."""
    blocks: tuple[Block, ...] = ()
    """All that was read, in reading order."""
    verdict: Verdict
    coverage: float | None = Field(default=None, ge=0, le=1)
    """Share of the ink that looks like text which was read; None: it was not measured."""
    doubts: tuple[Doubt, ...] = ()
    """Places that a person should look at."""
    confidence: Confidence | None = None
    """Mean of the lines' confidence, weighted by length; None: the source has none."""
    width: int
    height: int
    """Pixels of the page as it was read, upright, level and scaled down, which boxes refer to."""
    blank: bool = False
    """Nothing is printed or written on it, so no engine was asked."""
    attachments: int = 0
    """Files attached to the document, or by a note to the page, of which none is read."""
    rotation: int = 0
    """Degrees, clockwise, by which the page was turned to stand upright: 0, 90, 180 or 270. What the file itself says
    of that (EXIF, /Rotate) is not counted."""
    skew: float = 0.0
    """Degrees, clockwise, by which it was then turned to make its lines level: -10 to 10; 0 if they were, or in
    doubt."""
    scale: float = Field(default=1.0, gt=0, le=1)
    """By how much its sides were then scaled down: 1 if they were not."""
    engine: str
    fields: dict[str, Any] | None = None
    """What was asked for with `fields=`; None if nothing was, or if no answer followed the schema."""
    grounding: tuple[Grounding, ...] = ()
    """Of each leaf of `fields` where it stands and who else read it so; empty without a witness."""
    merge: dict[str, MergeRule] = Field(default_factory=dict)
    """How the fields of a document's pages become one object, by JSON pointer: what its schema says with `x-merge`."""
    witness: Witnessed | None = None
    """What an independent reading says of this one; None: there was none."""
    fields_text: str | None = None
    """The best answer to `fields=` as it was written, if none followed the schema."""
    shrunk: Shrunk | None = None
    """Set if the page was read at a smaller size: it was more than the engine can take, or `change` says so."""
    change: Change | None = None
    """How the reading that was kept differed from the first; None: it was the first."""
    attempts: tuple[ReadingAttempt, ...] = ()
    """All other readings, in order; empty if the first was good."""
    usage: TokenUsage = TokenUsage.model_construct()
    """Of all readings; `wasted` holds those of `attempts`."""
    timings: Timings = Timings.model_construct()
    cached_from: CachedFrom | None = None
    """Set if the same page had been read before, in the same way."""
    revision: Revision | None = None
    """The last review; None: it is as it was read."""

    @model_validator(mode="before")
    @classmethod
    def _as_stored(cls, data: Any) -> Any:
        """Take the stored form of blocks: packed ones, or `text` and `lines` from before pages had blocks."""
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
        """The blocks' text, a blank line between blocks, a tab between the cells of a table's row; without barcodes."""
        return text_of(self.blocks)

    @property
    def source(self) -> Source | None:
        """Where the text comes from: `both` if blocks differ; None: there is no text."""
        sources = {block.source for block in self.blocks if block.kind is not BlockKind.BARCODE}
        return next(iter(sources)) if len(sources) == 1 else Source.BOTH if sources else None

    @property
    def lines(self) -> tuple[Line, ...]:
        """The blocks' lines, in reading order; empty if the engine does not report where text stands."""
        return tuple(line for block in self.blocks for line in block.lines)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, in reading order."""
        return tuple(block.table for block in self.blocks if block.table)

    @property
    def markdown(self) -> str:
        """The blocks as Markdown, tables as its tables."""
        return markdown_of(self.blocks)

    @property
    def html(self) -> str:
        """The blocks as HTML elements, one after the other."""
        return html_of(self.blocks)

    def stored_json(self) -> str:
        """Return JSON with each text once, and words as numbers."""
        page = self.model_dump(mode="json", exclude={"blocks"}) | {"packed": packed(self.blocks)}
        return json.dumps(page, ensure_ascii=False, separators=(",", ":"))

    def fields_as(self, model: type[M]) -> M | None:
        """Return the fields as the model that `fields=` was given; None if there are none.

        Raises `pydantic.ValidationError` if they are not enough for another model. Its text does not quote the page;
        its `errors()` hold the values.
        """
        return _as_model(self.fields, model)


def plain(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored result as its JSON Schema has it."""
    rest = dict(stored)
    return rest | {"blocks": unpacked(rest.pop("packed"))} if "packed" in rest else stored


def _as_model(fields: dict[str, Any] | None, model: type[M]) -> M | None:
    try:
        return None if fields is None else model.model_validate(fields)
    except ValidationError as error:
        details = cast("list[InitErrorDetails]", error.errors(include_url=False))
        raise ValidationError.from_exception_data(error.title, details, hide_input=True) from None


class PageFailure(Stored):
    """A page that could not be read, and why."""

    number: int
    failure: Failure


class Document(Stored):
    """What `ReadDocument` returns."""

    pages: tuple[Page, ...]
    """In the document's order, those that were read."""
    failed: tuple[PageFailure, ...] = ()
    """Those that were not: empty unless the job is `partial`. A cancelled page is in neither."""

    @property
    def text(self) -> str:
        """The pages' text, a form feed between pages as plain-text tools expect."""
        return "\f".join(page.text for page in self.pages)

    @property
    def markdown(self) -> str:
        """The pages' Markdown, a rule between pages."""
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
        """How many files at least are attached to the document and were not read."""
        return max((page.attachments for page in self.pages), default=0)

    @property
    def fields(self) -> dict[str, Any] | None:
        """What the pages filled of `fields=`, as one object by the rules of its schema; None if no page filled any."""
        return self._merged[0]

    @property
    def grounding(self) -> tuple[Grounding, ...]:
        """Of each leaf of `fields` the pages, places and witness, and what other pages have in its place.

        For a list that lacks rows, a leaf with the list's path, and in `lacking` the pages whose rows are missing.
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
            return value, leaves  # none were asked for
        known: dict[int, dict[str, Any] | None] = {
            page.number: page.fields for page in self.pages if not page.blank
        }
        known |= {page.number: None for page in self.failed}
        return value, (*leaves, *lacking(value, dict(sorted(known.items())), missing))

    def fields_as(self, model: type[M]) -> M | None:
        """Return the fields as a pydantic model, as `Page.fields_as` does."""
        return _as_model(self.fields, model)

    @property
    def revision(self) -> int:
        """The number of the last revision of its pages; 0: all is as it was read."""
        return max((page.revision.number for page in self.pages if page.revision), default=0)

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all pages."""
        return sum((page.usage for page in self.pages), TokenUsage())


class BundledDocument(Document):
    """A document of a bundle: the pages that it has there, numbered as there."""

    part: DocumentPart


class Segment(Stored):
    """What is seen in one stretch of a video."""

    number: int = Field(ge=1)
    """Counted from 1, in the order of time."""
    start: timedelta
    end: timedelta
    text: str
    verdict: Verdict
    frames: int
    """How many were taken from the video; the engine saw fewer, or smaller ones, if `shrunk` is set."""
    width: int
    height: int
    """Pixels of the frames."""
    damaged: bool = False
    """Whether the file broke off within the segment: fewer frames were seen than asked for."""
    engine: str
    shrunk: Shrunk | None = None
    usage: TokenUsage = TokenUsage.model_construct()
    timings: Timings = Timings.model_construct()
    cached_from: CachedFrom | None = None
    """Set if the same frames had been captioned before, in the same way."""


class SegmentFailure(Stored):
    """A segment that could not be captioned, and why."""

    number: int
    failure: Failure


class Summary(Stored):
    """A summary of the video, written from its segments' captions."""

    text: str
    verdict: Verdict
    engine: str
    usage: TokenUsage = TokenUsage.model_construct()
    timings: Timings = Timings.model_construct()
    cached_from: CachedFrom | None = None
    """Set if the same captions had been summarised before, in the same way."""


class Captions(Stored):
    """What `CaptionVideo` returns."""

    segments: tuple[Segment, ...]
    """In the order of time, those that were captioned."""
    failed: tuple[SegmentFailure, ...] = ()
    """Those that were not: empty unless the job is `partial`."""
    summary: Summary | None = None
    """None for a video of one segment, or if the summary failed."""

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all segments and of the summary."""
        spent = [segment.usage for segment in self.segments]
        return sum([*spent, self.summary.usage] if self.summary else spent, TokenUsage())
