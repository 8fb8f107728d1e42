"""Searchable PDF: the pages' pictures under invisible text. Memory does not grow with the number of pages.

The library writes a file all at once. So each group of some pages becomes a file, and these files are then copied into
one, stream by stream.
"""

import tempfile
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Final
from unicodedata import bidirectional

from bidi import get_display
from pikepdf import Array, Dictionary, Job, Name, Object, Pdf, String
from pikepdf import Page as Sheet

from pecia.formats.text import every_page, lack_of, without_place
from pecia_schemas.blocks import Box, Line
from pecia_schemas.media import Encoding, NoPictureError, PagePictures, Picture
from pecia_schemas.results import Document, Page, PageFailure

EM: Final = 1000
"""Units of glyph widths in an em."""
DESCENT: Final = 200
"""Depth of the glyph boxes below the baseline; a box is an em high in all."""

_NAME: Final = "PeciaBoxes"
_MOST: Final = 0xFFFF
_HALF, _WHOLE = 1, 2  # glyphs of `boxes.ttf`
_GLYPHS_AT_ONCE: Final = 100  # entries of one block of a CMap, by its definition
_CMAP: Final = """\
/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def
/CMapName /Adobe-Identity-UCS def
/CMapType 2 def
1 begincodespacerange
<0000> <FFFF>
endcodespacerange
{blocks}
endcmap
CMapName currentdict /CMap defineresource pop
end
end
"""


class InvisibleFont:
    """Gives each new character a code and a box: half an em wide, one em for East Asian characters.

    `boxes.ttf` contains only these two boxes: selected text has a place, and any script costs the same 600 bytes. The
    ToUnicode CMap (ISO 32000-1, 9.10.3) maps codes to characters; PDF readers search by it.
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def encode(self, text: str) -> bytes:
        """Return the text as codes. Characters after the first 65,535 different ones are left out."""
        codes = (self._codes.setdefault(character, len(self._codes) + 1) for character in text)
        return b"".join(code.to_bytes(2) for code in codes if code <= _MOST)

    def width(self, text: str) -> int:
        """Return the width of the text, in thousandths of the font size."""
        return sum(map(_width, text))

    def embed(self, pdf: Pdf) -> Object:
        """Add the font to a document, after all text has been encoded."""
        wide = [code for character, code in self._codes.items() if _width(character) == EM]
        boxes = [_WHOLE if _width(character) == EM else _HALF for character in self._codes]
        entries = [
            f"<{code:04X}> <{character.encode('utf-16-be', 'replace').hex()}>"
            for character, code in self._codes.items()
        ]
        blocks = []
        for start in range(0, len(entries), _GLYPHS_AT_ONCE):
            block = entries[start : start + _GLYPHS_AT_ONCE]
            blocks += [f"{len(block)} beginbfchar", *block, "endbfchar"]
        descendant = Dictionary(
            Type=Name.Font,
            Subtype=Name.CIDFontType2,
            BaseFont=Name("/" + _NAME),
            CIDSystemInfo=Dictionary(Registry=String("Adobe"), Ordering=String("Identity"), Supplement=0),
            FontDescriptor=pdf.make_indirect(_descriptor(pdf)),
            DW=EM // 2,
            W=Array([part for code in wide for part in (code, Array([EM]))]),
            CIDToGIDMap=pdf.make_stream(b"".join(glyph.to_bytes(2) for glyph in (0, *boxes))),
        )
        return pdf.make_indirect(
            Dictionary(
                Type=Name.Font,
                Subtype=Name.Type0,
                BaseFont=Name("/" + _NAME),
                Encoding=Name("/Identity-H"),
                DescendantFonts=Array([pdf.make_indirect(descendant)]),
                ToUnicode=pdf.make_stream(_CMAP.format(blocks="\n".join(blocks)).encode()),
            )
        )


def _width(character: str) -> int:
    return EM if unicodedata.east_asian_width(character) in "WF" else EM // 2


def _descriptor(pdf: Pdf) -> Dictionary:
    return Dictionary(
        Type=Name.FontDescriptor,
        FontName=Name("/" + _NAME),
        Flags=4,  # its characters are not the standard Latin ones
        FontBBox=Array([0, -DESCENT, EM, EM - DESCENT]),
        ItalicAngle=0,
        Ascent=EM - DESCENT,
        Descent=-DESCENT,
        CapHeight=EM - DESCENT,
        StemV=80,
        FontFile2=pdf.make_stream(files("pecia.formats").joinpath("boxes.ttf").read_bytes()),
    )


_LARGEST_FONT: Final = 12.0
_LONGEST: Final = 100  # characters of a row
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row of text with its box."""

    text: str
    left: float
    bottom: float
    width: float
    height: float


