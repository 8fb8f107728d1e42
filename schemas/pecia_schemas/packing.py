"""Blocks as they are stored: each text once, words as numbers.

As plain JSON, a text and a box for each word, a page of 3,000 words takes 339 kB, and 97 in Postgres, which compresses
it; like this 101 and 55. What is encrypted cannot be compressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter

from pecia_schemas.blocks import Block, Line

_BLOCKS: Final = TypeAdapter(tuple[Block, ...], config=ConfigDict(defer_build=True))
_WORDS: Final[Any] = {"__all__": {"lines": {"__all__": {"words"}}}}
_SIDES: Final = ("left", "top", "right", "bottom")
_SURE: Final = 1000
"""A confidence has three digits behind the point."""


def packed(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return blocks as JSON for `unpacked`."""
    written: list[dict[str, Any]] = _BLOCKS.dump_python(
        tuple(blocks), mode="json", exclude_defaults=True, exclude=_WORDS
    )
    for block, plain in zip(blocks, written, strict=True):
        for line, plain_line in zip(block.lines, plain.get("lines", ()), strict=True):
            if line.words:
                words: list[Any] | None = _lengths(line)
                plain_line["words"] = words or [word.model_dump(mode="json") for word in line.words]
        if block.lines and [line.text for line in block.lines] == block.text.split("\n"):
            for plain_line in plain["lines"]:
                del plain_line["text"]
    return written


def unpacked(blocks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return packed blocks as plain JSON."""
    return [{**block, "lines": list(_lines(block))} for block in blocks]


def _lengths(line: Line) -> list[list[int | None]] | None:
    """Return length, box within the line's and confidence of each word; None if the line's text does not tell them."""
    rest, words = line.text, []
    for word in line.words:
        rest = rest.lstrip(" ")
        if not word.text or not rest.startswith(word.text):
            return None
        box, sure = word.box, None if word.confidence is None else round(word.confidence * _SURE)
        place = (box.left - line.box.left, box.top - line.box.top, box.right - box.left, box.bottom - box.top)
        words.append([len(word.text), *place, sure])
        rest = rest[len(word.text) :]
    return words


def _lines(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    texts = block["text"].split("\n")
    for number, line in enumerate(block.get("lines", ())):
        whole = {"text": texts[number], **line} if "text" not in line else line
        words = line.get("words", ())
        are_packed = words and not isinstance(words[0], Mapping)
        yield {**whole, "words": list(_words(whole["text"], line["box"], words))} if are_packed else whole


def _words(text: str, line: Mapping[str, int], words: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for length, left, top, width, height, sure in words:
        text = text.lstrip(" ")
        sides = (
            line["left"] + left,
            line["top"] + top,
            line["left"] + left + width,
            line["top"] + top + height,
        )
        confidence = None if sure is None else sure / _SURE
        yield {"text": text[:length], "box": dict(zip(_SIDES, sides, strict=True)), "confidence": confidence}
        text = text[length:]
