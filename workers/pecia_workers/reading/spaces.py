"""Spaces of a line that recognition lost: its ink shows them. Needs OpenCV (pecia[cpu])."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_workers.reading.characters import Character, text_of_characters
from pecia_workers.reading.superscripts import line_ink
from pecia_workers.reading.values import is_unit

_LEAST, _BY_SPACES, _ALONE = 0.18, 0.85, 0.4
"""How wide a lost space is: by the line's height, and by its other spaces; how wide those are if it has none."""
_LEAST_BEFORE_UNIT, _BY_CLOSE = 0.12, 1.5
"""The same between a number and its unit: by the line's height, and by the gaps between its characters."""
_BEFORE: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z)]|[0-9])$")
_AFTER: Final = re.compile(r"[A-Za-z(][A-Za-z0-9]|[0-9]")
"""What a lost space may part: figures and punctuation leave gaps by their own shape, and a single letter may be out of
place."""
_NUMBER: Final = re.compile(r"(?<![^\s(])\d+(?:[.,]\d+)?$")
_UNIT: Final = re.compile(r"[^\W\d_][^\s\d.,;:)]*")


def with_lost_spaces(line: Sequence[Character], crop: NDArray[np.uint8]) -> list[Character]:
    """Return a line with the spaces that are in its ink and not in what was recognised."""
    places = [place for place, one in enumerate(line) if not one.text.isspace()]
    if len(places) < 2:  # noqa: PLR2004  a gap is between two
        return list(line)
    gaps = _gaps([line[place].middle for place in places], crop)
    parts = np.diff(places) > 1
    spaces = float(np.median(gaps[parts])) if parts.any() else _ALONE
    least = max(_LEAST, _BY_SPACES * spaces)
    close = float(np.median(gaps[~parts])) if not parts.all() else spaces
    found, text = list(line), text_of_characters(line)
    for place, gap in reversed(list(zip(places[1:], gaps.tolist(), strict=True))):
        before_unit = gap >= max(_LEAST_BEFORE_UNIT, _BY_CLOSE * close) and _is_before_unit(text, place)
        if before_unit or (gap >= least and _may_part(text, place)):
            found.insert(place, Character(" ", -1.0, 1.0))
    return found


def _gaps(middles: Sequence[float], crop: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return how far the ink of neighbouring characters is apart, by the height of the line."""
    height, width = crop.shape[:2]
    empty = np.concatenate([[0], ~line_ink(crop).any(axis=0), [0]])
    starts, ends = np.flatnonzero(np.diff(empty) == 1), np.flatnonzero(np.diff(empty) == -1)
    between = (np.array(middles[1:]) + middles[:-1]) / 2 * width
    gaps = np.zeros(len(between))
    if len(starts):
        nearest = np.abs(between - ((starts + ends) / 2)[:, np.newaxis]).argmin(axis=1)
        inside = (starts > 0) & (ends < width)
        np.maximum.at(gaps, nearest[inside], (ends - starts)[inside] / height)
    return gaps


def _is_before_unit(text: str, place: int) -> bool:
    unit = _UNIT.match(text, place)
    return unit is not None and is_unit(unit[0]) and _NUMBER.search(text[:place]) is not None


def _may_part(text: str, place: int) -> bool:
    return (
        bool(_BEFORE.search(text[:place]) and _AFTER.match(text, place))
        and not text[place - 1 : place + 1].isdigit()
    )
