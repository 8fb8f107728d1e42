"""Plain text."""

from __future__ import annotations

from pecia.formats import missing, subtitles
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure


def of_document(document: Document) -> str:
    """Return the pages' text, a form feed between pages as plain-text tools expect."""
    return "\f".join(_page(one) for one in missing.pages(document))


def _page(one: Page | PageFailure) -> str:
    text = f"[{missing.page(one)}]" if isinstance(one, PageFailure) else one.text.replace("\f", "\n")
    return text if not text or text.endswith("\n") else f"{text}\n"


def of_captions(captions: Captions) -> str:
    """Return a paragraph for each segment under its times, and the summary at the end."""
    paragraphs = [_segment(one) for one in missing.segments(captions)]
    if captions.summary:
        paragraphs.append(f"[summary]\n{captions.summary.text}\n")
    return "\n".join(paragraphs)


def _segment(one: Segment | SegmentFailure) -> str:
    if isinstance(one, SegmentFailure):
        return f"[{missing.segment(one)}]\n"
    return f"[{subtitles.short(one.start)} - {subtitles.short(one.end)}]\n{one.text}\n"
