"""The font of a searchable PDF's text layer: it holds every character and draws none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from pikepdf import Array, Dictionary, Name, Object, Pdf, String

EM: Final = 1000
"""Units in which widths are given."""
DESCENT: Final = 200
"""How far its boxes reach below the line that the letters stand on; they are an em high in all."""

_NAME: Final = "PeciaBoxes"
_MOST: Final = 0xFFFF
_HALF, _WHOLE = 1, 2  # glyphs of `boxes.ttf`
_AT_ONCE: Final = 100  # entries of one block of a CMap, by its definition
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
    """Gives each character a code when it is first met, and a box: half an em wide, in East Asian scripts a whole one.

    `boxes.ttf` has these two boxes and nothing else: what is selected by them has a place, and any script costs the
    same 600 bytes. What a code means stands in the ToUnicode CMap (ISO 32000-1, 9.10.3), which readers search by.
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def encode(self, text: str) -> bytes:
        """Return the text as codes. Characters beyond 65,535 different ones are left out."""
        return b"".join(code.to_bytes(2) for character in text if (code := self._code(character)) <= _MOST)

    def width(self, text: str) -> int:
        """Return how wide the text is, in thousandths of its size."""
        return sum(map(_width, text))

    def embed(self, pdf: Pdf) -> Object:
        """Put the font into a document, once all its text has been encoded."""
        wide = [code for character, code in self._codes.items() if _width(character) == EM]
        boxes = [_WHOLE if _width(character) == EM else _HALF for character in self._codes]
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
                ToUnicode=pdf.make_stream(_CMAP.format(blocks="\n".join(self._blocks())).encode()),
            )
        )

    def _code(self, character: str) -> int:
        return self._codes.setdefault(character, len(self._codes) + 1)

    def _blocks(self) -> Iterator[str]:
        entries = [
            f"<{code:04X}> <{character.encode('utf-16-be', 'replace').hex()}>"
            for character, code in self._codes.items()
        ]
        for start in range(0, len(entries), _AT_ONCE):
            block = entries[start : start + _AT_ONCE]
            yield "\n".join([f"{len(block)} beginbfchar", *block, "endbfchar"])


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
