"""hOCR 1.2 (https://kba.github.io/hocr-spec/1.2/) as XHTML that any XML parser reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib.metadata import version
from itertools import chain

from pecia.formats.text import every_page, lack_of
from pecia_schemas.blocks import Block, BlockKind, Box, Line, Word
from pecia_schemas.results import Document, Page, PageFailure

_HEAD = """\
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


def of_document(document: Document) -> str:
    """Return the pages with the places of blocks, lines and words; a block without lines is one paragraph."""
    lacking = ", ".join(f"{one.number} {one.failure.code}" for one in document.failed)
    head = _HEAD.format(
        system=f"pecia {version('pecia')}",
        areas=" ".join(["ocr_carea", *_AREAS.values()]),
        pages=len(document.pages),
        missing=f'<meta name="x-pecia-missing" content="{lacking}"/>\n' if lacking else "",
    )
    pages = (
        [f"<!-- {lack_of(one)} -->\n"] if isinstance(one, PageFailure) else _page(one)
        for one in every_page(document)
    )
    return "".join([head, *chain.from_iterable(pages), "</body>\n</html>\n"])


def _page(page: Page) -> Iterator[str]:
    whole = Box(left=0, top=0, right=page.width, bottom=page.height)
    title = f"{_bbox(whole)}; ppageno {page.number - 1}; x_verdict {page.verdict}"
    yield f'<div class="ocr_page" id="page_{page.number}" title="{title}">\n'
    for number, block in enumerate(page.blocks, 1):
        yield from _block(block, block.box or whole, f"{page.number}_{number}")
    yield "</div>\n"


def _block(block: Block, box: Box, name: str) -> Iterator[str]:
    yield f'<div class="{_AREAS.get(block.kind, "ocr_carea")}" id="block_{name}" title="{_bbox(box)}">\n'
    if block.lines:
        yield f'<p class="ocr_par" id="par_{name}" title="{_bbox(box)}">\n'
        for number, line in enumerate(block.lines, 1):
            yield _line(line, f"line_{name}_{number}")
        yield "</p>\n"
    elif block.text:
        yield f'<p class="ocr_par text" id="par_{name}" title="{_bbox(box)}">{_escaped(block.text)}</p>\n'
    yield "</div>\n"


def _line(line: Line, name: str) -> str:
    content = "".join(_words(line)) if line.words and line.has_every_word else _escaped(line.text)
    return f'<span class="ocr_line" id="{name}" title="{_title(line)}">{content}</span>\n'


def _words(line: Line) -> Iterator[str]:
    """Yield the words, with as much white space between them as the line has."""
    rest = line.text
    for number, word in enumerate(line.words):
        before, found, after = rest.partition(word.text)
        gap, rest = (before, after) if found and not before.strip() else (" " * bool(number), rest)
        yield f'{gap}<span class="ocrx_word" title="{_title(word)}">{_escaped(word.text)}</span>'


def _title(one: Line | Word) -> str:
    sure = "" if one.confidence is None else f"; x_wconf {round(100 * one.confidence)}"
    return f"{_bbox(one.box)}{sure}"


def _bbox(box: Box) -> str:
    return f"bbox {box.left} {box.top} {box.right} {box.bottom}"


def _escaped(text: str) -> str:
    """Return text as XML holds it; what XML cannot hold becomes U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), quote=False).replace("\r", "&#13;")
