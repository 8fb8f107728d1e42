"""Paragraphs, headings and lists: their boundaries and kinds, from how lines are printed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import BlockKind, Box, Line
from pecia_workers.layout.lines import around, middle, words_of
from pecia_workers.layout.marks import SIGNS
from pecia_workers.layout.ruled import Rules

_LARGE, _BOLD, _LARGE_IN_BOTH = 1.2, 1.25, 1.1
"""Height of letters, width of strokes, and both in one line, relative to most text."""
_MIN_LETTERS: Final = 3
"""Least letters of a line for a measurement; digits and checkboxes have other heights."""
_PRINT_CONTRAST: Final = 16
_TALL: Final = 85
"""Percentile of the heights of a line's components that represents capitals."""
_MIN_COMPONENT: Final = 0.25
"""Least component, relative to the line's height; smaller ones are dots and accents."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A line with measures of its print."""

    line: Line
    size: float = 1.0
    """Height of its letters, relative to most of the page's text; box heights vary too much."""
    weight: float = 1.0
    """Width of its strokes, likewise relative."""

    @property
    def box(self) -> Box:
        """Where the line stands."""
        return self.line.box

    @property
    def height(self) -> int:
        """Height of its box."""
        return self.line.box.bottom - self.line.box.top

    @property
    def text(self) -> str:
        """What the line says."""
        return self.line.text

    @property
    def is_large(self) -> bool:
        """Whether it is larger than most text."""
        return self.size >= _LARGE or min(self.size, self.weight) >= _LARGE_IN_BOTH

    @property
    def is_bold(self) -> bool:
        """Whether it is bolder than text of its size."""
        return self.weight >= _BOLD * max(1.0, self.size)

    @property
    def stands_out(self) -> bool:
        """Whether it is larger or bolder than most text."""
        return self.is_large or self.is_bold


def printed(lines: Sequence[Line], pixels: NDArray[np.uint8]) -> list[Printed]:
    """Return the lines of a page with measures of their print, relative to most lines."""
    if not lines:
        return []
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    measured = np.array([_measured(line, grey) for line in lines])
    known: NDArray[np.bool_] = measured.min(axis=1) > 0
    letters = np.array([len(line.text) for line in lines])[known]
    if not known.any():
        return [Printed(line) for line in lines]
    usual = []  # medians, weighted by the letters of each line
    for column in measured[known].T:
        order = np.argsort(column)
        reached = np.cumsum(letters[order])
        usual.append(column[order][np.searchsorted(reached, reached[-1] / 2)])
    found = np.where(known[:, None], measured / usual, 1.0)
    return [Printed(line, *one) for line, one in zip(lines, found.tolist(), strict=True)]


