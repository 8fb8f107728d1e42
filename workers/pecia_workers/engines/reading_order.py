"""From pieces of text where they stand to lines in the order a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pecia_schemas.blocks import Box, Line, mean_confidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MIN_COLUMN_LINES: Final = 4
_PROSE_FILL: Final = 0.6
"""Share of its column that a line of running text fills; the cells of a table fill less."""
_MIN_COLUMN_SHARE: Final = 0.25
_GUTTERS: Final = 41


def in_reading_order(pieces: Sequence[Line]) -> tuple[Line, ...]:
    """Return whole lines, top to bottom and left to right; columns of running text one after the other.

    Pieces that stand side by side, as in a table's row, become one line.
    """
    ordered: list[Line] = []
    for section in _sections(sorted(pieces, key=lambda piece: _middle(piece.box))):
        ordered += _rows(section)
    return tuple(ordered)


def _sections(pieces: list[Line]) -> Iterable[list[Line]]:
    """Cut the page into stretches that are read row by row: columns, and what spans them."""
    gutter = _gutter(pieces)
    if gutter is None:
        yield pieces
        return
    beside: list[Line] = []
    for piece in pieces:
        if piece.box.left < gutter < piece.box.right:
            yield from _columns(beside, gutter)
            yield [piece]
            beside = []
        else:
            beside.append(piece)
    yield from _columns(beside, gutter)


def _columns(pieces: list[Line], gutter: float) -> list[list[Line]]:
    left = [piece for piece in pieces if piece.box.right <= gutter]
    right = [piece for piece in pieces if piece.box.left >= gutter]
    return [left, right] if _is_prose(left) and _is_prose(right) else [pieces]


def _gutter(pieces: list[Line]) -> float | None:
    """Return where the fewest pieces cross a vertical line near the middle, or None without two columns of prose."""
    if len(pieces) < 2 * _MIN_COLUMN_LINES:
        return None
    left, right = min(piece.box.left for piece in pieces), max(piece.box.right for piece in pieces)
    places = np.linspace(
        left + (right - left) * _MIN_COLUMN_SHARE, right - (right - left) * _MIN_COLUMN_SHARE, _GUTTERS
    )
    starts = np.array([piece.box.left for piece in pieces])
    ends = np.array([piece.box.right for piece in pieces])
    crossings = ((starts < places[:, np.newaxis]) & (ends > places[:, np.newaxis])).sum(axis=1)
    clearest = np.flatnonzero(crossings == crossings.min())
    gutter = float(places[clearest[len(clearest) // 2]])
    return (
        gutter
        if len(_columns([piece for piece in pieces if not _spans(piece, gutter)], gutter)) > 1
        else None
    )


def _spans(piece: Line, gutter: float) -> bool:
    return piece.box.left < gutter < piece.box.right


def _is_prose(pieces: list[Line]) -> bool:
    if len(pieces) < _MIN_COLUMN_LINES:
        return False
    width = max(piece.box.right for piece in pieces) - min(piece.box.left for piece in pieces)
    return bool(np.median([piece.box.right - piece.box.left for piece in pieces]) > _PROSE_FILL * width)


def _rows(pieces: list[Line]) -> list[Line]:
    rows: list[list[Line]] = []
    for piece in sorted(pieces, key=lambda piece: _middle(piece.box)):
        if rows and _same_row(rows[-1], piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [joined(sorted(row, key=lambda piece: piece.box.left)) for row in rows]


def _same_row(row: list[Line], piece: Line) -> bool:
    middle = float(np.mean([_middle(other.box) for other in row]))
    height = min(_height(piece.box), *(_height(other.box) for other in row))
    return abs(_middle(piece.box) - middle) < height / 2


def joined(row: Sequence[Line]) -> Line:
    """Return pieces that stand side by side as one line."""
    if len(row) == 1:
        return row[0]
    return Line(
        text=" ".join(piece.text for piece in row),
        box=Box(
            left=min(piece.box.left for piece in row),
            top=min(piece.box.top for piece in row),
            right=max(piece.box.right for piece in row),
            bottom=max(piece.box.bottom for piece in row),
        ),
        confidence=mean_confidence(row),
    )


def _middle(box: Box) -> float:
    return (box.top + box.bottom) / 2


def _height(box: Box) -> int:
    return box.bottom - box.top
