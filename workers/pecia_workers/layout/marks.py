"""Boxes and circles of a form, ticked or empty, and lines to be signed. Needs OpenCV (pecia[cpu])."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Line, Mark, MarkKind, MarkState, Source, Word
from pecia_workers.layout.lines import Mask, around, box_of, is_mostly_backward, middle, words_of

SIGNS: Final = "☐☑○◉"
"""Signs of marks in the text: boxes, then circles, each unticked and ticked."""

_CONTRAST: Final = 24
"""Least contrast of ink with its ground, in grey levels."""
_SIDES: Final = (0.55, 2.6)
"""Least and greatest side of a mark, in heights of a line."""
_MIN_PIXELS: Final = 11
_MIN_SIDE_INK: Final = 0.85
"""Share of each side of a box that is drawn."""
_EMPTY, _TICKED = 0.05, 0.1
"""Share of ink inside a mark: most in an empty one, and least in a ticked one."""
_MIN_CIRCLE: Final = 0.5
"""Least side of a circle; smaller ones are bullets and letters."""
_ROUND: Final = 0.07
"""Greatest spread of a circle's radius."""
_SOLID: Final = 0.6
"""Share of ink inside its sides from which a box is a bullet or picture, unless hollow ones have its size."""
_CORNER, _MIN_CORNER_INK = 3, 0.5
"""Pixels from a corner, and the share of ink there; letters are round."""
_MAX_STEM: Final = 0.2
"""Greatest extension of a box's side beyond its corners, relative to its height."""
_MAX_ASPECT: Final = 1.2
_FIRST_IDEOGRAPH: Final = 0x2E80
_WIDER: Final = 1.1
"""Margin around a letter for its ink, relative to its width."""
_LABEL_GAP: Final = 2.0
"""White space that ends a label, in heights of a line."""
_GLYPHS: Final = frozenset("□☐☑☒■▢○◯◉●❑❒口OQ0Xx[]()")
"""Characters as which engines read boxes and circles."""
_BOXED: Final = frozenset("区図网冈凶囚因困团国图田回日目四囗圆园凹凸")
"""The same on pages without Chinese text: mostly ticked boxes."""
_FEW: Final = 0.1
"""Share of Chinese characters up to which a page counts as without Chinese text."""
_FUSED: Final = re.compile(r"^[□☐☑☒■▢○◯◉●❑❒]+(?=\w)")
_SIGNATURE: Final = re.compile(
    r"\b(signature|signed|sign here|unterschrift|firma)\b|签名|签字|서명", re.IGNORECASE
)


