"""The characters of a line: its words, spaces that recognition lost, raised signs. Needs OpenCV (pecia[cpu])."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_workers.layout.lines import is_unit, runs_of

_AROUND: Final = " .,;:!?()[]\"'“”‘’_□–—"  # noqa: RUF001  all of them
"""Punctuation at a word's ends, or between words."""


class Character(NamedTuple):
    """One character of a line as it was recognised."""

    text: str
    middle: float
    """Place of its middle from the left, as a share of the line's width."""
    confidence: float
    rival: str = ""
    """The second-best character at its place."""
    rival_confidence: float = 0.0


def text_of_characters(line: Sequence[Character]) -> str:
    """Return their text."""
    return "".join(one.text for one in line)


def words_and_spaces(line: Sequence[Character]) -> Iterator[Sequence[Character]]:
    """Yield the words of a line, and the spaces between them."""
    for _, group in groupby(line, key=lambda one: one.text.isspace()):
        yield tuple(group)


def sureness_of(word: Sequence[Character]) -> float:
    """Return the confidence of a word: that of its weakest character without punctuation around it; 1 for a space."""
    text = text_of_characters(word)
    start, end = len(text) - len(text.lstrip(_AROUND)), len(text.rstrip(_AROUND))
    return min((one.confidence for one in word[start:end]), default=1.0)


def agreed(first: Sequence[Character], second: Sequence[Character]) -> list[Character]:
    """Return the first of two readings of a line with those words of the second that are surer.

    A word in both gets the higher confidence; others are exchanged if both readings have the same number of words.
    """
    lines = [list(words_and_spaces(line)) for line in (first, second)]
    words, others = lines
    texts = [[text_of_characters(word) for word in line] for line in lines]
    for tag, start, end, other, other_end in SequenceMatcher(
        None, texts[0], texts[1], autojunk=False
    ).get_opcodes():
        if tag == "equal" or (len(words) == len(others) and end - start == other_end - other):
            pairs = zip(words[start:end], others[other:other_end], strict=True)
            words[start:end] = [max(pair, key=sureness_of) for pair in pairs]
    return [one for word in words for one in word]


_TALL: Final = 0.8
"""Share of a line's letters that are at most as high as its digits and capitals."""
_LOWEST, _HIGHEST = 0.35, 0.8
"""Height of a raised sign, relative to the line's digits."""
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
_MAY_BE_FOLLOWED: Final = re.compile(r"[\d%)]$|[^\W\d_]{2}$|(?<![^\W\d_])m$")
"""Text that may have an exponent or a footnote sign: a number, a word, a unit."""
_FOOTNOTE: Final = re.compile(r"[1-9]\d?")
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
    """Tolerance of the middle of its character."""
    picture: NDArray[np.uint8]
    """The signs alone, dark on white, BGR."""


