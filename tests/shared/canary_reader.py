"""A reader of canary pages, which compares one line with what each letter looks like; of others it is told the text."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.reading import canary
from tests.shared.chat_server import Behaviour, picture_of

CONSTANT = "Ibuprofen 400 mg"

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


@dataclass
class Reader(Behaviour):
    """Reads canaries, and of other pages the words that come with them; its fault may be another's text."""

    fault: Callable[[str, str], str] | None = None
    """Of the true text and that of the answer before."""
    before: str = CONSTANT
    canaries: int = 0

    def __post_init__(self) -> None:
        self.guard = threading.Lock()

    def read(self, words: str, body: dict[str, Any]) -> str:
        if body.get("max_tokens") == 1:  # the questions of a start
            return words
        (picture,) = (part for part in body["messages"][-1]["content"] if part["type"] == "image_url")
        canary = read_canary(np.asarray(picture_of(picture).convert("RGB")))
        truth = canary or words
        with self.guard:
            self.canaries += canary is not None
            before, self.before = self.before, truth
        return self.fault(truth, before) if self.fault else truth
