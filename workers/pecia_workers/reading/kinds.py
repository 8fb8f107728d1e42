"""What a block of text is: a heading, a list, a caption, or what stands at a page's edge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from pecia_schemas.blocks import BlockKind, Line

_EDGE, _NUMBER_EDGE = 0.08, 0.14
"""Share of the page, at its top and at its end, where headers and footers stand, and page numbers."""
_APART: Final = 1.2
"""White space, in heights of a line, between them and the text."""
_MAX_EDGE_LINES: Final = 3
_LARGE, _LARGEST = 1.3, 1.75
"""Height of a heading's line, and of a title's, by the page's usual height of a line."""
_MAX_HEADING_LINES, _MIN_LETTERS = 3, 2
_MIN_LINES: Final = 6
"""Lines of a page that has headers and footers; a label or a slip has none."""
_PAGE_NUMBER: Final = re.compile(
    r"\W*(page|seite|p\.)?\s*(\d{1,4}|[ivx]{1,6})(\s*(/|of|von)\s*\d{1,4})?\W*|第?\s*\d{1,4}\s*页",
    re.IGNORECASE,
)
_ITEM: Final = re.compile(r"([•‣◦▪●■☐☑○◉*\u2013-]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+\S")
_CAPTION: Final = re.compile(r"(fig(ure|\.)|table|tab\.|abb(ildung|\.)|图|表|그림)\s*\d", re.IGNORECASE)


def parts_of(lines: Sequence[Line], usual: float) -> list[list[Line]]:
    """Cut lines where headings end and begin."""
    large = [_is_large(line, usual) for line in lines]
    cuts = [
        0,
        *(number for number, (one, other) in enumerate(pairwise(large), 1) if one != other),
        len(lines),
    ]
    return [list(lines[start:end]) for start, end in pairwise(cuts)]


def kind_of(lines: Sequence[Line], page: Sequence[Line], page_height: int, usual: float) -> BlockKind:
    """Return what lines of the page are together. `usual`: the height of the page's lines."""
    text = lines[0].text
    if (
        len(lines) == 1
        and _PAGE_NUMBER.fullmatch(text)
        and _edge(lines, page, page_height, usual, _NUMBER_EDGE)
    ):
        return BlockKind.PAGE_NUMBER
    at_edge = _edge(lines, page, page_height, usual, _EDGE)
    if at_edge is not None:
        return at_edge
    if len(lines) <= _MAX_HEADING_LINES and all(_is_large(line, usual) for line in lines):
        is_title = max(_height(line) for line in lines) >= _LARGEST * usual
        return BlockKind.TITLE if is_title else BlockKind.HEADING
    if _CAPTION.match(text):
        return BlockKind.CAPTION
    items = sum(bool(_ITEM.match(line.text)) for line in lines)
    return BlockKind.LIST if items >= max(2, 0.5 * len(lines)) else BlockKind.TEXT


def usual_height(lines: Sequence[Line]) -> float:
    """Return the height of most of the text's lines."""
    order = np.argsort([_height(line) for line in lines])
    reached = np.cumsum([len(lines[one].text) for one in order])
    return float(_height(lines[order[int(np.searchsorted(reached, reached[-1] / 2))]]))


def _edge(
    lines: Sequence[Line], page: Sequence[Line], page_height: int, usual: float, edge: float
) -> BlockKind | None:
    """Return header or footer if the lines stand apart at that edge of the page; else None."""
    if (
        len(page) < _MIN_LINES
        or len(lines) > _MAX_EDGE_LINES
        or any(_is_large(line, usual) for line in lines)
    ):
        return None
    top, bottom = min(line.box.top for line in lines), max(line.box.bottom for line in lines)
    others = [line.box for line in page if not any(line is one for one in lines)]
    below = min((box.top for box in others if box.top >= bottom - usual / 2), default=page_height)
    above = max((box.bottom for box in others if box.bottom <= top + usual / 2), default=0)
    if bottom < edge * page_height and below - bottom > _APART * usual:
        return BlockKind.HEADER
    if top > (1 - edge) * page_height and top - above > _APART * usual:
        return BlockKind.FOOTER
    return None


def _is_large(line: Line, usual: float) -> bool:
    width = line.box.right - line.box.left
    return width > _height(line) >= _LARGE * usual and sum(map(str.isalpha, line.text)) >= _MIN_LETTERS


def _height(line: Line) -> int:
    return line.box.bottom - line.box.top
