"""Where the text of a page goes on the sheet of a PDF: pure, in points from the sheet's lower left corner."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pecia_schemas.blocks import Box, Line
from pecia_schemas.results import Page

_LARGEST: Final = 12.0
_LONGEST: Final = 100  # characters of a row
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row of text in its box."""

    text: str
    left: float
    bottom: float
    width: float
    height: float


def placed(page: Page, width: float, height: float) -> Iterator[Placed]:
    """Yield the page's words where they stand on a sheet of that size, lines whose words are not known as a whole.

    If the place of no line is known: the text, row by row.
    """
    if page.lines:
        across, down = width / page.width, height / page.height
        for line in page.lines:
            for text, box in _pieces(line):
                yield _on_sheet(text, box, across, down, height)
    else:
        yield from _spread(page.text, width, height)


def _pieces(line: Line) -> Iterator[tuple[str, Box]]:
    """Yield words, each with the space after it, so that a selection has no gaps; they share the line's height."""
    level = line.box.right - line.box.left >= line.box.bottom - line.box.top
    words = [word for word in line.words if word.text.strip()]
    if not words or not level or not line.has_every_word:
        if text := " ".join(line.text.split()):
            yield text, line.box
        return
    for number, word in enumerate(words):
        left, right, space = word.box.left, word.box.right, ""
        for following in words[number + 1 : number + 2]:
            if f"{word.text} {following.text}" in line.text and following.box.left > left:
                right, space = following.box.left, " "
        yield word.text + space, line.box.model_copy(update={"left": left, "right": right})


def _on_sheet(text: str, box: Box, across: float, down: float, height: float) -> Placed:
    return Placed(
        text=text,
        left=box.left * across,
        bottom=height - box.bottom * down,
        width=max(1, box.right - box.left) * across,
        height=max(1, box.bottom - box.top) * down,
    )


def _spread(text: str, width: float, height: float) -> Iterator[Placed]:
    """Yield the rows of a text from top to bottom in even steps, within the margins of the sheet."""
    wrapped = [textwrap.wrap(line, _LONGEST, break_on_hyphens=False) for line in text.splitlines()]
    rows = [row for line in wrapped for row in line]
    margin = _MARGIN * height
    step = (height - 2 * margin) / max(1, len(rows))
    size = min(_LARGEST, step * 0.9)
    for number, row in enumerate(rows, 1):
        bottom = height - margin - number * step
        yield Placed(
            text=row,
            left=_MARGIN * width,
            bottom=bottom,
            width=min((1 - 2 * _MARGIN) * width, len(row) * size / 2),
            height=size,
        )
