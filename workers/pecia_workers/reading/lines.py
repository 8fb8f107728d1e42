"""Pieces of text put together: into rows, lines and the boxes around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Line, Word, mean_confidence
from pecia_workers.reading.order import reading_order
from pecia_workers.reading.sides import Boxes

Mask: TypeAlias = NDArray[np.uint8]
"""0 or 1 for each pixel of a page."""


class Placed(Protocol):
    """What stands somewhere on a page."""

    @property
    def box(self) -> Box:
        """Where."""
        ...


def rows_of(pieces: Sequence[Line]) -> list[list[Line]]:
    """Return pieces in reading order, those that stand side by side together."""
    if len(pieces) < 2:  # noqa: PLR2004  most cells of a table
        return [[piece] for piece in pieces]
    return [[pieces[one] for one in row] for stretch in reading_order(corners_of(pieces)) for row in stretch]


def joined(row: Sequence[Line]) -> Line:
    """Return pieces that stand side by side as one line."""
    if len(row) == 1:
        return row[0]
    return Line(
        text=" ".join(piece.text for piece in row),
        box=around(piece.box for piece in row),
        confidence=mean_confidence(row),
        words=tuple(word for piece in row for word in words_of(piece))
        if any(piece.words for piece in row)
        else (),
    )


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest box that holds all."""
    left, top, right, bottom = np.array([corners(box) for box in boxes]).T
    return Box(left=left.min(), top=top.min(), right=right.max(), bottom=bottom.max())


def corners_of(things: Sequence[Placed]) -> Boxes:
    """Return where things stand as an array."""
    return np.array([corners(thing.box) for thing in things], dtype=np.float64).reshape(-1, 4)


def words_of(piece: Line) -> tuple[Word, ...]:
    """Return a piece's words; where they stand is estimated from their lengths if it is not known."""
    if piece.words:
        return piece.words
    box, pitch = piece.box, (piece.box.right - piece.box.left) / max(1, len(piece.text))
    return tuple(
        Word(
            text=found.group(),
            box=Box(
                left=round(box.left + found.start() * pitch),
                top=box.top,
                right=round(box.left + found.end() * pitch),
                bottom=box.bottom,
            ),
            confidence=piece.confidence,
        )
        for found in re.finditer(r"\S+", piece.text)
    )


def middle(box: Box) -> tuple[float, float]:
    """Return x and y of a box's middle."""
    return (box.left + box.right) / 2, (box.top + box.bottom) / 2


def corners(box: Box) -> tuple[int, int, int, int]:
    """Return a box as left, top, right and bottom."""
    return box.left, box.top, box.right, box.bottom
