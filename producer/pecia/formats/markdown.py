"""Markdown files: what was read, under comments that say where it was."""

from __future__ import annotations

from pecia.formats import missing, subtitles
from pecia_schemas.rendering import escaped
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure


def of_document(document: Document) -> str:
    """Return the pages under comments with their numbers, a thematic break between them. No heading is made up."""
    return "\n---\n\n".join(_page(one) for one in missing.pages(document))


def _page(one: Page | PageFailure) -> str:
    if isinstance(one, PageFailure):
        return f"<!-- page {one.number} -->\n\n> {missing.page(one)}\n"
    written = one.markdown
    return f"<!-- page {one.number}: {one.verdict} -->\n" + (f"\n{written}\n" if written else "")


def of_captions(captions: Captions) -> str:
    """Return the summary, then each segment under its times."""
    parts = [f"## Summary\n\n{escaped(captions.summary.text)}\n"] if captions.summary else []
    parts += [_segment(one) for one in missing.segments(captions)]
    return "\n".join(parts)


def _segment(one: Segment | SegmentFailure) -> str:
    if isinstance(one, SegmentFailure):
        return f"> {missing.segment(one)}\n"
    return f"## {subtitles.short(one.start)} – {subtitles.short(one.end)}\n\n{escaped(one.text)}\n"  # noqa: RUF001  a range
