"""Reads a few words from their pixels, for a second opinion in a decoding process; pages are an engine's.

The recognition network of PP-OCR, as the CPU engine has it, called alone.
"""

import importlib.util
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_workers.media.layer_characters import Character, Rectangle
from pecia_workers.media.layer_text import gap_between, rectangle_around
from pecia_workers.media.own_fonts import LETTERS, index_of

_MODEL: Final = Path("models", "PP-OCRv6_rec_small.onnx")
_HEIGHT, _LEAST_WIDTH = 48, 96  # as the engine has it
_AROUND, _LONGEST_WORD = 5, 40
"""Characters on both sides that are read with a character, and that may belong to its word."""
_MARGIN: Final = 0.1
_LEAST_READ: Final = 0.7
"""Share of the other characters that a reading must have, if it counts."""
_SAME: Final = {**dict.fromkeys("Il|", "1"), **dict.fromkeys("Oo", "0")}
"""Whose shapes are alike in many fonts."""


class LineReader:
    """PaddleOCR's recognition on onnxruntime, one thread."""

    def __init__(self, model: Path) -> None:
        import onnxruntime  # noqa: PLC0415  only where pecia[cpu] is installed

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        alphabet = self._session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._characters = ["", *alphabet, " "]  # CTC's blank first

    def read(self, line: Image.Image) -> str:
        """Return the text of a grey picture of a line or word."""
        width = max(1, round(line.width * _HEIGHT / line.height))
        grey = np.asarray(line.resize((width, _HEIGHT)), dtype=np.float32) / 127.5 - 1
        batch = np.zeros((1, 3, _HEIGHT, max(width, _LEAST_WIDTH)), dtype=np.float32)
        batch[..., :width] = grey
        best: NDArray[np.intp] = self._session.run(None, {self._input: batch})[0][0].argmax(axis=1)
        first = np.diff(best, prepend=-1) != 0
        return "".join(self._characters[number] for number in best[first].tolist())


@cache
def line_reader() -> LineReader | None:
    """Return the reader, loaded once in this process, or None where pecia[cpu] is not installed."""
    package = importlib.util.find_spec("rapidocr")
    if package is None or package.origin is None or importlib.util.find_spec("onnxruntime") is None:
        return None
    model = Path(package.origin).parent / _MODEL
    return LineReader(model) if model.is_file() else None


class Context(NamedTuple):
    """A character and those beside it on its line."""

    text: str
    place: int
    """Of the character in the text."""
    box: Rectangle

    @classmethod
    def of(cls, characters: Sequence[Character | None], place: int, *, word: bool = False) -> Self:
        """Return the context of one of a page's characters, without spaces; `word`: no more than its word."""
        before = _beside(characters, place, range(place - 1, -1, -1), word=word)
        after = _beside(characters, place, range(place + 1, len(characters)), word=word)
        there = [*reversed(before), *filter(None, [characters[place]]), *after]
        text = "".join(character.code for character in there)
        return cls(text, len(before), rectangle_around(there))

    def with_other(self, other: str) -> str:
        """Return the text with another character in the place of this one."""
        return self.text[: self.place] + other + self.text[self.place + 1 :]


def _beside(
    characters: Sequence[Character | None], place: int, places: range, *, word: bool
) -> list[Character]:
    """Return characters on the line of the one at a place, nearest first, up to wide white space."""
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


def read_again(context: Context, grey: Image.Image) -> str | None:
    """Return what the pixels have, as `plain` has it, where a character stands; None if that cannot be read."""
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
    theirs = "".join(map(plain, "".join(reader.read(crop).split())))
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
    """Return a character without accents and case, one for those that look the same."""
    composed = normalize("NFKC", character)
    index = index_of(composed if len(composed) == 1 else character)
    letter = character if index is None else LETTERS[index]
    parts = normalize("NFD", letter)
    if all(category(mark).startswith("M") for mark in parts[1:]):
        letter = parts[0]
    letter = _SAME.get(letter, letter).lower()
    return letter if len(letter) == 1 else character
