"""Searchable PDF: the pages' pictures with their text, invisible, over them. Memory does not grow with the pages.

The library writes a file all at once, so some pages at a time become one of their own, and those files are then copied
into one, stream by stream.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final

from pikepdf import Array, Dictionary, Job, Name, Object, Pdf
from pikepdf import Page as Sheet

from pecia.formats import missing
from pecia.formats.invisible import DESCENT, EM, InvisibleFont
from pecia.formats.placing import Placed, placed
from pecia_schemas.pictures import Encoding, NoPictureError, PagePictures, Picture
from pecia_schemas.results import Document, Page, PageFailure

_AT_ONCE: Final = 16  # pages in memory
_POINTS: Final = 72  # in an inch
_A4: Final = (595.0, 842.0)
_LARGEST: Final = 14_400.0  # points; more is beyond what readers show
_INVISIBLE: Final = 3  # text rendering mode
_COLOURS: Final = {
    Encoding.RGB: Name.DeviceRGB,
    Encoding.GREY: Name.DeviceGray,
    Encoding.BILEVEL: Name.DeviceGray,
}


def write(document: Document, pictures: PagePictures, target: Path) -> None:
    """Write the document's pages, those without text too, as far as their pictures can be drawn.

    It holds nothing but what is on the pages: no name of a file, no time, no title.
    """
    pages = missing.pages(document)
    told = {
        "/Producer": f"pecia {version('pecia')}",
        "/Subject": " ".join(map(missing.page, document.failed)),
    }
    with tempfile.TemporaryDirectory(prefix="pecia-pdf-") as scratch:
        pieces: list[str] = []
        while batch := list(islice(pages, _AT_ONCE)):
            pieces.append(f"{scratch}/{len(pieces)}.pdf")
            _write_piece(batch, pictures, {} if pieces[1:] else told, pieces[-1])
        # qpdf's own joining: pikepdf's would hold all streams in memory. The first piece tells of the whole.
        Job(["pecia", pieces[0], "--pages", ".", *pieces[1:], "--", str(target.absolute())]).run()


def _write_piece(
    pages: Iterable[Page | PageFailure], pictures: PagePictures, told: Mapping[str, str], target: str
) -> None:
    font = InvisibleFont()
    with Pdf.new() as pdf:
        for page in pages:
            _add(pdf, page, _drawn(page, pictures), font)
        text = font.embed(pdf)
        for sheet in pdf.pages:
            sheet.obj.Resources.Font.Text = text
        for name, value in told.items():
            if value:
                pdf.docinfo[name] = value
        pdf.save(target)


def _drawn(page: Page | PageFailure, pictures: PagePictures) -> Picture | None:
    turned = (page.rotation, page.skew) if isinstance(page, Page) else (0, 0.0)
    try:
        return pictures(page.number, rotation=turned[0], skew=turned[1])
    except NoPictureError:
        return None


def _add(pdf: Pdf, page: Page | PageFailure, picture: Picture | None, font: InvisibleFont) -> None:
    width, height = _size(picture)
    content = bytearray()
    resources = Dictionary(Font=Dictionary())
    if picture:
        resources.XObject = Dictionary(Picture=_image(pdf, picture))
        content += f"q {width:.3f} 0 0 {height:.3f} 0 0 cm /Picture Do Q\n".encode()
    else:
        resources.Font.Note = Dictionary(Type=Name.Font, Subtype=Name.Type1, BaseFont=Name.Helvetica)
        content += f"BT /Note 12 Tf 50 {height - 60:.3f} Td ({_note(page)}) Tj ET\n".encode("ascii")
    if isinstance(page, Page):
        content += b"".join(_written(row, font) for row in placed(page, width, height))
    sheet = Dictionary(
        Type=Name.Page,
        MediaBox=Array([0, 0, round(width, 3), round(height, 3)]),
        Resources=resources,
        Contents=pdf.make_stream(bytes(content)),
    )
    pdf.pages.append(Sheet(sheet))


def _note(page: Page | PageFailure) -> str:
    """Return what a sheet without a picture shows."""
    return (
        missing.page(page)
        if isinstance(page, PageFailure)
        else f"The picture of page {page.number} is missing."
    )


def _size(picture: Picture | None) -> tuple[float, float]:
    """Return the sheet's size in points: the paper's, or about that of A4 if it is unknown."""
    if picture is None:
        return _A4
    scale = _POINTS / picture.dpi if picture.dpi else max(_A4) / max(picture.width, picture.height)
    scale = min(scale, _LARGEST / max(picture.width, picture.height))
    return picture.width * scale, picture.height * scale


def _image(pdf: Pdf, picture: Picture) -> Object:
    image = pdf.make_stream(
        picture.data,
        Type=Name.XObject,
        Subtype=Name.Image,
        Width=picture.width,
        Height=picture.height,
        ColorSpace=_COLOURS[picture.encoding],
    )
    if picture.encoding is Encoding.BILEVEL:
        image.BitsPerComponent = 1
        image.Filter = Name.CCITTFaxDecode
        image.DecodeParms = Dictionary(K=-1, Columns=picture.width, Rows=picture.height, BlackIs1=True)
    else:
        image.BitsPerComponent = 8
        image.Filter = Name.DCTDecode
    return image


def _written(row: Placed, font: InvisibleFont) -> bytes:
    """Return the operators that lay a row into its box, stretched to the box's width."""
    natural = font.width(row.text) * row.height / EM
    stretch = 100 * row.width / natural
    base = row.bottom + row.height * DESCENT / EM
    return (
        f"BT {_INVISIBLE} Tr /Text {row.height:.3f} Tf {stretch:.3f} Tz 1 0 0 1 {row.left:.3f} {base:.3f} Tm "
        f"<{font.encode(row.text).hex()}> Tj ET\n"
    ).encode("ascii")