def find_marks(
    pixels: NDArray[np.uint8], pieces: Sequence[Line], height: float, *, source: Source
) -> list[Mark]:
    """Return the page's boxes and circles with their labels; none at the place of a letter."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    window = round(4 * height) | 1
    ink = (cv2.subtract(cv2.blur(grey, (window, window)), grey) > _CONTRAST).view(np.uint8)
    words = [word for piece in pieces for word in words_of(piece)]
    glyphs = _glyphs_of(pieces)
    letters = [word for word in words if source is Source.LAYER and any(map(str.isalnum, word.text))]
    squares = list(_squares(ink, height))
    boxes = [
        box
        for box in squares
        if not (_is_within(box, letters) or _is_of_letters(ink, box, squares, pieces, glyphs))
    ]
    hollow = [box for box in boxes if _filled(ink, box, 0.18, until=0.32) < _SOLID]
    boxes = [box for box in boxes if box in hollow or _peers(box, hollow)]
    circles = [box for box in _circles(ink, words, height, glyphs) if not _is_within(box, letters)]
    found = [
        *((MarkKind.CHECKBOX, box, _state(ink, box)) for box in boxes),
        *((MarkKind.RADIO, box, _state(ink, box)) for box in circles if _peers(box, circles) > 1),
    ]
    places = [box for _, box, _ in found]
    words = [word for word in words if not any(_is_glyph(word, box, glyphs) for box in places)]
    words.sort(key=lambda word: word.box.left)
    marks = []
    for kind, box, state in found:
        # Its label is behind it, up to the next mark or wide white space, or before it.
        x, y = middle(box)
        level = [one for one in words if one.box.top < y < one.box.bottom]
        stops = [middle(mark)[0] for mark in places if abs(middle(mark)[1] - y) < 0.5 * height]
        last = max((stop for stop in stops if stop < x - 1), default=-1.0)
        following = min((stop for stop in stops if stop > x + 1), default=1_000_000.0)
        behind = _close([one for one in level if x < middle(one.box)[0] < following], box.right, height)
        before = _close([one for one in reversed(level) if last < middle(one.box)[0] < x], box.left, height)
        label = " ".join(_FUSED.sub("", word.text) for word in behind or reversed(before))
        marks.append(Mark(kind=kind, box=box, state=state, label=label))
    return marks


def signature_lines(across: Mask, pieces: Sequence[Line], height: float) -> list[Mark]:
    """Return the lines for signatures: ruling lines with such a word below or before them."""
    labels = [piece for piece in pieces if _SIGNATURE.search(piece.text)]
    if not labels:
        return []
    marks = []
    _, _, stats, _ = cv2.connectedComponentsWithStats(across, connectivity=8)
    for left, top, width, depth, _ in stats[1:].tolist():
        box = box_of(left, top, left + width, top + depth)
        for label in labels:
            x, y = middle(label.box)
            below = 0 <= y - box.bottom < 1.5 * height and box.left - height < x < box.right
            before = (
                0 <= box.left - label.box.right < 2 * height and abs(label.box.bottom - box.bottom) < height
            )
            if below or before:
                names = (middle(piece.box) for piece in pieces if piece is not label)
                signed = any(left <= x <= left + width and 0 <= top - y < 1.5 * height for x, y in names)
                state = MarkState.TICKED if signed else MarkState.EMPTY
                marks.append(Mark(kind=MarkKind.SIGNATURE_LINE, box=box, state=state, label=label.text))
                break
    return marks


def with_signs(pieces: Sequence[Line], marks: Sequence[Mark], height: float) -> list[Line]:
    """Return the pieces with a sign at the place of each box and circle.

    It replaces the engine's reading of the mark, or is inserted between two words.
    """
    pieces, near, glyphs = list(pieces), 0.3 * height, _glyphs_of(pieces)
    for mark in marks:
        x, y = middle(mark.box)
        number = 2 * (mark.kind is MarkKind.RADIO) + (mark.state is MarkState.TICKED)
        sign = Word(text=SIGNS[number], box=mark.box)
        for place, piece in enumerate(pieces):
            box = piece.box
            if box.top < y < box.bottom and box.left - near < x < box.right + near:
                words = [word for word in words_of(piece) if not _is_glyph(word, mark.box, glyphs)]
                before = [word for word in words if middle(word.box)[0] < x]
                after = [word for word in words if middle(word.box)[0] >= x]
                if is_mostly_backward(piece.text):
                    before, after = after, before
                if after:
                    after[0] = after[0].model_copy(update={"text": _FUSED.sub("", after[0].text)})
                glue = " " if " " in piece.text else ""  # Chinese has no spaces between words
                parts = (glue.join(word.text for word in some) for some in (before, [sign], after) if some)
                box, found = around([box, mark.box]), (*before, sign, *after)
                pieces[place] = Line(text=" ".join(parts), box=box, confidence=piece.confidence, words=found)
                break
        else:
            pieces.append(Line(text=sign.text, box=mark.box, words=(sign,)))
    return pieces


def _glyphs_of(pieces: Sequence[Line]) -> frozenset[str]:
    """Return the characters that mean boxes and circles in a page's text."""
    letters = [
        letter for piece in pieces for letter in piece.text if letter.isalpha() and letter not in _GLYPHS
    ]
    ideographs = [letter for letter in letters if ord(letter) >= _FIRST_IDEOGRAPH]
    rare = len(ideographs) <= _FEW * len(letters) or _BOXED.issuperset(ideographs)
    return _GLYPHS | _BOXED if rare else _GLYPHS


