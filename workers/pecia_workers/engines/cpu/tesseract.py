"""Tesseract inside a process: one API object, one page at a time."""

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import cv2
import numpy as np
import tesserocr
from numpy.typing import NDArray
from PIL import Image

from pecia_schemas.blocks import Box, Line, Source, Word, mean_confidence
from pecia_workers.engines.cpu.ocr_engine import PageRead, page_read
from pecia_workers.layout.blocks import layout
from pecia_workers.layout.coverage import Letters
from pecia_workers.layout.ink import strengthened
from pecia_workers.layout.lines import around

_LANGUAGES: Final = "kor+eng"
_PAGE_INCHES: Final = 11.7
"""Longer side of a page whose resolution is unknown: that of A4."""
_LEAST_DPI, _MOST_DPI = 70, 600
_GAP: Final = 1.6
"""White space between two words, relative to the line's height, from which they are separate cells or columns."""
_LEAST_SIDE, _MOST_GROWTH = 2630, 2.0
"""Pixels of the longer side to which smaller pages are scaled up, A4 at 225 dots per inch: 1.4 % of the characters
wrong, beside 2 to 3 % at 150."""
_DOUBTFUL: Final = 0.5
_api: tesserocr.PyTessBaseAPI | None = None


def load_model(directory: Path) -> None:
    """Load the language data into this process."""
    global _api  # noqa: PLW0603  a process is the model's owner
    cv2.setNumThreads(1)
    _api = tesserocr.PyTessBaseAPI(
        path=str(directory),
        lang=_LANGUAGES,
        psm=tesserocr.PSM.SINGLE_COLUMN,  # its page segmentation takes Korean for pictures
        oem=tesserocr.OEM.LSTM_ONLY,
    )
    # To stderr, which is silenced: to open /dev/null, as tesserocr wants, is refused once the process is confined.
    _api.SetVariable("debug_file", "")


def read_page(pixels: NDArray[np.uint8], tallest: float | None = None) -> PageRead:
    """Read a page, RGB, or a part of one."""
    if _api is None:
        raise RuntimeError("load_model() comes first.")
    seen = strengthened(pixels)
    grey = Image.fromarray(seen).convert("L")
    growth = min(_MOST_GROWTH, max(1.0, _LEAST_SIDE / max(grey.size)))
    if growth > 1:
        size = (round(grey.width * growth), round(grey.height * growth))
        grey = grey.resize(size, Image.Resampling.BICUBIC)
    width, height = grey.size
    raw: Any = grey.tobytes()  # its stubs say text
    _api.SetImageBytes(raw, width, height, 1, width)
    _api.SetSourceResolution(min(_MOST_DPI, max(_LEAST_DPI, round(max(width, height) / _PAGE_INCHES))))
    try:
        _api.Recognize()
        pieces = [
            Line(
                text=" ".join(word.text for word in words),
                box=around(word.box for word in words),
                confidence=mean_confidence(words),
                words=tuple(words),
            )
            for words in _pieces(_words(_api, growth))
        ]
    finally:
        _api.Clear()
    found = layout(pieces, seen, source=Source.OCR)
    letters = Letters.of(seen, tallest)
    return page_read(found, pieces, letters, _DOUBTFUL, beneath=letters.beneath(seen))


def _words(api: tesserocr.PyTessBaseAPI, growth: float) -> Iterator[list[Word]]:
    """Yield the words of each line that Tesseract found on the page scaled up by `growth`."""
    line: list[Word] = []
    for found in tesserocr.iterate_level(api.GetIterator(), tesserocr.RIL.WORD):
        if line and found.IsAtBeginningOf(tesserocr.RIL.TEXTLINE):
            yield line
            line = []
        text = "" if found.Empty(tesserocr.RIL.WORD) else found.GetUTF8Text(tesserocr.RIL.WORD).strip()
        if not text:
            continue
        left, top, right, bottom = (side / growth for side in found.BoundingBox(tesserocr.RIL.WORD))
        box = Box(
            left=math.floor(left), top=math.floor(top), right=math.ceil(right), bottom=math.ceil(bottom)
        )
        confidence = min(1.0, max(0.0, found.Confidence(tesserocr.RIL.WORD) / 100))
        word = Word(text=text, box=box, confidence=confidence)
        if line and not found.BlanksBeforeWord():  # to Tesseract each syllable of Korean may be a word
            first, box = line[-1], around([line[-1].box, word.box])
            confidence = mean_confidence([first, word])
            line[-1] = Word(text=first.text + word.text, box=box, confidence=confidence)
        else:
            line.append(word)
    if line:
        yield line


def _pieces(lines: Iterator[list[Word]]) -> Iterator[list[Word]]:
    """Cut the lines where the white space is that of a table or of columns."""
    for line in lines:
        height = median(word.box.bottom - word.box.top for word in line)
        piece = line[:1]
        for word in line[1:]:
            if word.box.left - piece[-1].box.right > _GAP * height:
                yield piece
                piece = []
            piece.append(word)
        yield piece
