"""Whether this machine has the fonts that PDFs count on: without them their Chinese, Japanese or Korean draws blank."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import numpy as np
import pypdfium2

_SCRIPTS: Final = {
    "Chinese": (b"STSong-Light", b"UniGB-UCS2-H", b"GB1", "中"),
    "Japanese": (b"HeiseiMin-W3", b"UniJIS-UCS2-H", b"Japan1", "あ"),
    "Korean": (b"HYSMyeongJo-Medium", b"UniKS-UCS2-H", b"Korea1", "한"),
}
"""The font that a PDF names, the encoding, the characters of Adobe's collection, and one of them."""
# Objects alone: pdfium finds them without a table.
_PAGE: Final = b"""%%PDF-1.7
1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj
2 0 obj << /Type /Pages /Count 1 /Kids [3 0 R] >> endobj
3 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 60 60] /Contents 4 0 R
/Resources << /Font << /F 5 0 R >> >> >> endobj
4 0 obj << /Length %d >> stream
%b
endstream endobj
5 0 obj << /Type /Font /Subtype /Type0 /BaseFont /%b /Encoding /%b /DescendantFonts [6 0 R] >> endobj
6 0 obj << /Type /Font /Subtype /CIDFontType0 /BaseFont /%b /FontDescriptor 7 0 R
/CIDSystemInfo << /Registry (Adobe) /Ordering (%b) /Supplement 0 >> >> endobj
7 0 obj << /Type /FontDescriptor /FontName /%b /Flags 6 /FontBBox [0 -200 1000 900] /ItalicAngle 0
/Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 >> endobj
trailer << /Root 1 0 R >>
"""


def scripts_without_a_font() -> tuple[str, ...]:
    """Return those of Chinese, Japanese and Korean that pdfium cannot draw if a PDF does not bring the font."""
    return tuple(script for script in _SCRIPTS if not _draws(script))


def _draws(script: str) -> bool:
    name, encoding, collection, character = _SCRIPTS[script]
    shown = b"BT /F 40 Tf 10 15 Td <%b> Tj ET" % character.encode("utf-16-be").hex().encode()
    pdf = _PAGE % (len(shown), shown, name, encoding, name, collection, name)
    with closing(pypdfium2.PdfDocument(pdf)) as document:
        return bool(np.ptp(document[0].render().to_numpy()))
