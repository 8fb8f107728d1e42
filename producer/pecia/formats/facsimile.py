"""One self-contained HTML file with the pages' pictures, their text beside them, and links between both."""

import io
import struct
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from PIL import Image

from pecia.formats.text import every_page, lack_of
from pecia.review.layout import shown
from pecia_schemas.media import Encoding, NoPictureError, PagePictures, Picture
from pecia_schemas.results import Document, Page, PageFailure

_HEAD: Final = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Recognised text</title>
<style>
body { font: 16px/1.45 sans-serif }
section { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem }
svg { width: 100% } rect { fill: transparent } a:hover rect, rect:target { fill: #2563eb44; stroke: #2563eb }
p { white-space: pre-wrap; margin-top: 0 } table { border-collapse: collapse } td { border: 1px solid; padding: 0 .5em }
.text a { color: inherit; text-decoration: none } a:target, .text a:hover { background: #2563eb44 }
</style>
</head>
<body>
"""


def write(document: Document, pictures: PagePictures, target: Path) -> None:
    """Write the document's pages one by one, so that memory does not grow with their number."""
    with target.open("w", encoding="utf-8", newline="") as file:
        file.write(_HEAD)
        for one in every_page(document):
            file.writelines(_page(one, pictures))
        file.write("</body>\n</html>\n")


def _page(one: Page | PageFailure, pictures: PagePictures) -> Iterator[str]:
    if isinstance(one, PageFailure):
        yield f'<section id="page_{one.number}">\n<p>{lack_of(one)}</p>\n</section>\n'
        return
    page = shown(one)
    pieces = [
        piece for block in page["blocks"] for piece in block["tokens" if "tokens" in block else "cells"]
    ]
    yield f'<section id="page_{one.number}" class="{one.verdict}">\n'
    yield f'<svg viewBox="0 0 {one.width} {one.height}" role="img" aria-label="{one.number}">\n'
    try:
        media_type, data = for_browsers(pictures(one.number, rotation=one.rotation, skew=one.skew))
        source = f"data:{media_type};base64,{b64encode(data).decode()}"
        yield f'<image width="{one.width}" height="{one.height}" href="{source}"/>\n'
    except NoPictureError:
        pass
    for piece in pieces:
        if piece["box"]:
            left, top, right, bottom = piece["box"]
            place = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
            yield f'<a href="#{_id("t", one, piece)}"><rect id="{_id("r", one, piece)}" {place}/></a>\n'
    yield '</svg>\n<div class="text">\n'
    for block in page["blocks"]:
        if "tokens" in block:
            words = (f"{escape(piece['gap'])}{_linked(one, piece)}" for piece in block["tokens"])
            yield f'<p class="{block["kind"]}">{"".join(words)}</p>\n'
        else:
            rows = [""] * block["rows"]
            for cell in block["cells"]:
                spans = f'rowspan="{cell["row_span"]}" colspan="{cell["column_span"]}"'
                rows[cell["row"]] += f"<td {spans}>{_linked(one, cell)}</td>"
            yield f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>\n"
    for field in page["fields"]:
        yield f"<p>{escape(field['path'])}: {escape(field['text'])}</p>\n"
    yield "</div>\n</section>\n"


def _linked(page: Page, piece: dict[str, str]) -> str:
    link = f' href="#{_id("r", page, piece)}"' if piece["box"] else ""
    return f'<a id="{_id("t", page, piece)}"{link}>{escape(piece["text"])}</a>'


def _id(kind: str, page: Page, piece: dict[str, str]) -> str:
    return f"{kind}{page.number}{piece['target']}"


_THUMBNAIL: Final = (200, 283)
"""Size of a thumbnail in pixels: a page in a strip is up to half as wide on screen, for displays of double density."""


def thumbnail(data: bytes) -> bytes:
    """Return a picture from `for_browsers` as a small JPEG."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", _THUMBNAIL)
        small = image.convert("L" if image.mode == "1" else "RGB")
        small.thumbnail(_THUMBNAIL)
        small.save(file, "JPEG", quality=70)
    return file.getvalue()


def for_browsers(picture: Picture) -> tuple[str, bytes]:
    """Return a picture's media type and content for browsers. Browsers cannot show fax group 4, so that becomes PNG."""
    if picture.encoding is not Encoding.BILEVEL:
        return "image/jpeg", picture.data
    # TIFF 6.0: width, height, bits, T.6, black is 0, one strip of data behind the directory
    tags = {256: picture.width, 257: picture.height, 258: 1, 259: 4, 262: 1, 278: picture.height}
    tags |= {279: len(picture.data), 273: 8 + 2 + 12 * (len(tags) + 2) + 4}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags))
    file = io.BytesIO()
    with Image.open(io.BytesIO(head + entries + bytes(4) + picture.data)) as image:
        image.save(file, "PNG")
    return "image/png", file.getvalue()