def placed(page: Page, width: float, height: float) -> Iterator[Placed]:
    """Yield the page's words at their places on a sheet of this size, or complete lines if their words are unknown.

    Text without a known place follows row by row, so that it can be searched and copied.
    """
    across, down = width / page.width, height / page.height
    for text, box in chain.from_iterable(map(_pieces, page.lines)):
        yield Placed(
            text=text,
            left=box.left * across,
            bottom=height - box.bottom * down,
            width=max(1, box.right - box.left) * across,
            height=max(1, box.bottom - box.top) * down,
        )
    # Places the rows from top to bottom in even steps, within the margins of the sheet.
    unplaced = [text for block in page.blocks for _, text in without_place(block)]
    lines = "\n".join(unplaced).splitlines()
    rows = [row for line in lines for row in textwrap.wrap(line, _LONGEST, break_on_hyphens=False)]
    margin = _MARGIN * height
    step = (height - 2 * margin) / max(1, len(rows))
    size = min(_LARGEST_FONT, step * 0.9)
    for number, row in enumerate(rows, 1):
        yield Placed(
            text=_as_drawn(row),
            left=_MARGIN * width,
            bottom=height - margin - number * step,
            width=min((1 - 2 * _MARGIN) * width, len(row) * size / 2),
            height=size,
        )


def _pieces(line: Line) -> Iterator[tuple[str, Box]]:
    """Yield words with the space after them, so that a selection has no gaps. All have the height of the line."""
    level = line.box.right - line.box.left >= line.box.bottom - line.box.top
    words = [word for word in line.words if word.text.strip()]
    if not words or not level or not line.has_every_word:
        if text := " ".join(line.text.split()):
            yield _as_drawn(text), line.box
        return
    spaced = [line.text]
    if any(map(_is_backward, line.text)):
        spaced.append(" ".join(reversed(line.text.split(" "))))
        words.sort(key=lambda word: word.box.left)
    for number, word in enumerate(words):
        left, right, space = word.box.left, word.box.right, ""
        for following in words[number + 1 : number + 2]:
            follows = any(f"{word.text} {following.text}" in text for text in spaced)
            if follows and following.box.left > left:
                right, space = following.box.left, " "
        yield _as_drawn(word.text) + space, line.box.model_copy(update={"left": left, "right": right})


def _as_drawn(text: str) -> str:
    """Return the characters of a text in visual order from left to right, which PDF readers expect."""
    return str(get_display(text, base_dir="R")) if any(map(_is_backward, text)) else text


def _is_backward(letter: str) -> bool:
    return bidirectional(letter) in ("R", "AL")


_AT_ONCE: Final = 16  # pages in memory
_POINTS: Final = 72  # in an inch
_A4: Final = (595.0, 842.0)
_LARGEST: Final = 14_400.0  # points; PDF readers show no larger pages
_INVISIBLE: Final = 3  # text rendering mode


