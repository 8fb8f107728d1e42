"""A reader of canary pages, and of nothing else: it compares one line with what each letter would look like."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.reading import canary

_FONT = ImageFont.load_default(30)
_LINE = 1
"""Counted from 0: the first that holds the code."""


def read_canary(pixels: NDArray[np.uint8]) -> str | None:
    """Return the text of a canary page; None for any other page."""
    height, width = pixels.shape[:2]
    top = canary._MARGIN + _LINE * canary._LINE_HEIGHT
    if (width, height) != canary._SIZE:
        return None
    band = pixels[top : top + canary._LINE_HEIGHT // 2, :, 0].astype(int)
    code = ""
    while len(code) < canary._LENGTH:
        code += min(canary._SIGNS, key=lambda sign: _difference(band, _line(code + sign)))
    return page_text(code) if not _difference(band, _line(code)) else None


def page_text(code: str) -> str:
    return "\n".join(line.format(_shown(code)) for line in canary._LINES)


def _shown(code: str) -> str:
    return "-".join(code[start : start + canary._GROUP] for start in range(0, len(code), canary._GROUP))


def _line(code: str) -> str:
    return canary._LINES[_LINE].format(_shown(code))


def _difference(band: NDArray[np.int_], text: str) -> int:
    """Return by how much a line differs from this text, as far as that goes."""
    line = Image.new("L", (band.shape[1], band.shape[0]), "white")
    ImageDraw.Draw(line).text((canary._MARGIN, 0), text, fill="black", font=_FONT)
    end = canary._MARGIN + round(_FONT.getlength(text))
    return int(np.abs(band - np.asarray(line))[:, :end].sum())
