"""Shapes of single characters in a crop of a line. Needs OpenCV (pecia[cpu]).

Recognition uses context and confuses `I10` with `110`; here characters are measured individually.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_workers.layout.characters import Character, line_ink
from pecia_workers.layout.lines import runs_of

_LEAST_INK: Final = 3
"""Least pixels of ink; less is a speck."""
_COMMON: Final = 0.5
"""Horizontal overlap of two pieces, as a share of the narrower, from which they form one sign."""
_OFF: Final = 0.15
"""Distance between a recognised character and its ink, relative to the line's height."""
_WIDE, _NARROW = 0.86, 0.74
"""Width by height of a ring, from which it is an O, and to which it is a 0: print has 0.9 to 1 and 0.55 to 0.7."""
_FLAG, _EVEN = 0.12, 0.06
"""Excess of a stem's top to the left over the right, relative to its height: least of a 1, and most of an I."""
_SERIF, _BAR = 0.07, 0.05
"""Extent of an I's top to both sides of its stem, relative to its height, and that of a plain bar."""
_TOP: Final = 0.4
_FIRST, _LAST = 0.4, 0.85
"""Rows of a stem, by its height, between which its slant is measured."""
_LEAST_SLANT: Final = 0.1
_TALL, _LOW = 0.9, 0.8
"""Height of a sign, relative to adjacent digits, from which it is tall, and up to which it is low."""
_LEAST_HEIGHT: Final = 10
"""Least height, in pixels, at which shapes are measured."""


LOW: Final = frozenset("cosuvwxz")
"""Letters shaped like their capitals, but lower than digits."""


@dataclass(frozen=True, slots=True)
class Glyph:
    """The ink of one character."""

    left: int
    right: int
    ink: NDArray[np.int32]
    """Ink of its columns, each piece with its own number."""
    pieces: frozenset[int]
    """Numbers of its own pieces."""

    @property
    def picture(self) -> NDArray[np.bool_]:
        """The character alone."""
        picture = np.isin(self.ink, list(self.pieces))
        rows = np.flatnonzero(picture.any(axis=1))
        return picture[rows[0] : rows[-1] + 1]


def glyphs(line: Sequence[Character], crop: NDArray[np.uint8]) -> list[Glyph | None]:
    """Return the ink of each character of a line with a digit.

    None for a space, and where it is connected with its neighbour's.
    """
    found: list[Glyph | None] = [None] * len(line)
    if not any(sign.text.isdigit() for sign in line):
        return found
    ink = line_ink(crop)
    _, labelled, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    labels = labelled.astype(np.int32, copy=False)
    merged: list[tuple[int, int, frozenset[int]]] = []
    for left, width, area, number in sorted(
        (int(x), int(w), int(area), n) for n, (x, _, w, _, area) in enumerate(stats) if n
    ):
        right = left + width
        if area < _LEAST_INK:
            continue
        start, end, pieces = merged[-1] if merged else (0, 0, frozenset[int]())
        if merged and min(end, right) - left >= _COMMON * min(end - start, width):
            merged[-1] = (start, max(end, right), pieces | {number})
        else:
            merged.append((left, right, frozenset({number})))
    if not merged:
        return found
    lefts, rights = np.array([sides[:2] for sides in merged], dtype=np.float64).T
    height, wide = crop.shape[:2]
    places = np.array([sign.middle for sign in line])[:, np.newaxis] * wide
    away = np.maximum(np.maximum(lefts - places, places - rights), 0)
    nearest = (away + np.abs((lefts + rights) / 2 - places) / (1000 * wide)).argmin(axis=1).tolist()
    seen = [
        owner if not sign.text.isspace() and off[owner] <= _OFF * height else None
        for sign, off, owner in zip(line, away, nearest, strict=True)
    ]
    printed = [place for place, sign in enumerate(line) if not sign.text.isspace()]
    if len(printed) == len(merged):  # in a narrow crop a character may be seen beside itself
        for number, place in enumerate(printed):
            seen[place] = number
    for place, owner in enumerate(seen):
        if owner is not None and seen.count(owner) == 1:
            left, right, pieces = merged[owner]
            found[place] = Glyph(left, right, labels[:, left:right], pieces)
    return found


def looks_like(glyph: Glyph | None, signs: str, digit: float = 0.0) -> str:
    """Return which of two signs the ink resembles, empty if unclear.

    The pair is `0O`, `1I` or one whose first sign only is as high as a digit. `digit`: height of digits in pixels.
    """
    if glyph is None:
        return ""
    picture = glyph.picture
    height, width = picture.shape
    if height < _LEAST_HEIGHT:
        return ""
    low = [sign for sign in signs if sign in LOW]
    if len(low) == 1:
        size = height / digit if digit else (_TALL + _LOW) / 2
        return signs.replace(low[0], "") if size >= _TALL else low[0] if size <= _LOW else ""
    if set(signs) == {"1", "I"}:
        return _stem(_upright(picture))
    if set(signs) != {"0", "O"} or not _is_ring(picture):
        return ""
    return "O" if width >= _WIDE * height else "0" if width <= _NARROW * height else ""