def write(document: Document, pictures: PagePictures, target: Path) -> None:
    """Write the document's pages, also those without text, with all pictures that can be rendered.

    The file contains only the pages' content: no file name, time or title.
    """
    pages = iter(every_page(document))
    about = {"/Producer": f"pecia {version('pecia')}", "/Subject": " ".join(map(lack_of, document.failed))}
    with tempfile.TemporaryDirectory(prefix="pecia-pdf-") as scratch:
        pieces: list[str] = []
        while batch := list(islice(pages, _AT_ONCE)):
            pieces.append(f"{scratch}/{len(pieces)}.pdf")
            font = InvisibleFont()
            with Pdf.new() as pdf:
                for page in batch:
                    _add(pdf, page, pictures, font)
                text = font.embed(pdf)
                for sheet in pdf.pages:
                    sheet.obj.Resources.Font.Text = text
                for name, value in about.items():
                    if value:
                        pdf.docinfo[name] = value
                pdf.save(pieces[-1])
            about = {}
        # qpdf joins the pieces; pikepdf would hold all streams in memory. The first piece has the document's settings.
        Job(["pecia", pieces[0], "--pages", ".", *pieces[1:], "--", str(target.absolute())]).run()


def _add(pdf: Pdf, page: Page | PageFailure, pictures: PagePictures, font: InvisibleFont) -> None:
    """Add a sheet in the paper's size, or about A4 if the size is unknown."""
    turned = (page.rotation, page.skew) if isinstance(page, Page) else (0, 0.0)
    try:
        picture = pictures(page.number, rotation=turned[0], skew=turned[1])
    except NoPictureError:
        picture = None
    width, height = _A4
    content = bytearray()
    resources = Dictionary(Font=Dictionary())
    if picture:
        longest = max(picture.width, picture.height)
        scale = min(_POINTS / picture.dpi if picture.dpi else max(_A4) / longest, _LARGEST / longest)
        width, height = picture.width * scale, picture.height * scale
        resources.XObject = Dictionary(Picture=_image(pdf, picture))
        content += f"q {width:.3f} 0 0 {height:.3f} 0 0 cm /Picture Do Q\n".encode()
    else:
        resources.Font.Note = Dictionary(Type=Name.Font, Subtype=Name.Type1, BaseFont=Name.Helvetica)
        missing = (
            f"The picture of page {page.number} is missing." if isinstance(page, Page) else lack_of(page)
        )
        content += f"BT /Note 12 Tf 50 {height - 60:.3f} Td ({missing}) Tj ET\n".encode("ascii")
    if isinstance(page, Page):
        content += b"".join(_written(row, font) for row in placed(page, width, height))
    sheet = Dictionary(
        Type=Name.Page,
        MediaBox=Array([0, 0, round(width, 3), round(height, 3)]),
        Resources=resources,
        Contents=pdf.make_stream(bytes(content)),
    )
    pdf.pages.append(Sheet(sheet))


def _image(pdf: Pdf, picture: Picture) -> Object:
    is_bilevel = picture.encoding is Encoding.BILEVEL
    image = pdf.make_stream(
        picture.data,
        Type=Name.XObject,
        Subtype=Name.Image,
        Width=picture.width,
        Height=picture.height,
        ColorSpace=Name.DeviceRGB if picture.encoding is Encoding.RGB else Name.DeviceGray,
        BitsPerComponent=1 if is_bilevel else 8,
        Filter=Name.CCITTFaxDecode if is_bilevel else Name.DCTDecode,
    )
    if is_bilevel:
        image.DecodeParms = Dictionary(K=-1, Columns=picture.width, Rows=picture.height, BlackIs1=True)
    return image


def _written(row: Placed, font: InvisibleFont) -> bytes:
    """Return the operators that draw a row, stretched to the width of its box."""
    natural = font.width(row.text) * row.height / EM
    stretch = 100 * row.width / natural
    base = row.bottom + row.height * DESCENT / EM
    return (
        f"BT {_INVISIBLE} Tr /Text {row.height:.3f} Tf {stretch:.3f} Tz 1 0 0 1 {row.left:.3f} {base:.3f} Tm "
        f"<{font.encode(row.text).hex()}> Tj ET\n"
    ).encode("ascii")