def _measured(line: Line, grey: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the height of a line's letters and the mean width of its strokes, in pixels; 0 if unknown."""
    if sum(map(str.isalpha, line.text)) < _MIN_LETTERS or not set(SIGNS).isdisjoint(line.text):
        return 0.0, 0.0
    box = line.box
    crop = grey[max(0, box.top) : max(0, box.bottom), max(0, box.left) : max(0, box.right)].astype(np.int16)
    contrast = np.abs(crop - np.median(crop)) if crop.size else crop
    strongest = float(np.percentile(contrast, 98)) if crop.size else 0.0
    if strongest < _PRINT_CONTRAST:
        return 0.0, 0.0
    ink = (contrast > strongest / 2).view(np.uint8)
    strokes = np.count_nonzero(np.diff(ink, axis=1, prepend=0) == 1)
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    heights = stats[1:, cv2.CC_STAT_HEIGHT]
    heights = heights[heights > _MIN_COMPONENT * len(ink)]
    if not heights.size:
        return 0.0, 0.0
    darkness = contrast[contrast > strongest / 4].sum() / strongest  # grey edges count by what they are
    return float(np.percentile(heights, _TALL)), float(darkness / max(1, strokes))


_EDGE, _NUMBER_EDGE = 0.08, 0.14
"""Share of the page, at its top and bottom, for headers and footers, and for page numbers."""
_KIND_APART, _AS_APART = 0.8, 1.5
"""White space between them and the text, in heights of a line and relative to that between most lines."""
_MAX_EDGE_LINES: Final = 3
_TITLE, _AS_LARGE, _UPPER = 1.3, 0.93, 0.4
"""Least size of a title; the same relative to the page's largest; share of the page in which it may be."""
_MAX_HEADING_LINES: Final = 3
_MAX_GAP: Final = 2.5
"""Widest gap in a heading, in heights of a line: pieces farther apart are no sentence."""
_WIDE_GAP, _FAR_LARGER = 6.0, 1.5
"""The same for letters that are this much larger than most."""
_MAX_DIGITS, _MAX_DIGITS_LARGE = 0.3, 0.4
"""Share of digits in a heading of bold letters, and of large ones."""
_HEADING_WORDS, _HEADING_WIDTH, _PROSE_LINES = 8, 0.5, 2
"""Most words of a heading in plain print, its width relative to the prose below, and the lines of that."""
_MIN_LINES: Final = 6
"""Least lines of a page with headers and footers; labels and slips have none."""
_CAPTION: Final = re.compile(r"(fig(ure|\.)|table|tab\.|abb(ildung|\.)|图|表|그림)\s*\d", re.IGNORECASE)
_FIELD: Final = re.compile(r"[:：]\s*\S")  # noqa: RUF001  Chinese has its own
"""A label followed by its value."""
_STAMP_MARGIN, _STAMP_SLOPE, _MIN_CONTRAST = 2.0, 0.01, 24
"""Margin around a line for its frame, relative to its height; least slope of the frame's sides."""


class Kinds:
    """Divides a page's text, column by column, into blocks with a kind."""

    def __init__(self, columns: Sequence[Sequence[Printed]], pixels: NDArray[np.uint8], rules: Rules) -> None:
        steps = [step for column in columns for step in steps_of(column)]
        step = float(np.percentile(steps, 40)) if steps else 0.0
        self.columns = [paragraphs(column, step, rules) for column in columns]
        self._page = [one for column in columns for one in column]
        self._pixels, self._page_height = pixels, len(pixels)
        heights = [one.height for one in self._page]
        self._height = float(np.median(heights)) if heights else 0.0
        self._apart = max(_KIND_APART * self._height, _AS_APART * (step - self._height))
        self._largest = max((one.size for one in self._page if self._may_be_title(one)), default=0.0)

    def of(self, part: Sequence[Printed], following: Sequence[Printed] = ()) -> BlockKind:
        """Return the kind of lines that belong together. `following`: the next lines in reading order."""
        if (edge := self._edge(part)) is not None:
            return edge
        if len(part) == 1 and part[0].stands_out and _is_framed_aslant(part[0].box, self._pixels):
            return BlockKind.STAMP
        if self._is_heading(part, following):
            is_title = any(
                self._may_be_title(one) and one.size >= max(_TITLE, _AS_LARGE * self._largest) for one in part
            )
            return BlockKind.TITLE if is_title else BlockKind.HEADING
        if _CAPTION.match(part[0].text):
            return BlockKind.CAPTION
        items = [one.text for one in part if _ITEM.match(one.text)]
        boxes = sum(item.count(sign) for item in items for sign in SIGNS)
        return BlockKind.LIST if max(len(items), boxes) > 1 else BlockKind.TEXT

    def _is_heading(self, part: Sequence[Printed], following: Sequence[Printed]) -> bool:
        """Return whether these few lines stand out, and are neither fields with values nor sentences.

        Also a few words without a full stop above prose, like headings in italics.
        """
        if len(part) > _MAX_HEADING_LINES or any(map(self._is_torn, part)):
            return False
        text, is_large = " ".join(one.text for one in part), part[0].is_large
        letters, digits = (sum(map(test, text)) for test in (str.isalpha, str.isdigit))
        if (
            all(one.stands_out for one in part)
            and digits <= (_MAX_DIGITS_LARGE if is_large else _MAX_DIGITS) * (letters + digits)
            and (is_large or not (_FIELD.search(text) or text.endswith((".", ",", ";"))))
        ):
            return True
        if len(part) > 1 or len(following) < _PROSE_LINES:
            return False
        box, prose = part[0].box, around(one.box for one in following)
        return (
            text[0].isupper()
            and text[-1].isalpha()
            and not any(map(str.isdigit, text))
            and len(text.split()) <= _HEADING_WORDS
            and prose.top > box.top
            and prose.left - self._height < box.left < prose.right
            and box.right - box.left < _HEADING_WIDTH * (prose.right - prose.left)
            and not any(map(self._is_torn, following))
            and is_prose(following)
        )

    def _is_torn(self, one: Printed) -> bool:
        """Return whether it consists of pieces far apart."""
        gaps = [right.box.left - left.box.right for left, right in pairwise(words_of(one.line))]
        most = _WIDE_GAP if one.size > _FAR_LARGER else _MAX_GAP
        return max(gaps, default=0) > most * one.size * self._height

    def _may_be_title(self, one: Printed) -> bool:
        return one.is_large and one.box.top < _UPPER * self._page_height

    def _edge(self, part: Sequence[Printed]) -> BlockKind | None:
        """Return the kind of separate lines at the top or bottom of the page; None for other lines."""
        if len(self._page) < _MIN_LINES or len(part) > _MAX_EDGE_LINES or any(one.is_large for one in part):
            return None
        box = around(one.box for one in part)
        others = [one.box for one in self._page if not any(one is own for own in part)]
        half = self._height / 2
        tops = (other.top for other in others if other.top >= box.bottom - half)
        bottoms = (other.bottom for other in others if other.bottom <= box.top + half)
        below, above = min(tops, default=self._page_height), max(bottoms, default=0)
        number = PAGE_NUMBER.fullmatch(part[0].text) if len(part) == 1 else None
        is_sure = number and (number[1] or number[3])  # a number alone may be anything
        apart = -self._height if is_sure else self._apart
        edge = (_NUMBER_EDGE if number else _EDGE) * self._page_height
        if box.bottom < edge and below - box.bottom > apart:
            return BlockKind.PAGE_NUMBER if number else BlockKind.HEADER
        if box.top > self._page_height - edge and box.top - above > apart:
            return BlockKind.PAGE_NUMBER if number else BlockKind.FOOTER
        return None


def _is_framed_aslant(box: Box, pixels: NDArray[np.uint8]) -> bool:
    """Return whether a line has a sloping frame, like a stamp's; print is level."""
    height = box.bottom - box.top
    margin = round(_STAMP_MARGIN * height)
    top, left = max(0, box.top - margin), max(0, box.left - margin)
    grey = cv2.cvtColor(pixels[top : box.bottom + margin, left : box.right + margin], cv2.COLOR_RGB2GRAY)
    ink = (int(np.median(grey)) - grey.astype(np.int16) > _MIN_CONTRAST).view(np.uint8)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    for label, (x, y, width, depth, _) in enumerate(stats[1:].tolist(), 1):
        if width < 0.9 * (box.right - box.left) or depth < 0.9 * height:
            continue
        upper = np.argmax(labels[y : y + depth, x : x + width] == label, axis=0)
        inner = upper[width // 10 : -width // 10]
        if abs(float(np.polyfit(np.arange(len(inner)), inner, 1)[0])) > _STAMP_SLOPE:
            return True
    return False


PAGE_NUMBER: Final = re.compile(
    r"\W*(page|seite|p\.)?\s*(\d{1,4}|[ivx]{1,6})(\s*(/|of|von)\s*\d{1,4})?\W*|第?\s*\d{1,4}\s*页",
    re.IGNORECASE,
)
_ITEM: Final = re.compile(rf"([•‣◦▪●■*{SIGNS}\u2013-]|\(?\d{{1,2}}[.)]|\(?[a-z][.)])\s+\S")
_WIDER, _WIDE, _APART = 1.22, 1.6, 3.0
"""Step to the next line that ends a paragraph, or a list, relative to most lines of the column and of the page."""
_OTHER_SIZE: Final = 1.15
_INDENT, _MAX_INDENT = 0.8, 6.0
"""Least and greatest indent of a paragraph's first line, in heights of a line."""
_FULL: Final = 0.5
"""Share of lines of running text that reach its right side."""
_MIN_PROSE: Final = 3
_ENDS: Final = tuple('.!?:;"”)。！？；：')  # noqa: RUF001  Chinese has its own
_FIRST_IDEOGRAPH: Final = 0x2E80


def paragraphs(column: Sequence[Printed], page_step: float, rules: Rules) -> list[list[Printed]]:
    """Divide the lines of one column into paragraphs. `page_step`: usual step between lines of the page."""
    items = [bool(_ITEM.match(one.text)) for one in column]
    if sum(items) < 2 and not any(one.text.startswith(tuple(SIGNS)) for one in column):  # noqa: PLR2004
        items = [False] * len(column)  # a bullet or a number alone is no list, a box to be ticked is
    steps = steps_of(column)
    usual = float(np.percentile(steps, 40)) if steps else 0.0
    left, early = float(np.percentile([one.box.left for one in column], 30)), _end_early(column)
    prose = len(column) >= _MIN_PROSE and is_prose(column)
    parts, in_list = [[column[0]]], items[0]
    rule = [False, *(rules.part(above.box, below.box) for above, below in pairwise(column)), False]
    # Rules below several lines each are lines to write on.
    ruled = [one and not (rule[number] or rule[number + 2]) for number, one in enumerate(rule[1:-1])]
    for (above, below), step, is_early, begins, is_ruled in zip(
        pairwise(column), steps, early, items[1:], ruled, strict=True
    ):
        if begins:
            cut = not in_list
        elif in_list:
            cut = is_early and not _is_indented(below, parts[-1][0].box.left)
        else:
            ended = is_early and above.text.rstrip().endswith(_ENDS)
            indented = _is_indented(below, left) and not _is_indented(above, left)
            cut = prose and (ended or indented)
        goes_on = in_list and begins
        wide = step > (_APART if goes_on else _WIDE) * page_step or (step > _WIDER * usual and not goes_on)
        small, large = sorted((above.size, below.size))
        differ = above.stands_out != below.stands_out or (
            above.stands_out and (large > _OTHER_SIZE * small or above.is_bold != below.is_bold)
        )
        if cut or wide or is_ruled or differ or PAGE_NUMBER.fullmatch(below.text):
            parts.append([])
            in_list = begins
        parts[-1].append(below)
    return parts


def is_prose(lines: Sequence[Printed]) -> bool:
    """Return whether lines are filled until no further word fits."""
    early = _end_early(lines)
    return bool(early) and float(np.mean(early)) <= 1 - _FULL


def steps_of(column: Sequence[Printed]) -> list[float]:
    """Return the steps between lines."""
    return [middle(below.box)[1] - middle(above.box)[1] for above, below in pairwise(column)]


def _end_early(column: Sequence[Printed]) -> list[bool]:
    """Return for each line except the last whether the next line's first word would have fitted."""
    right = float(np.percentile([one.box.right for one in column], 85))
    early = []
    for above, below in pairwise(column):
        width, words = below.height, words_of(below.line)
        if ord(below.text[:1] or " ") < _FIRST_IDEOGRAPH:  # Chinese has no spaces between words
            width = words[0].box.right - words[0].box.left if words else 0
        early.append(right - above.box.right > width + below.height)
    return early


def _is_indented(one: Printed, left: float) -> bool:
    return _INDENT * one.height < one.box.left - left < _MAX_INDENT * one.height