def _is_glyph(word: Word, mark: Box, glyphs: frozenset[str]) -> bool:
    side = mark.right - mark.left
    return glyphs.issuperset(word.text) and abs(middle(word.box)[0] - middle(mark)[0]) < side


def _squares(ink: Mask, height: float) -> Iterator[Box]:
    """Yield the boxes: four straight sides of similar lengths that meet in corners.

    A tick may extend beyond them, but no side may go far above or below its corners, like the stems of P, b and d.
    """
    length = max(7, round(0.42 * height))
    across = cv2.morphologyEx(ink, cv2.MORPH_OPEN, np.ones((1, length), dtype=np.uint8))
    down = cv2.morphologyEx(ink, cv2.MORPH_OPEN, np.ones((length, 1), dtype=np.uint8))
    for place, part in _components(np.maximum(across, down), height, _SIDES[0], _MAX_ASPECT + 0.4):
        rows, columns = (np.flatnonzero(part.sum(axis) >= 0.7 * min(part.shape)) for axis in (1, 0))
        if not rows.size or not columns.size:
            continue
        high, wide = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        frame, tall = part[high, wide], part[:, wide]
        upright = np.hstack([tall[:, :_CORNER], tall[:, -_CORNER:]]).sum(axis=1) > 0
        beyond = int(upright.sum() - upright[high].sum())
        least = min(frame.shape)
        edge = max(2, round(0.15 * least))
        sides = (frame[:edge].any(0), frame[-edge:].any(0), frame[:, :edge].any(1), frame[:, -edge:].any(1))
        ends = (np.s_[:_CORNER], np.s_[-_CORNER:])
        corners = (frame[y, x] for y in ends for x in ends)
        if (
            max(frame.shape) <= _MAX_ASPECT * least
            and least >= _MIN_PIXELS
            and all(side.mean() > _MIN_SIDE_INK for side in sides)
            and all(corner.mean() > _MIN_CORNER_INK for corner in corners)
            and beyond <= _MAX_STEM * len(frame)
        ):
            left, top = place.left, place.top
            yield box_of(left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1)


