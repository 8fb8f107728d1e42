"""Markdown (CommonMark). What a language model wrote is Markdown already; everything else is escaped."""

from __future__ import annotations

import re

from pecia.formats import clock, missing
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure

_MARKUP = re.compile(r"[\\`*\[\]<~|]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_OPENING = re.compile(r"[-+=>#]|(?P<number>\d{1,9})(?=[.)])")
_BREAK = re.compile(r"\r\n|[\n\r\v\f]")
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_SWALLOWING = re.compile(r"( {0,3})<(?=[!?]|/?(?:script|pre|style|textarea)\b)", re.IGNORECASE)
"""The beginning of a line that opens HTML which runs over blank lines, and so would hide the pages after it."""


def of_document(document: Document) -> str:
    """Return the pages under comments with their numbers, a thematic break between them. No heading is made up."""
    return "\n---\n\n".join(_page(one) for one in missing.pages(document))


def _page(one: Page | PageFailure) -> str:
    if isinstance(one, PageFailure):
        return f"<!-- page {one.number} -->\n\n> {missing.page(one)}\n"
    written = escaped(one.text) if one.lines else contained(one.text)
    return f"<!-- page {one.number}: {one.verdict} -->\n" + (f"\n{written}\n" if written else "")


def of_captions(captions: Captions) -> str:
    """Return the summary, then each segment under its times."""
    parts = [f"## Summary\n\n{escaped(captions.summary.text)}\n"] if captions.summary else []
    parts += [_segment(one) for one in missing.segments(captions)]
    return "\n".join(parts)


def _segment(one: Segment | SegmentFailure) -> str:
    if isinstance(one, SegmentFailure):
        return f"> {missing.segment(one)}\n"
    return f"## {clock.short(one.start)} – {clock.short(one.end)}\n\n{escaped(one.text)}\n"  # noqa: RUF001  a range


def escaped(text: str) -> str:
    """Return plain text as paragraphs that show it line by line, with nothing in it taken for markup."""
    lines = [_line(line) for line in _BREAK.split(text)]
    ends = [
        "\\" if line and following else "" for line, following in zip(lines, [*lines[1:], ""], strict=True)
    ]
    return "\n".join(line + end for line, end in zip(lines, ends, strict=True)).strip("\n")


def _line(line: str) -> str:
    inner = _MARKUP.sub(r"\\\g<0>", line.strip())
    opening = _OPENING.match(inner)
    if opening is None:
        return inner
    place = opening.end() if opening["number"] else 0
    return f"{inner[:place]}\\{inner[place:]}"


def contained(text: str) -> str:
    """Return Markdown that ends where it ends: a fence left open is closed, HTML that would swallow more is escaped."""
    fence, lines = "", []
    for line in text.strip("\n").splitlines():
        lines.append(line if fence else _opened(line))
        fence = _fence_after(fence, line)
    return "\n".join([*lines, fence] if fence else lines)


def _opened(line: str) -> str:
    found = _SWALLOWING.match(line)
    return f"{found[1]}&lt;{line[found.end() :]}" if found else line


def _fence_after(fence: str, line: str) -> str:
    """Return the fence that is open after a line; nothing if none is."""
    found = _FENCE.fullmatch(line)
    if found is None:
        return fence
    mark, info = found["fence"], found["info"]
    if not fence:
        return "" if mark[0] == "`" and "`" in info else mark
    return "" if mark.startswith(fence) and not info.strip() else fence
