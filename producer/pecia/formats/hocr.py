"""hOCR 1.2 (https://kba.github.io/hocr-spec/1.2/) as XHTML that any XML parser reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib.metadata import version

from pecia.formats import missing
from pecia_schemas.blocks import Box, Line
from pecia_schemas.results import Document, Page, PageFailure

_HEAD = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<title>Recognised text</title>
<meta name="ocr-system" content="{system}"/>
<meta name="ocr-capabilities" content="ocr_page ocr_par ocr_line"/>
<meta name="ocr-number-of-pages" content="{pages}"/>
{missing}<style>.ocr_line {{ display: block }} .ocr_par {{ white-space: pre-wrap }}</style>
</head>
<body>
"""
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def of_document(document: Document) -> str:
    """Return the pages with the place and confidence of each line; a page whose lines nobody knows is one paragraph."""
    return "".join(_written(document))


def _written(document: Document) -> Iterator[str]:
    lacking = ", ".join(f"{one.number} {one.failure.code}" for one in document.failed)
    yield _HEAD.format(
        system=f"pecia {version('pecia')}",
        pages=len(document.pages),
        missing=f'<meta name="x-pecia-missing" content="{lacking}"/>\n' if lacking else "",
    )
    for one in missing.pages(document):
        if isinstance(one, PageFailure):
            yield f"<!-- {missing.page(one)} -->\n"
        else:
            yield from _page(one)
    yield "</body>\n</html>\n"


def _page(page: Page) -> Iterator[str]:
    whole = _bbox(Box(left=0, top=0, right=page.width, bottom=page.height))
    title = f"{whole}; ppageno {page.number - 1}; x_verdict {page.verdict}"
    yield f'<div class="ocr_page" id="page_{page.number}" title="{title}">\n'
    for number, line in enumerate(page.lines, 1):
        yield _line(line, f"line_{page.number}_{number}")
    if not page.lines and page.text:
        yield f'<p class="ocr_par" id="par_{page.number}" title="{whole}">{_escaped(page.text)}</p>\n'
    yield "</div>\n"


def _line(line: Line, name: str) -> str:
    title = _bbox(line.box)
    if line.confidence is not None:
        title += f"; x_wconf {round(100 * line.confidence)}"
    return f'<span class="ocr_line" id="{name}" title="{title}">{_escaped(line.text)}</span>\n'


def _bbox(box: Box) -> str:
    return f"bbox {box.left} {box.top} {box.right} {box.bottom}"


def _escaped(text: str) -> str:
    """Return text as XML holds it; what XML cannot hold becomes U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), quote=False).replace("\r", "&#13;")