def _circles(ink: Mask, words: Sequence[Word], height: float, glyphs: frozenset[str]) -> Iterator[Box]:
    """Yield the rings: ink at equal distance from the middle in all directions.

    White space around it and a label after it distinguish a ring from a letter.
    """
    for box, part in _components(ink, height, _MIN_CIRCLE, _MAX_ASPECT):
        down, across = np.nonzero(part)
        down, across = down - (part.shape[0] - 1) / 2, across - (part.shape[1] - 1) / 2
        radius, angle = np.hypot(across, down), np.degrees(np.arctan2(down, across))
        outer = np.zeros(24)
        np.maximum.at(outer, (angle // 15 % 24).astype(np.intp), radius)
        ring = float((radius > 0.7 * outer.max()).mean())
        if outer.std() >= _ROUND * outer.mean() or ring <= 0.5:  # noqa: PLR2004  of its ink
            continue
        left = ink[box.top : box.bottom, max(0, box.left - round(0.45 * height)) : box.left]
        right = ink[box.top : box.bottom, box.right : box.right + round(0.2 * height)]
        x, y = middle(box)
        level = [
            word.box
            for word in words
            if word.box.top < y < word.box.bottom and not _is_glyph(word, box, glyphs)
        ]
        after = min((other.left for other in level if middle(other)[0] > x), default=1_000_000)
        if not left.any() and not right.any() and after - box.right < _LABEL_GAP * height:
            yield box


def _components(
    ink: Mask, height: float, least: float, aspect: float
) -> Iterator[tuple[Box, NDArray[np.bool_]]]:
    """Yield the connected pieces of ink with the size and rough shape of a mark."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    sides = np.sort(stats[:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]], axis=1)
    fits = (sides[:, 0] >= max(_MIN_PIXELS, least * height)) & (sides[:, 1] <= _SIDES[1] * height)
    for label in np.flatnonzero(fits & (sides[:, 1] <= aspect * sides[:, 0])).tolist():
        left, top, width, depth = stats[label, :4].tolist()
        part = labels[top : top + depth, left : left + width] == label
        yield box_of(left, top, left + width, top + depth), part


def _state(ink: Mask, box: Box) -> MarkState:
    """Return whether there is ink inside, ignoring a shadow at the right and lower side."""
    if _filled(ink, box, 0.3) >= _TICKED:
        return MarkState.TICKED
    shadow = round(0.2 * (box.right - box.left))
    lit = box.model_copy(update={"right": box.right - shadow, "bottom": box.bottom - shadow})
    return MarkState.EMPTY if _filled(ink, lit, 0.25) <= _EMPTY else MarkState.UNCLEAR


def _filled(ink: Mask, box: Box, inset: float, until: float | None = None) -> float:
    """Return the share of ink inside a box, between two distances from its edges, in shares of its side."""
    outer = _inside(ink, box, inset)
    inner = outer[:0] if until is None else _inside(ink, box, until)
    return float(outer.sum(dtype=int) - inner.sum(dtype=int)) / max(1, outer.size - inner.size)


def _inside(ink: Mask, box: Box, inset: float) -> Mask:
    edge = max(3, round(inset * (box.right - box.left)))
    return ink[box.top + edge : box.bottom - edge, box.left + edge : box.right - edge]


def _is_of_letters(
    ink: Mask, box: Box, boxes: Sequence[Box], pieces: Sequence[Line], glyphs: frozenset[str]
) -> bool:
    """Return whether the box is one of a row of letter boxes, or a letter: close to the next, or read as a letter."""
    side = box.right - box.left
    row = sorted(other.left for other in boxes if abs(other.top - box.top) < 0.5 * side)
    near = [right - left < 1.6 * side for left, right in pairwise(row)]
    place = row.index(box.left)
    if any(near[k] and near[k + 1] for k in range(max(0, place - 2), min(place + 1, len(near) - 1))):
        return True
    x, y = middle(box)
    close = max(4, round(0.17 * side))
    if ink[round(y) : box.bottom, box.right + 2 : box.right + close].any():  # a tick goes beyond it above
        return True
    for piece in pieces:
        edge = 0.25 * (piece.box.bottom - piece.box.top)
        if not (piece.box.top < y < piece.box.bottom and piece.box.left + edge < x < piece.box.right - edge):
            continue
        letters = "".join(piece.text.split())
        known = glyphs if letters.startswith("口") else glyphs - {"口"}
        place = int((x - piece.box.left) / (piece.box.right - piece.box.left) * len(letters))
        there = letters[max(0, place - 1) : place + 2]
        if any(ord(letter) >= _FIRST_IDEOGRAPH for letter in there) and not set(there) & known:
            return True
        words = [word for word in words_of(piece) if word.box.left + edge < x < word.box.right - edge]
        if any(len(word.text) > 1 and word.text[0].isascii() for word in words):
            return True
    return False


def _is_within(box: Box, words: Sequence[Word]) -> bool:
    """Return whether the box is part of a word with an exact place."""
    x, y = middle(box)
    width = box.right - box.left
    return any(
        word.box.left < x < word.box.right
        and word.box.top < y < word.box.bottom
        and width <= _WIDER * (word.box.right - word.box.left)
        for word in words
    )


def _peers(box: Box, boxes: Sequence[Box]) -> int:
    """Return the number of marks of this size."""
    side = box.right - box.left
    return sum(abs(other.right - other.left - side) <= max(2, 0.1 * side) for other in boxes)


def _close(words: Sequence[Word], edge: float, height: float) -> list[Word]:
    """Return the first words, up to a wide gap."""
    close: list[Word] = []
    for word in words:
        gap = max(word.box.left - edge, edge - word.box.right)
        if gap > _LABEL_GAP * height:
            break
        close.append(word)
        edge = word.box.right if word.box.left >= edge - height else word.box.left
    return close
