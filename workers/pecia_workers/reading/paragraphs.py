"""Where one paragraph, heading or list of a column ends and the next one begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from pecia_workers.reading.lines import middle, words_of
from pecia_workers.reading.marks import SIGNS
from pecia_workers.reading.printed import Printed
from pecia_workers.reading.ruled import Rules

PAGE_NUMBER: Final = re.compile(
    r"\W*(page|seite|p\.)?\s*(\d{1,4}|[ivx]{1,6})(\s*(/|of|von)\s*\d{1,4})?\W*|第?\s*\d{1,4}\s*页",
    re.IGNORECASE,
)
_ITEM: Final = re.compile(rf"([•‣◦▪●■*{SIGNS}\u2013-]|\(?\d{{1,2}}[.)]|\(?[a-z][.)])\s+\S")
_WIDER, _WIDE, _APART = 1.22, 1.6, 3.0
"""Step to the next line, by that of most lines of the column and of the page, that ends a paragraph, or a list."""
_OTHER_SIZE: Final = 1.15
_INDENT, _MAX_INDENT = 0.8, 6.0
"""In heights of a line: how far the first line of a paragraph begins to the right of the others."""
_FULL: Final = 0.5
"""Share of the lines of running text that reach its right side."""
_MIN_PROSE: Final = 3
_ENDS: Final = tuple('.!?:;"”)。！？；：')  # noqa: RUF001  Chinese has its own
_FIRST_IDEOGRAPH: Final = 0x2E80


def paragraphs(column: Sequence[Printed], page_step: float, rules: Rules) -> list[list[Printed]]:
    """Cut the lines of one column into what is read as one each. `page_step`: from line to line of most of the page."""
    items = _items(column)
    steps = steps_of(column)
    usual = float(np.percentile(steps, 40)) if steps else 0.0
    left, early = _left_side(column), _end_early(column)
    prose = len(column) >= _MIN_PROSE and is_prose(column)
    parts, in_list = [[column[0]]], items[0]
    ruled = _ruled(column, rules)
    for (above, below), step, is_early, begins, is_ruled in zip(
        pairwise(column), steps, early, items[1:], ruled, strict=True
    ):
        if begins:
            cut = not in_list
        elif in_list:
            cut = is_early and not _is_indented(below, _left(parts[-1][0]))
        else:
            ended = is_early and above.line.text.rstrip().endswith(_ENDS)
            indented = _is_indented(below, left) and not _is_indented(above, left)
            cut = prose and (ended or indented)
        goes_on = in_list and begins
        wide = step > (_APART if goes_on else _WIDE) * page_step or (step > _WIDER * usual and not goes_on)
        if cut or wide or is_ruled or _differ(above, below) or PAGE_NUMBER.fullmatch(below.line.text):
            parts.append([])
            in_list = begins
        parts[-1].append(below)
    return parts


def is_item(text: str) -> bool:
    """Return whether a line begins as an item of a list does."""
    return bool(_ITEM.match(text))


def is_prose(lines: Sequence[Printed]) -> bool:
    """Return whether lines go on until no word more has its place."""
    early = _end_early(lines)
    return bool(early) and float(np.mean(early)) <= 1 - _FULL


def steps_of(column: Sequence[Printed]) -> list[float]:
    """Return how far it is from line to line."""
    return [middle(below.line.box)[1] - middle(above.line.box)[1] for above, below in pairwise(column)]


def _items(column: Sequence[Printed]) -> list[bool]:
    """Return which lines begin an item: boxes to be ticked, or several with a bullet or a number."""
    items = [is_item(one.line.text) for one in column]
    boxes = any(one.line.text.startswith(tuple(SIGNS)) for one in column)
    return items if boxes or sum(items) > 1 else [False] * len(column)


def _ruled(column: Sequence[Printed], rules: Rules) -> list[bool]:
    """Return of each line but the last whether a ruling line parts it from the next one.

    Of several lines with a rule below each none does: these are what is written on.
    """
    below = [rules.part(above.line.box, below.line.box) for above, below in pairwise(column)]
    padded = [False, *below, False]
    return [
        one and not (before or after) for before, one, after in zip(padded, below, padded[2:], strict=False)
    ]


def _end_early(column: Sequence[Printed]) -> list[bool]:
    """Return of each line but the last whether the next one's first word would have had its place there."""
    right = float(np.percentile([one.line.box.right for one in column], 85))
    return [
        right - above.line.box.right > _first_word(below) + _height(below)
        for above, below in pairwise(column)
    ]


def _first_word(one: Printed) -> float:
    if ord(one.line.text[:1] or " ") >= _FIRST_IDEOGRAPH:  # Chinese has no spaces between words
        return _height(one)
    words = words_of(one.line)
    return words[0].box.right - words[0].box.left if words else 0.0


def _differ(above: Printed, below: Printed) -> bool:
    """Return whether one is printed to stand out and the other is not, or not so much."""
    small, large = sorted((above.size, below.size))
    if not (above.stands_out and below.stands_out):
        return above.stands_out or below.stands_out
    return large > _OTHER_SIZE * small or above.is_bold != below.is_bold


def _is_indented(one: Printed, left: float) -> bool:
    return _INDENT * _height(one) < _left(one) - left < _MAX_INDENT * _height(one)


def _left_side(column: Sequence[Printed]) -> float:
    return float(np.percentile([_left(one) for one in column], 30))


def _left(one: Printed) -> int:
    return one.line.box.left


def _height(one: Printed) -> int:
    return one.line.box.bottom - one.line.box.top
