"""Recognition of single glyphs on a page, by their looks, and by reading their words.

Glyphs are compared with those of pdfium's own fonts. Words are read by PP-OCR's recognition network alone, as a second
opinion inside a decoding process; whole pages are read by engines.
"""

import ctypes
import importlib.util
import math
from collections.abc import Sequence
from contextlib import closing
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias
from unicodedata import category, normalize

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image
from pypdfium2 import raw

from pecia_workers.media.layer_text import CharacterReader, gap_between, rectangle_around
from pecia_workers.media.pdf_objects import Character, Rectangle, placing

Look: TypeAlias = NDArray[np.float32]
"""Normalised picture of a glyph, with width, height and place relative to its font's size."""

_ALPHABET: Final = "".join(filter(str.isalnum, map(chr, (*range(0x30, 0x7B), *range(0xC0, 0x100)))))
SIGNS: Final = "µ%‰°<>≤≥+±-=/.,:;()"
"""Signs of numbers and units."""
LETTERS: Final = _ALPHABET + SIGNS
"""Known digits, letters and signs: those in pdfium's own fonts."""
INDEX: Final = {letter: index for index, letter in enumerate(LETTERS)}
"""Index in `LETTERS` of each, and of characters that look like it."""
_LOOK_ALIKE: Final = {
    "АВЕКМНОРСТХаеорсухіѕј": "ABEKMHOPCTXaeopcyxisj",  # noqa: RUF001  Cyrillic
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧομ": "ABEZHIKMNOPTYXoµ",
    "\N{MINUS SIGN}\N{EN DASH}\N{HYPHEN}": "---",
}
for _others, _letters in _LOOK_ALIKE.items():
    INDEX.update((other, INDEX[letter]) for other, letter in zip(_others, _letters, strict=True))
_FONTS: Final = (
    *("Helvetica", "Helvetica-Bold", "Helvetica-Oblique", "Courier", "Courier-Bold"),
    *("Times-Roman", "Times-Bold", "Times-Italic", "Symbol"),
)
_OF_SYMBOL: Final = "≤≥"
"""Signs that the other fonts lack."""
_SIDE: Final = 12
_SHAPE: Final = 1.5
"""Weight of a glyph's height, width and place relative to its picture."""
_DRAWN_AT: Final = 32.0


def distances(looks: Sequence[Look]) -> NDArray[np.float32]:
    """Return for each look a row of distances to `LETTERS`: the least over all fonts, 0 for equal ones."""
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
                one for one in CharacterReader(text, place, {}).characters() if one and one.code in INDEX
            ]
    return np.array([INDEX[one.code] for one in drawn]), np.array([look_of(one, grey) for one in drawn])


_HEIGHT, _LEAST_WIDTH = 48, 96  # as the engine has it
_AROUND, _LONGEST_WORD = 5, 40
"""Characters on both sides that are read together with a character, and most that belong to its word."""
_MARGIN: Final = 0.1
_LEAST_READ: Final = 0.7
"""Share of the other characters that a reading must confirm to count."""
_SAME: Final = {**dict.fromkeys("Il|", "1"), **dict.fromkeys("Oo", "0")}
"""Characters with similar shapes in many fonts."""


@cache
def network(file: str) -> Any:
    """Return a network of RapidOCR on one thread, loaded once in this process; None where pecia[cpu] is missing."""
    package = importlib.util.find_spec("rapidocr")
    if package is None or package.origin is None or importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime  # noqa: PLC0415  only where pecia[cpu] is installed

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    model = Path(package.origin).with_name("models") / file
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]) if model.is_file() else None


def line_reader() -> Any:
    """Return PaddleOCR's recognition, None where pecia[cpu] is not installed."""
    return network("PP-OCRv6_rec_small.onnx")


def _read(reader: Any, line: Image.Image) -> str:
    """Return the text of a grey picture of a line or word."""
    width = max(1, round(line.width * _HEIGHT / line.height))
    grey = np.asarray(line.resize((width, _HEIGHT)), dtype=np.float32) / 127.5 - 1
    batch = np.zeros((1, 3, _HEIGHT, max(width, _LEAST_WIDTH)), dtype=np.float32)
    batch[..., :width] = grey
    best: NDArray[np.intp] = reader.run(None, {reader.get_inputs()[0].name: batch})[0][0].argmax(axis=1)
    first = np.diff(best, prepend=-1) != 0
    alphabet = _alphabet(reader)
    return "".join(alphabet[number] for number in best[first].tolist())


