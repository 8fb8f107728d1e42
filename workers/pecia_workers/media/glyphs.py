"""Whether the glyphs of a page look like the letters that its text layer says they are.

A font of a PDF may say of its glyphs what it likes: "A" is drawn, the layer says "7". Each font's letters and digits
are laid beside those of pdfium's own fonts. Measured on 84 fonts at 12 to 30 pixels: of the glyphs of a sound font at
least 92 % have the letter that they claim among the three most alike; of one with mixed up letters at most 20 %, of one
whose digits are each off by one at most 40 %. A single letter that claims to be one of like shape is not found.

Chinese, Japanese and Korean characters are judged by size and by how common they are: a wrong code is mostly that of a
rare character. Of other scripts nothing is known here.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Final

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image
from pypdfium2 import raw

from pecia_workers.media.layer_text import Character, CharacterReader, placing

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


_LETTERS: Final = "".join(filter(str.isalnum, map(chr, (*range(0x30, 0x7B), *range(0xC0, 0x100)))))
"""Digits and letters that pdfium's own fonts have."""
_INDEX: Final = {letter: index for index, letter in enumerate(_LETTERS)}
_LOOK_ALIKE: Final = {
    "АВЕКМНОРСТХаеорсухіѕј": "ABEKMHOPCTXaeopcyxisj",  # noqa: RUF001  Cyrillic
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο": "ABEZHIKMNOPTYXo",  # noqa: RUF001  Greek
}
for _others, _letters in _LOOK_ALIKE.items():
    _INDEX.update((other, _INDEX[letter]) for other, letter in zip(_others, _letters, strict=True))
_FONTS: Final = (
    *("Helvetica", "Helvetica-Bold", "Helvetica-Oblique", "Courier", "Courier-Bold"),
    *("Times-Roman", "Times-Bold", "Times-Italic"),
)
_SIDE: Final = 12
_SHAPE: Final = 1.5
"""How much height, width and place of a glyph count beside its picture."""
_LEAST_SIZE: Final = 8.0
"""Pixels, of a font whose glyphs can be told apart."""
_ALIKE: Final = 3
_LEAST_SHARE: Final = 0.6
_LEAST_GLYPHS: Final = 3
_DRAWN_AT: Final = 32.0

_SQUARE: Final = ("\u3400", "\u9fff"), ("\uac00", "\ud7a3")
"""Chinese characters and Korean syllables."""
_LEAST_SQUARE: Final = 0.6
_COMMON: Final = {
    "gb2312": range(0xB0, 0xD8),
    "big5": range(0xA4, 0xC7),
    "euc_jp": range(0xB0, 0xD0),
    "euc_kr": range(0xB0, 0xC9),
}
"""Encodings, and the first bytes of their characters of everyday use."""


def misnamed(characters: Sequence[Character], grey: Image.Image) -> float:
    """Return the share of upright characters, of a grey page, whose fonts do not draw what they say."""
    counts = Counter((one.font, one.code) for one in characters)
    samples = {(one.font, one.code): one for one in characters if one.size >= _LEAST_SIZE and one.has_glyph}
    judged = list(_by_look(list(samples.values()), grey))
    for one in {(one.font, one.code): one for one in characters}.values():
        if any(first <= one.code <= last for first, last in _SQUARE):
            left, top, right, bottom = one.box
            is_large = max(right - left, bottom - top) >= _LEAST_SQUARE * one.size
            encoded = ((one.code.encode(encoding, "ignore"), lead) for encoding, lead in _COMMON.items())
            is_common = any(len(both) == 2 and both[0] in lead for both, lead in encoded)  # noqa: PLR2004  bytes
            judged.append((one, is_large and is_common))
    fonts: dict[tuple[int, str], list[tuple[bool, int]]] = {}
    for sample, sound in judged:
        kind = "digit" if sample.code.isdigit() else "lower" if sample.code.islower() else "other"
        fonts.setdefault((sample.font, kind), []).append((sound, counts[sample.font, sample.code]))
    wrong = 0
    groups = [glyphs for glyphs in fonts.values() if len(glyphs) >= _LEAST_GLYPHS]
    rest = [one for glyphs in fonts.values() if len(glyphs) < _LEAST_GLYPHS for one in glyphs]
    for glyphs in (*groups, rest):
        if len(glyphs) >= _LEAST_GLYPHS and sum(sound for sound, _ in glyphs) < _LEAST_SHARE * len(glyphs):
            wrong += sum(count for _, count in glyphs)
    return wrong / len(characters)


def _by_look(samples: Sequence[Character], grey: Image.Image) -> Iterator[tuple[Character, bool]]:
    """Yield each glyph of a known letter, and whether that letter is among those that it looks most like."""
    known = [sample for sample in samples if sample.code in _INDEX and not sample.is_turned]
    if not known:
        return
    letters, looks = _own_looks()
    seen = np.array([_look(sample, grey) for sample in known])
    distances = np.square(looks).sum(axis=1) - 2 * seen @ looks.T
    nearest = np.stack(
        [distances[:, letters == letter].min(axis=1) for letter in range(len(_LETTERS))], axis=1
    )
    claimed = np.array([_INDEX[sample.code] for sample in known])
    better = (nearest < nearest[np.arange(len(known)), claimed, np.newaxis]).sum(axis=1)
    yield from zip(known, (better < _ALIKE).tolist(), strict=True)


def _look(character: Character, grey: Image.Image) -> NDArray[np.float32]:
    """Return the picture of a glyph with even contrast, and its width, height and place by the font's size."""
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
        page = document.new_page(_DRAWN_AT * len(_LETTERS), 2 * _DRAWN_AT * len(_FONTS))
        for row, name in enumerate(_FONTS):
            font = raw.FPDFText_LoadStandardFont(document, name.encode())
            for column, letter in enumerate(_LETTERS):
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
    return np.array([_INDEX[one.code] for one in drawn]), np.array([_look(one, grey) for one in drawn])
