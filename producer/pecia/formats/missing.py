"""What a partial result lacks, in the words that all forms use."""

from __future__ import annotations

from collections.abc import Iterator

from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure


def page(lacking: PageFailure) -> str:
    """Return the sentence that stands for a page that could not be read."""
    return f"Page {lacking.number} is missing: {lacking.failure.code}."


def segment(lacking: SegmentFailure) -> str:
    """Return the sentence that stands for a segment that could not be captioned."""
    return f"Segment {lacking.number} is missing: {lacking.failure.code}."


def pages(document: Document) -> Iterator[Page | PageFailure]:
    """Yield the pages and what is missing, in the document's order."""
    pages: list[Page | PageFailure] = [*document.pages, *document.failed]
    yield from sorted(pages, key=lambda one: one.number)


def segments(captions: Captions) -> Iterator[Segment | SegmentFailure]:
    """Yield the segments and what is missing, in the order of time."""
    segments: list[Segment | SegmentFailure] = [*captions.segments, *captions.failed]
    yield from sorted(segments, key=lambda one: one.number)
