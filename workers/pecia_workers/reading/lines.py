"""Pieces of text put together: into rows, lines and the boxes around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from pecia_schemas.blocks import Box, Line, Word
from pecia_workers.reading.order import Boxes, reading_order


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
        words=tuple(word for piece in row for word in _words(piece))
        if any(piece.words for piece in row)
        else (),
    )


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest box that holds all."""
    corners = np.array([_corners(box) for box in boxes])
    left, top = corners[:, :2].min(axis=0).tolist()
    right, bottom = corners[:, 2:].max(axis=0).tolist()
    return Box(left=left, top=top, right=right, bottom=bottom)


def corners_of(things: Sequence[Placed]) -> Boxes:
    """Return where things stand as an array."""
    return np.array([_corners(thing.box) for thing in things], dtype=np.float64).reshape(-1, 4)


def mean_confidence(lines: Sequence[Line]) -> float | None:
    """Return the mean confidence of the lines that have one, weighted by length; None if none has."""
    known = [(len(line.text), line.confidence) for line in lines if line.confidence is not None]
    length = sum(weight for weight, _ in known)
    return sum(weight * confidence for weight, confidence in known) / length if length else None


def _words(piece: Line) -> tuple[Word, ...]:
    return piece.words or (Word(text=piece.text, box=piece.box, confidence=piece.confidence),)


def _corners(box: Box) -> tuple[int, int, int, int]:
    return box.left, box.top, box.right, box.bottom
