"""Results as text files: plain, Markdown, HTML, fields as JSON lines, hOCR, and captions as subtitles.

The files name the missing parts of partial results, in their place. hOCR has version 1.2
(https://kba.github.io/hocr-spec/1.2/). Subtitles are WebVTT (https://www.w3.org/TR/webvtt1/) and SubRip,
which has no written standard.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from html import escape
from importlib.metadata import version
from itertools import groupby
from typing import Any

from pecia.review.layout import tokens_of
from pecia_schemas.blocks import Block, BlockKind, Box, Line, Word
from pecia_schemas.rendering import escaped
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure

_HTML_HEAD = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<title>Recognised text</title>
<style>table { border-collapse: collapse } td { border: 1px solid; padding: 0 .5em } .list { list-style: none }</style>
</head>
<body>
"""
_MILLISECOND = timedelta(milliseconds=1)
_BREAKS = re.compile(r"(?:\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])\s*")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_ARROW = re.compile("(?<!-)-{2,}>")
_TAG = re.compile(r"<(?=[/A-Za-z])")


def lack_of(one: PageFailure | SegmentFailure) -> str:
    """Return a sentence in place of a page or segment that could not be read."""
    name = "Page" if isinstance(one, PageFailure) else "Segment"
    return f"{name} {one.number} is missing: {one.failure.code}."


def every_page(document: Document) -> list[Page | PageFailure]:
    """Return the pages and the missing ones, in document order."""
    return sorted([*document.pages, *document.failed], key=lambda one: one.number)


def every_segment(captions: Captions) -> list[Segment | SegmentFailure]:
    """Return the segments and the missing ones, in order of time."""
    return sorted([*captions.segments, *captions.failed], key=lambda one: one.number)


def plain(document: Document) -> str:
    """Return the pages' text with a form feed between pages, as plain-text tools expect."""
    texts = [
        f"[{lack_of(one)}]" if isinstance(one, PageFailure) else one.text.replace("\f", "\n")
        for one in every_page(document)
    ]
    return "\f".join(text if not text or text.endswith("\n") else f"{text}\n" for text in texts)


def plain_captions(captions: Captions) -> str:
    """Return one paragraph for each segment under its times, and the summary at the end."""
    paragraphs = [
        f"[{lack_of(one)}]\n"
        if isinstance(one, SegmentFailure)
        else f"[{_short(one.start)} - {_short(one.end)}]\n{one.text}\n"
        for one in every_segment(captions)
    ]
    if captions.summary:
        paragraphs.append(f"[summary]\n{captions.summary.text}\n")
    return "\n".join(paragraphs)


def markdown(document: Document) -> str:
    """Return the pages under comments with their numbers, with a thematic break in between. No headings are added."""

    def written(one: Page | PageFailure) -> str:
        if isinstance(one, PageFailure):
            return f"<!-- page {one.number} -->\n\n> {lack_of(one)}\n"
        text = one.markdown
        return f"<!-- page {one.number}: {one.verdict} -->\n" + (f"\n{text}\n" if text else "")

    return "\n---\n\n".join(map(written, every_page(document)))


def markdown_captions(captions: Captions) -> str:
    """Return the summary, then each segment under its times."""
    parts = [f"## Summary\n\n{escaped(captions.summary.text)}\n"] if captions.summary else []
    parts += [
        f"> {lack_of(one)}\n"
        if isinstance(one, SegmentFailure)
        else f"## {_short(one.start)} – {_short(one.end)}\n\n{escaped(one.text)}\n"  # noqa: RUF001  a range
        for one in every_segment(captions)
    ]
    return "\n".join(parts)


def html(document: Document) -> str:
    """Return the pages with their numbers and verdicts, and the missing ones."""

    def section(one: Page | PageFailure) -> str:
        if isinstance(one, PageFailure):
            return f'<section id="page_{one.number}" class="missing">\n<p>{lack_of(one)}</p>\n</section>\n'
        return f'<section id="page_{one.number}" class="{one.verdict}">\n{one.html}\n</section>\n'

    return f"{_HTML_HEAD}{''.join(map(section, every_page(document)))}</body>\n</html>\n"


def fields(document: Document) -> str:
    """Return the extracted fields, one JSON object on a line for each page."""
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines(document))


def lines(document: Document) -> Iterator[dict[str, Any]]:
    """Yield the pages' fields, None for a page without, and the failure code of a missing page."""
    for one in every_page(document):
        if isinstance(one, PageFailure):
            yield {"page": one.number, "fields": None, "failure": one.failure.code}
        else:
            yield {"page": one.number, "fields": one.fields, "verdict": one.verdict}


def _short(moment: timedelta) -> str:
    """Return hours, minutes and seconds, as in `0:01:30`."""
    hours, minutes, seconds = _clock(round(moment.total_seconds()))
    return f"{hours}:{minutes:02}:{seconds:02}"


def _clock(seconds: int) -> tuple[int, int, int]:
    minutes, seconds = divmod(seconds, 60)
    return (*divmod(minutes, 60), seconds)


def webvtt(captions: Captions) -> str:
    """Return WebVTT: one cue for each segment; notes contain the summary and name the missing parts."""
    blocks = ["WEBVTT"]
    if captions.summary:
        blocks.append(_note(captions.summary.text))
    for one in every_segment(captions):
        if isinstance(one, SegmentFailure):
            blocks.append(_note(lack_of(one)))
        elif text := _cue(one.text):
            blocks.append(f"{one.number}\n{_times(one, '.')}\n{escape(text, quote=False)}")
        else:
            blocks.append(_note(f"Segment {one.number} has no caption: {one.verdict}."))
    return "\n\n".join(blocks) + "\n"


