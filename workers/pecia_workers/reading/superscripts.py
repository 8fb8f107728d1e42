"""Raised small signs of a line, as in 10⁶: where they stand, and where in its text. Needs OpenCV (pecia[cpu])."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_workers.reading.characters import Character

_TALL: Final = 0.8
"""Share of the line's letters that are not higher than its digits and capitals."""
_LOWEST, _HIGHEST = 0.35, 0.8
"""Of a raised sign, its height by that of the line's digits."""
_ABOVE: Final = 0.3
"""How far above the base line it ends, by the same height."""
_INK_BELOW: Final = 0.1
"""Share of ink between a sign and the base line, from which it is the upper part of a broken letter."""
_GAP: Final = 0.45
_BORDER: Final = 0.5
_MARGIN: Final = 0.1
_SIGNS, _AS_RAISED = "0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_TO_RAISED: Final = str.maketrans(_SIGNS, _AS_RAISED)
_HAVE_HIGH_PARTS: Final = frozenset("%‰*\"'`´‘’“”™®©=÷±")  # noqa: RUF001  all of them
_READ_AS: Final = frozenset(_SIGNS + _AS_RAISED + "°ºª")
_BASES: Final = ("10", "m", "in", "ft")
"""What may have an exponent: a wrong one in a number is worse than a missed one."""
_POWER: Final = re.compile(r"[×xX*·]\s*10$")  # noqa: RUF001  the sign of multiplication
_TEN: Final = re.compile(r"(?<![\w.,])10$")
_LENGTH: Final = re.compile(r"(?<![^\W\d_])([kdcmµμ]?m|in|ft)$")


@dataclass(frozen=True, slots=True)
class Raised:
    """A group of raised signs in a crop of a line."""

    start: float
    end: float
    """From left to right, in shares of the crop's width."""
    margin: float
    """How far off the middle of its character may be."""
    picture: NDArray[np.uint8]
    """The signs alone, dark on white, BGR."""


def line_ink(crop: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a mask, 0 and 1, of the print in a crop of a line, BGR, be it dark or light."""
    grey = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY)
    _, ink = cv2.threshold(grey, 0, 1, cv2.THRESH_BINARY_INV | cv2.THRESH_OTSU)
    return (1 - ink if ink.mean() > 1 / 2 else ink).astype(np.uint8)


def raised_signs(crop: NDArray[np.uint8]) -> Iterator[Raised]:
    """Yield what stands higher than the line and is smaller than its letters."""
    ink = line_ink(crop)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    left, top, width, height, _ = stats.T
    letters = 1 + np.flatnonzero(height[1:] > crop.shape[0] * _LOWEST)
    if len(letters) < 2:  # noqa: PLR2004  a sign is raised beside something
        return
    tall = float(np.quantile(height[letters], _TALL))
    base = float(np.median((top + height)[letters[height[letters] > _TALL * tall]]))
    high = top + height <= base - _ABOVE * tall
    signs = 1 + np.flatnonzero(high[1:] & (height[1:] >= _LOWEST * tall) & (height[1:] <= _HIGHEST * tall))
    for first, last in _groups(left[signs], (left + width)[signs], _GAP * tall):
        part = high & (left + width / 2 > first - _GAP * tall) & (left + width <= last)
        part[0] = False
        start = int(left[part].min())
        picture = np.where(part[labels[:, start:last]], 0, 255).astype(np.uint8)
        rows = np.flatnonzero(picture.min(axis=1) == 0)
        if ink[rows[-1] + 1 : round(base), start:last].mean() > _INK_BELOW:
            continue
        border = round(_BORDER * tall)
        picture = np.pad(picture[rows[0] : rows[-1] + 1], border, constant_values=255)
        places = (start / crop.shape[1], last / crop.shape[1], _MARGIN * tall / crop.shape[1])
        yield Raised(*places, picture=np.repeat(picture[:, :, np.newaxis], 3, axis=2))


def _groups(left: NDArray[np.int32], right: NDArray[np.int32], gap: float) -> list[tuple[int, int]]:
    groups: list[tuple[int, int]] = []
    for start, end in sorted(zip(left.tolist(), right.tolist(), strict=True)):
        if groups and start - groups[-1][1] < gap:
            groups[-1] = (groups[-1][0], max(end, groups[-1][1]))
        else:
            groups.append((start, end))
    return groups


def place_of(sign: Raised, line: Sequence[Character]) -> slice | None:
    """Return which characters of a line a raised sign was read as, none if it was dropped; where it belongs.

    None: it is part of a sign that was read, as the ring of a percent sign, or follows nothing that has exponents.
    """
    low, high = sign.start - sign.margin, sign.end + sign.margin
    there = [place for place, one in enumerate(line) if low <= one.middle <= high]
    start = max((place + 1 for place, one in enumerate(line) if 0 <= one.middle < low), default=0)
    before = "".join(one.text for one in line[:start])
    if not before.endswith(_BASES) or any(_is_whole(line[place].text) for place in there):
        return None
    return slice(start, start + sum(line[place].text in _READ_AS for place in there))


def _is_whole(character: str) -> bool:
    """Return whether a small high part belongs to the character itself."""
    return character in _HAVE_HIGH_PARTS or (character.isalpha() and character not in _READ_AS)


def as_raised(text: str, before: str, after: str) -> str | None:
    """Return the exponent in raised characters; None if it is none between this text before and after it."""
    raised = text.translate(_TO_RAISED)
    if not text.strip("0") or not set(text) <= set(_SIGNS):  # a lone ring is no 0, but of a degree
        return None
    if _LENGTH.search(before):
        fits = raised in {"²", "³"} and not after[:1].isalnum()
    elif _POWER.search(before):
        fits = not re.match(r"[.,]?\d", after)
    else:
        fits = bool(_TEN.search(before)) and (text[0] in "+-" or bool(re.match(r"/[^\W\d]", after)))
    return raised if fits else None
