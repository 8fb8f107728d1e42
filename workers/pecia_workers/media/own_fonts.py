"""The fonts that pdfium brings itself: what their letters look like on a page, and which scripts they lack."""

import ctypes
import math
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Final, TypeAlias

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image
from pypdfium2 import raw

from pecia_workers.media.layer_characters import Character
from pecia_workers.media.layer_text import CharacterReader, placing

Look: TypeAlias = NDArray[np.float32]
"""The picture of a glyph with even contrast, and its width, height and place by its font's size."""

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
    lacking = []
    for script, (name, encoding, collection, character) in _SCRIPTS.items():
        shown = b"BT /F 40 Tf 10 15 Td <%b> Tj ET" % character.encode("utf-16-be").hex().encode()
        pdf = _PAGE % (len(shown), shown, name, encoding, name, collection, name)
        with closing(pypdfium2.PdfDocument(pdf)) as document:
            if not np.ptp(document[0].render().to_numpy()):
                lacking.append(script)
    return tuple(lacking)


_ALPHABET: Final = "".join(filter(str.isalnum, map(chr, (*range(0x30, 0x7B), *range(0xC0, 0x100)))))
SIGNS: Final = "µ%‰°<>≤≥+±-=/.,:;()"
"""Those of numbers and their units."""
LETTERS: Final = _ALPHABET + SIGNS
"""What is known here: digits, letters and signs that pdfium's own fonts have."""
_INDEX: Final = {letter: index for index, letter in enumerate(LETTERS)}
_LOOK_ALIKE: Final = {
    "АВЕКМНОРСТХаеорсухіѕј": "ABEKMHOPCTXaeopcyxisj",  # noqa: RUF001  Cyrillic
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧομ": "ABEZHIKMNOPTYXoµ",
    "\N{MINUS SIGN}\N{EN DASH}\N{HYPHEN}": "---",
}
for _others, _letters in _LOOK_ALIKE.items():
    _INDEX.update((other, _INDEX[letter]) for other, letter in zip(_others, _letters, strict=True))
_FONTS: Final = (
    *("Helvetica", "Helvetica-Bold", "Helvetica-Oblique", "Courier", "Courier-Bold"),
    *("Times-Roman", "Times-Bold", "Times-Italic", "Symbol"),
)
_OF_SYMBOL: Final = "≤≥"
"""Those that the other fonts lack."""
_SIDE: Final = 12
_SHAPE: Final = 1.5
"""How much height, width and place of a glyph count beside its picture."""
_DRAWN_AT: Final = 32.0


def index_of(code: str) -> int | None:
    """Return the place among `LETTERS` of what looks like this character; None if it is not known."""
    return _INDEX.get(code)


def distances(looks: Sequence[Look]) -> NDArray[np.float32]:
    """Return for each look, a row, how unlike it each of `LETTERS` is: the least of any font, 0 for the same."""
    letters, own = _own_looks()
    seen = np.array(looks, dtype=np.float32).reshape(len(looks), own.shape[1])
    squares = np.square(seen).sum(axis=1)[:, np.newaxis] + np.square(own).sum(axis=1) - 2 * seen @ own.T
    nearest = [squares[:, letters == letter].min(axis=1) for letter in range(len(LETTERS))]
    return np.stack(nearest, axis=1)


def look_of(character: Character, grey: Image.Image) -> Look:
    """Return the look of a character on a grey page."""
    left, top, right, bottom = character.box
    box = (
        min(max(0.0, left), grey.width - 1.0),
        min(max(0.0, top), grey.height - 1.0),
        min(max(left + 0.5, right, 1.0), float(grey.width)),
        min(max(top + 0.5, bottom, 1.0), float(grey.height)),
    )
    picture = np.asarray(grey.resize((_SIDE, _SIDE), Image.Resampling.BOX, box=box), dtype=np.float32).ravel()
    picture = picture.mean() - picture
    corners = (math.floor(left) - 1, math.floor(top) - 1, math.ceil(right) + 1, math.ceil(bottom) + 1)
    around = np.asarray(grey.crop(corners), dtype=np.float32)
    inside = around[1:-1, 1:-1]
    ground = (around.sum() - inside.sum()) / (around.size - inside.size)
    if ground < inside.mean():  # light print on dark ground
        picture = -picture
    picture /= max(1.0, float(np.linalg.norm(picture)))
    shape = np.array([right - left, bottom - top, character.origin[1] - bottom], dtype=np.float32)
    return np.concatenate([picture, _SHAPE * shape / character.size])


@cache
def _own_looks() -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the letters of pdfium's own fonts, by their index, and their looks."""
    with closing(pypdfium2.PdfDocument.new()) as document:
        page = document.new_page(_DRAWN_AT * len(LETTERS), 2 * _DRAWN_AT * len(_FONTS))
        for row, name in enumerate(_FONTS):
            font = raw.FPDFText_LoadStandardFont(document, name.encode())
            for column, letter in enumerate(LETTERS):
                if (name == "Symbol") is not (letter in _OF_SYMBOL):
                    continue
                item = raw.FPDFPageObj_CreateTextObj(document, font, _DRAWN_AT)
                raw.FPDFText_SetText(item, (ctypes.c_ushort * 2)(ord(letter), 0))
                raw.FPDFPageObj_Transform(item, 1, 0, 0, 1, _DRAWN_AT * column, _DRAWN_AT * (2 * row + 1))
                raw.FPDFPage_InsertObject(page, item)
        page.gen_content()
        grey = page.render(scale=1).to_pil().convert("L")
        with closing(page.get_textpage()) as text:
            place = placing(page, grey.width, grey.height)
            drawn = [
                one for one in CharacterReader(text, place, {}).characters() if one and one.code in _INDEX
            ]
    return np.array([_INDEX[one.code] for one in drawn]), np.array([look_of(one, grey) for one in drawn])