def srt(captions: Captions) -> str:
    """Return SubRip: one cue for each segment that has a caption. The format has no place for other text."""
    cues: list[str] = []
    for segment in captions.segments:
        if text := _cue(segment.text):
            # SubRip has no escapes: look-alikes replace text that a player could take for a time or a tag.
            text = _TAG.sub("\u2039", _ARROW.sub("->", text)).replace("{\\", "(\\")
            cues.append(f"{len(cues) + 1}\n{_times(segment, ',')}\n{text}\n")
    return "\n".join(cues)


def _times(segment: Segment, point: str) -> str:
    """Return the time line of a cue, at least a millisecond long, because players drop shorter cues."""
    start, end = round(segment.start / _MILLISECOND), round(segment.end / _MILLISECOND)
    moments = [(*_clock(one // 1000), one % 1000) for one in (start, max(end, start + 1))]
    return " --> ".join(f"{h:02}:{m:02}:{s:02}{point}{ms:03}" for h, m, s, ms in moments)


def _cue(text: str) -> str:
    """Return a caption without empty lines, because an empty line ends a cue."""
    return "\n".join(_lines(text))


def _lines(text: str) -> Iterator[str]:
    for line in _BREAKS.split(text):
        if cleaned := _CONTROLS.sub("", line).strip():
            yield cleaned


def _note(text: str) -> str:
    return "\n".join(["NOTE", *(_ARROW.sub("->", line) for line in _lines(text))])


def without_place(block: Block) -> Iterator[tuple[int, str]]:
    """Yield the block's text that is in none of its lines, each piece with the number of lines above it.

    That is all text of a block without lines; otherwise text that a model wrote and its witness did not find.
    """
    if "".join(block.text.split()) == "".join("".join(line.text.split()) for line in block.lines):
        return
    above = 0
    for line, run in groupby(tokens_of(block), key=lambda token: token.line):
        if line is None:
            tokens = list(run)
            yield above, block.text[tokens[0].start : tokens[-1].end]
        else:
            above = line + 1


_HOCR_HEAD = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<title>Recognised text</title>
<meta name="ocr-system" content="{system}"/>
<meta name="ocr-capabilities" content="ocr_page {areas} ocr_par ocr_line ocrx_word"/>
<meta name="ocr-number-of-pages" content="{pages}"/>
{missing}<style>.ocr_line {{ display: block }} .text {{ white-space: pre-wrap }}</style>
</head>
<body>
"""
_AREAS = {
    BlockKind.TABLE: "ocr_table",
    BlockKind.HEADER: "ocr_header",
    BlockKind.FOOTER: "ocr_footer",
    BlockKind.PAGE_NUMBER: "ocr_pageno",
}
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def hocr(document: Document) -> str:
    """Return XHTML for any XML parser, with the places of blocks, lines and words."""
    lacking = ", ".join(f"{one.number} {one.failure.code}" for one in document.failed)
    head = _HOCR_HEAD.format(
        system=f"pecia {version('pecia')}",
        areas=" ".join(["ocr_carea", *_AREAS.values()]),
        pages=len(document.pages),
        missing=f'<meta name="x-pecia-missing" content="{lacking}"/>\n' if lacking else "",
    )
    written = [head]
    for page in every_page(document):
        if isinstance(page, PageFailure):
            written.append(f"<!-- {lack_of(page)} -->\n")
            continue
        sheet = Box(left=0, top=0, right=page.width, bottom=page.height)
        title = f"{_bbox(sheet)}; ppageno {page.number - 1}; x_verdict {page.verdict}"
        written.append(f'<div class="ocr_page" id="page_{page.number}" title="{title}">\n')
        for number, block in enumerate(page.blocks, 1):
            written += _block(block, block.box or sheet, f"{page.number}_{number}")
        written.append("</div>\n")
    return "".join([*written, "</body>\n</html>\n"])


def _block(block: Block, box: Box, name: str) -> Iterator[str]:
    yield f'<div class="{_AREAS.get(block.kind, "ocr_carea")}" id="block_{name}" title="{_bbox(box)}">\n'
    if block.lines:
        yield f'<p class="ocr_par" id="par_{name}" title="{_bbox(box)}">\n'
        beside: defaultdict[int, str] = defaultdict(str)
        for above, unplaced in without_place(block):
            beside[above] += f'<span class="text">{_escaped(unplaced)}</span>\n'
        for number, line in enumerate(block.lines, 1):
            yield beside[number - 1]
            text = _escaped(line.text)
            if line.words and line.has_every_word:
                text, rest = "", line.text
                for word in line.words:  # keeps the line's white space between words
                    before, found, after = rest.partition(word.text)
                    if found and not before.strip():
                        text, rest = text + before, after
                    elif text:
                        text += " "
                    text += f'<span class="ocrx_word" title="{_title(word)}">{_escaped(word.text)}</span>'
            title = f'id="line_{name}_{number}" title="{_title(line)}"'
            yield f'<span class="ocr_line" {title}>{text}</span>\n'
        yield f"{beside[len(block.lines)]}</p>\n"
    elif block.text:
        yield f'<p class="ocr_par text" id="par_{name}" title="{_bbox(box)}">{_escaped(block.text)}</p>\n'
    yield "</div>\n"


def _title(one: Line | Word) -> str:
    sure = "" if one.confidence is None else f"; x_wconf {round(100 * one.confidence)}"
    return f"{_bbox(one.box)}{sure}"


def _bbox(box: Box) -> str:
    return f"bbox {box.left} {box.top} {box.right} {box.bottom}"


def _escaped(text: str) -> str:
    """Return text escaped for XML. Characters that XML cannot contain become U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), quote=False).replace("\r", "&#13;")