@cache
def _alphabet(reader: Any) -> list[str]:
    characters = reader.get_modelmeta().custom_metadata_map["character"].splitlines()
    return ["", *characters, " "]  # CTC's blank first


class Context(NamedTuple):
    """A character and its neighbours on the line."""

    text: str
    place: int
    """Index of the character in the text."""
    box: Rectangle

    @classmethod
    def of(cls, characters: Sequence[Character | None], place: int, *, word: bool = False) -> Self:
        """Return the context of one of a page's characters, without spaces; `word`: only its word."""
        before = _beside(characters, place, range(place - 1, -1, -1), word=word)
        after = _beside(characters, place, range(place + 1, len(characters)), word=word)
        there = [*reversed(before), *filter(None, [characters[place]]), *after]
        text = "".join(character.code for character in there)
        return cls(text, len(before), rectangle_around(there))

    def with_other(self, other: str) -> str:
        """Return the text with another character instead of this one."""
        return self.text[: self.place] + other + self.text[self.place + 1 :]


def _beside(
    characters: Sequence[Character | None], place: int, places: range, *, word: bool
) -> list[Character]:
    """Return characters on the line of the one at `place`, nearest first, up to wide white space."""
    last, beside = characters[place], list[Character]()
    for there in places:
        character = characters[there]
        if character is None and not word:
            continue
        most = _LONGEST_WORD if word else _AROUND
        if character is None or last is None or len(beside) == most or gap_between(last, character) is None:
            break
        beside.append(character)
        last = character
    return beside


def word_around(characters: Sequence[Character | None], place: int) -> range:
    """Return the places of the word that a character is part of."""
    before = _beside(characters, place, range(place - 1, -1, -1), word=True)
    after = _beside(characters, place, range(place + 1, len(characters)), word=True)
    return range(place - len(before), place + len(after) + 1)


def read_again(context: Context, grey: Image.Image) -> str | None:
    """Return the `plain` character that is read from the pixels at a character's place; None if unreadable."""
    reader = line_reader()
    left, top, right, bottom = context.box
    margin = _MARGIN * (bottom - top)
    corners = (max(0.0, left - margin), max(0.0, top - margin), right + margin, bottom + margin)
    wide, high = grey.size
    crop = grey.crop(
        (round(corners[0]), round(corners[1]), min(wide, round(corners[2])), min(high, round(corners[3])))
    )
    if reader is None or min(crop.size) < 1:
        return None
    ours = "".join(map(plain, context.text))
    theirs = "".join(map(plain, "".join(_read(reader, crop).split())))
    if len(ours) == 1:
        return theirs if len(theirs) == 1 else None
    suspect = ours[context.place]
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    if len(ours) == len(theirs):  # two swapped digits are not one moved digit
        blocks = [("replace", 0, len(ours), 0, len(theirs))]
    equal, reading = 0, None
    for tag, start, end, from_, to in blocks:
        if end - start == to - from_:
            pairs = zip(ours[start:end], theirs[from_:to], strict=True)
            equal += sum(one == other != suspect for one, other in pairs)
        if start <= context.place < end and tag != "delete":
            if end - start == to - from_:
                reading = theirs[from_ + context.place - start]
            elif end - start == 1:
                reading = theirs[from_:to]
    return reading if equal >= _LEAST_READ * (len(ours) - ours.count(suspect)) else None


@cache
def plain(character: str) -> str:
    """Return a character without accents and case, equal for characters that look the same."""
    composed = normalize("NFKC", character)
    index = INDEX.get(composed if len(composed) == 1 else character)
    letter = character if index is None else LETTERS[index]
    parts = normalize("NFD", letter)
    if all(category(mark).startswith("M") for mark in parts[1:]):
        letter = parts[0]
    letter = _SAME.get(letter, letter).lower()
    return letter if len(letter) == 1 else character


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
    """Return which of Chinese, Japanese and Korean pdfium cannot draw unless a PDF embeds the font."""
    lacking = []
    for script, (name, encoding, collection, character) in _SCRIPTS.items():
        shown = b"BT /F 40 Tf 10 15 Td <%b> Tj ET" % character.encode("utf-16-be").hex().encode()
        pdf = _PAGE % (len(shown), shown, name, encoding, name, collection, name)
        with closing(pypdfium2.PdfDocument(pdf)) as document:
            if not np.ptp(document[0].render().to_numpy()):
                lacking.append(script)
    return tuple(lacking)
