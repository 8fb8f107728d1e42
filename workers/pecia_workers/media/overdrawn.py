"""What a page shows beside the letters of its text layer, or over them, and the layer does not tell.

Letters that are drawn over other letters, as where a word was covered and another one written there; and a decimal
point or a minus sign that is a drawn shape, no letter: `1 5` for `1.5`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_workers.media.layer_characters import Character, Rectangle
from pecia_workers.media.layer_text import gap_between

_COMMON: Final = 0.35
"""Share of the smaller of two boxes that they have in common, from which one letter is over the other."""
_TWICE: Final = 0.15
"""How far a letter is from itself at most, by the font's size, in bold print that is drawn twice and in a shadow."""
_NARROW: Final = 0.3
"""Width by the font's size of letters that reach over others in italics: i, l, f."""
_LIKE_SIZE: Final = 1.5
"""How much larger one of their fonts is at most: a watermark is larger."""
_LEAST_COVERED: Final = 4
_DASHES: Final = "-\u2010\u2011\u2012\u2013\u2014\u2212/\\"
_CELL: Final = 2.0
"""Side of a cell in which characters are looked for, by their font's size."""

_CONTRAST: Final = 48
"""Grey levels by which a mark is darker than the paper beside it."""
_REACH: Final = 0.7
"""How far a mark is from the digits at most, by their font's size."""
_POINT, _POINT_PLACE = (0.06, 0.22), (-0.04, 0.2)
"""Least and greatest side of a point, and how far its middle is above the baseline, by the same size."""
_MINUS, _MINUS_HIGH, _MINUS_PLACE = (0.25, 0.75), (0.03, 0.15), (0.2, 0.5)
"""Width and height of a minus sign, and how far its middle is above the baseline."""


def letters_over_letters(characters: Sequence[Character | None]) -> set[int]:
    """Return the places of letters, digits and dashes that are drawn over others or below them, if there are several.

    Bold print that is drawn twice, a shadow and the accent over its letter are none.
    """
    cells: dict[tuple[int, int], list[int]] = {}
    found: set[int] = set()
    for place, one in enumerate(characters):
        if one is None or one.is_mark or one.is_turned or not (one.code.isalnum() or one.code in _DASHES):
            continue
        side = _CELL * one.size
        across, down = int(one.origin[0] // side), int(one.origin[1] // side)
        near = (
            cells.get((x, y), ()) for x in range(across - 1, across + 2) for y in range(down - 1, down + 2)
        )
        below = {at for places in near for at in places if (other := characters[at]) and _is_over(one, other)}
        found |= {place, *below} if below else set()
        cells.setdefault((across, down), []).append(place)
    return found if len(found) >= _LEAST_COVERED else set()


def _is_over(one: Character, other: Character) -> bool:
    moved = max(abs(one.origin[0] - other.origin[0]), abs(one.origin[1] - other.origin[1]))
    if one.order == other.order or (one.code == other.code and moved <= _TWICE * one.size):
        return False
    if not (one.code.isalnum() or other.code.isalnum()):
        return False
    if max(one.size, other.size) > _LIKE_SIZE * min(one.size, other.size):
        return False
    narrower = min(one.box[2] - one.box[0], other.box[2] - other.box[0])
    if narrower < _NARROW * one.size and not {one.code, other.code}.intersection(_DASHES):
        return False
    common = _area(
        (
            max(one.box[0], other.box[0]),
            max(one.box[1], other.box[1]),
            min(one.box[2], other.box[2]),
            min(one.box[3], other.box[3]),
        )
    )
    return common > _COMMON * min(_area(one.box), _area(other.box))


def _area(box: Rectangle) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def drawn_signs(characters: Sequence[Character | None], grey: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
    """Yield the places of digits before which a point or a minus sign is drawn that is no character; and which.

    A point stands between two digits, a minus sign before the first of a number, with white on all sides.
    """
    last: Character | None = None
    for place, one in enumerate(characters):
        if one is None:
            continue
        before, last = last, one
        if not one.code.isdecimal() or one.is_turned:
            continue
        gap = None if before is None else gap_between(before, one)
        edge = one.box[0] - 1.5 * _REACH * one.size
        start = edge if before is None or gap is None else max(edge, before.box[2])
        for left, width, high, above in _marks(one, start, grey):
            is_near = one.box[0] - (left + width) <= _REACH * one.size
            wide, tall = width / one.size, high / one.size
            follows_digit = before is not None and gap is not None and before.code.isdecimal()
            if follows_digit and gap is not None and gap <= _REACH and _is_within(max(wide, tall), _POINT):
                if _is_within(above, _POINT_PLACE):
                    yield place, "."
            elif (
                not follows_digit
                and is_near
                and _is_within(wide, _MINUS)
                and _is_within(tall, _MINUS_HIGH)
                and _is_within(above, _MINUS_PLACE)
            ):
                yield place, "-"


def _is_within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _marks(
    digit: Character, start: float, grey: NDArray[np.uint8]
) -> Iterator[tuple[float, float, float, float]]:
    """Yield what stands alone between a place on the line and a digit.

    Left, width and height in pixels, and how far its middle is above the baseline by the font's size.
    """
    baseline, size = digit.origin[1], digit.size
    left, right = max(0, round(start) + 1), max(0, round(digit.box[0]) - 1)
    top, bottom = max(0, round(baseline - size)), max(0, round(baseline + 0.3 * size))
    band = grey[top:bottom, left:right]
    if not band.size:
        return
    dark = band < int(band.max()) - _CONTRAST
    edges = np.flatnonzero(np.diff(dark.any(axis=0).astype(np.int8), prepend=0, append=0))
    for first, end in edges.reshape(-1, 2).tolist():
        rows = np.flatnonzero(dark[:, first:end].any(axis=1))
        high, middle = int(rows[-1] - rows[0]) + 1, float(rows[-1] + rows[0] + 1) / 2
        if 0 < first < end < band.shape[1] and rows[0] > 0 and rows[-1] + 1 < len(band):
            yield left + first, end - first, high, (baseline - top - middle) / size