def line_ink(crop: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a mask, 0 and 1, of dark or light print in a BGR crop of a line."""
    grey = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY)
    _, ink = cv2.threshold(grey, 0, 1, cv2.THRESH_BINARY_INV | cv2.THRESH_OTSU)
    return (1 - ink if ink.mean() > 1 / 2 else ink).astype(np.uint8)


def raised_signs(crop: NDArray[np.uint8]) -> Iterator[Raised]:
    """Yield groups of signs that are above the base line and smaller than the line's letters."""
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
    groups: list[tuple[int, int]] = []
    for start, end in sorted(zip(left[signs].tolist(), (left + width)[signs].tolist(), strict=True)):
        if groups and start - groups[-1][1] < _GAP * tall:
            groups[-1] = (groups[-1][0], max(end, groups[-1][1]))
        else:
            groups.append((start, end))
    for first, last in groups:
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


def place_of(sign: Raised, line: Sequence[Character]) -> slice | None:
    """Return the characters as which a raised sign was read, none if it was dropped, and where it belongs.

    None: it is part of a recognised sign, such as the ring of a percent sign, or follows text without exponents.
    """
    low, high = sign.start - sign.margin, sign.end + sign.margin
    there = [place for place, one in enumerate(line) if low <= one.middle <= high]
    start = max((place + 1 for place, one in enumerate(line) if 0 <= one.middle < low), default=0)
    before = "".join(one.text for one in line[:start])
    texts = [line[place].text for place in there]
    are_high = (one in _HAVE_HIGH_PARTS or (one.isalpha() and one not in _READ_AS) for one in texts)
    if not _MAY_BE_FOLLOWED.search(before) or any(are_high):
        return None
    return slice(start, start + sum(one in _READ_AS for one in texts))


def as_raised(text: str, before: str, after: str) -> str | None:
    """Return an exponent or footnote sign in raised characters, or None if it is neither between these texts."""
    raised = text.translate(_TO_RAISED)
    if not text.strip("0") or not set(text) <= set(_SIGNS):  # a lone ring is no 0, but of a degree
        return None
    if _LENGTH.search(before):
        fits = raised in {"²", "³"} and not after[:1].isalnum()
    elif _POWER.search(before):
        fits = not re.match(r"[.,]?\d", after)
    elif _TEN.search(before) and (text[0] in "+-" or re.match(r"/[^\W\d]", after)):
        fits = True
    else:
        # Not in the middle of a number, nor above the stroke of a fraction.
        fits = bool(_FOOTNOTE.fullmatch(text)) and not re.match(r"[.,]?\d|/|[^\W\d_]{3}", after)
    is_there = before.endswith(raised) or after.startswith(raised)  # recognised, a little off its ink
    return raised if fits and not is_there else None


_LEAST, _BY_SPACES, _ALONE = 0.18, 0.85, 0.4
"""Least width of a lost space: relative to the line's height, and to its other spaces; their width if it has none."""
_LEAST_BEFORE_UNIT, _BY_CLOSE = 0.12, 1.5
"""The same between a number and its unit: relative to the line's height, and to gaps between its characters."""
_BEFORE: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z)]|[0-9])$")
_AFTER: Final = re.compile(r"[A-Za-z(][A-Za-z0-9]|[0-9]")
"""Text after a lost space: figures and punctuation leave gaps by their shape, and a single letter may be misplaced."""
_NUMBER: Final = re.compile(r"(?<![^\s(])\d+(?:[.,]\d+)?$")
_UNIT: Final = re.compile(r"[^\W\d_][^\s\d.,;:)]*")
_BY_BEFORE: Final = 1.6
"""Width of a space after a comma, relative to the gap before it: in numbers and monospaced faces both are equal."""


def with_lost_spaces(line: Sequence[Character], crop: NDArray[np.uint8]) -> list[Character]:
    """Return a line with the spaces that recognition missed, found in its ink."""
    places = [place for place, one in enumerate(line) if not one.text.isspace()]
    if len(places) < 2:  # noqa: PLR2004  a gap is between two
        return list(line)
    height, width = crop.shape[:2]
    starts, ends = runs_of(np.asarray(~line_ink(crop).any(axis=0))).T
    middles = np.array([line[place].middle for place in places])
    between = (middles[1:] + middles[:-1]) / 2 * width
    gaps = np.zeros(len(between))  # how far the ink of neighbours is apart, by the height of the line
    if len(starts):
        nearest = np.abs(between - ((starts + ends) / 2)[:, np.newaxis]).argmin(axis=1)
        inside = (starts > 0) & (ends < width)
        np.maximum.at(gaps, nearest[inside], (ends - starts)[inside] / height)
    parts = np.diff(places) > 1
    spaces = float(np.median(gaps[parts])) if parts.any() else _ALONE
    least = max(_LEAST, _BY_SPACES * spaces)
    close = float(np.median(gaps[~parts])) if not parts.all() else spaces
    found, text = list(line), text_of_characters(line)
    gaps_before = [0.0, *gaps.tolist()]
    for place, gap, before in reversed(list(zip(places[1:], gaps.tolist(), gaps_before, strict=False))):
        unit = _UNIT.match(text, place)
        is_before_unit = unit is not None and is_unit(unit[0]) and bool(_NUMBER.search(text[:place]))
        is_after_comma = text[place - 1] in ",;" and text[place].isalnum() and gap >= _BY_BEFORE * before
        is_between_words = bool(_BEFORE.search(text[:place]) and _AFTER.match(text, place))
        may_part = is_after_comma or (is_between_words and not text[place - 1 : place + 1].isdigit())
        least_before_unit = max(_LEAST_BEFORE_UNIT, _BY_CLOSE * close)
        if (may_part and gap >= least) or (is_before_unit and gap >= least_before_unit):
            found.insert(place, Character(" ", -1.0, 1.0))
    return found