def digit_height(glyphs: Sequence[Glyph | None], word: Sequence[Character], place: int) -> float:
    """Return the height of a word's digits, except the one at `place`; 0 without any."""
    pictures = [
        glyph.picture
        for number, (glyph, sign) in enumerate(zip(glyphs, word, strict=True))
        if glyph and number != place and sign.text.isascii() and sign.text.isdigit()
    ]
    return float(np.median([len(picture) for picture in pictures])) if pictures else 0.0


def _is_ring(picture: NDArray[np.bool_]) -> bool:
    height, width = picture.shape
    core = picture[height * 2 // 5 : height * 3 // 5 + 1, width * 2 // 5 : width * 3 // 5 + 1]
    sides = picture[height // 3 : height * 2 // 3 + 1]
    return bool(
        core.mean() < _COMMON and sides[:, : width // 3 + 1].any() and sides[:, -(width // 3) - 1 :].any()
    )


def _upright(picture: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a stem without the slant of italics."""
    height, width = picture.shape
    rows = np.arange(round(_FIRST * height), round(_LAST * height))
    ink = picture[rows]
    rows, ink = rows[ink.any(axis=1)], ink[ink.any(axis=1)]
    if len(rows) < _LEAST_INK:
        return picture
    middles = (ink.argmax(axis=1) + width - 1 - ink[:, ::-1].argmax(axis=1)) / 2
    slant = -float(np.polyfit(rows, middles, 1)[0])
    if slant <= _LEAST_SLANT:
        return picture
    moved = np.zeros((height, width + round(slant * height)), np.bool_)
    for row, shift in enumerate(np.round(slant * np.arange(height)).astype(int).tolist()):
        moved[row, shift : shift + width] = picture[row]
    return moved[:, moved.any(axis=0).argmax() :]


def _stem(picture: NDArray[np.bool_]) -> str:
    height = picture.shape[0]
    columns = picture.mean(axis=0)
    stem = np.flatnonzero(columns >= 0.8 * columns.max())
    top = np.flatnonzero(picture[: max(1, round(_TOP * height))].any(axis=0))
    left, right = (stem[0] - top[0]) / height, (top[-1] - stem[-1]) / height
    if left - right >= _FLAG:
        return "1"
    has_serifs = min(left, right) >= _SERIF
    is_bar = np.flatnonzero(columns)[-1] - stem[-1] + stem[0] <= _BAR * height
    return "I" if abs(left - right) <= _EVEN and (has_serifs or is_bar) else ""


_ASIDE, _ABOVE, _HALF = 0.1, 0.12, 0.3
"""Margin around a cut-out word, relative to the line's height, and to its ink's; half of an unseen character."""


def enlarged(
    line: Sequence[Character], signs: Sequence[Glyph | None], word: slice, crop: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return a word of a line alone, with a minimal margin, so that recognition enlarges it."""
    height, width = crop.shape[:2]
    first, last = word.start, word.stop - 1
    start, end = (
        glyph.left - _ASIDE * height
        if (glyph := signs[first])
        else line[first].middle * width - _HALF * height,
        glyph.right + _ASIDE * height
        if (glyph := signs[last])
        else line[last].middle * width + _HALF * height,
    )
    empty = line_ink(crop).max(axis=0) == 0
    before = max((sign.middle for sign in line[:first]), default=-1.0)
    after = max((sign.middle for sign in line[last + 1 : last + 3]), default=-1.0)
    if before >= 0:  # not into the word before it, nor into the one behind
        start = max(start, _middle_of_gap(empty, before * width, line[first].middle * width))
    if after >= 0:
        end = min(end, _middle_of_gap(empty, line[last].middle * width, after * width))
    left = min(max(0, round(start)), width - 1)
    part = crop[:, left : max(left + 1, round(end))]
    rows = np.flatnonzero(line_ink(part).any(axis=1))
    margin = round(_ABOVE * (rows[-1] - rows[0] + 1)) if len(rows) else 0
    return np.ascontiguousarray(part[max(0, rows[0] - margin) : rows[-1] + 1 + margin] if len(rows) else part)


def _middle_of_gap(empty: NDArray[np.bool_], start: float, end: float) -> float:
    """Return the middle of the widest run of columns without ink between two places."""
    first = max(0, round(start))
    gaps = runs_of(empty[first : round(end) + 1])
    return first + float(gaps[np.ptp(gaps, axis=1).argmax()].mean()) if gaps.size else (start + end) / 2
