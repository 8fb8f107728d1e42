"""From pieces of text where they stand to the blocks of a page, in the order in which a person reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Block, BlockKind, Box, Doubt, Line, Source, Word
from pecia_workers.reading.order import reading_order

_ADDRESS: Final = re.compile(
    r"@\w|\bwww\.|https?://|\b(tel|telephone|phone|fax|mobile|telefon|e-?mail)\b"
    r"|\b\d{4,6}[ ,]+[^\W\d_]{3,}|\b[A-Z]{2,3} \d{4,5}\b|\b[A-Z]{1,2}\d{1,2} ?\d[A-Z]{2}\b"
    r"|^\d{1,5}[a-z]?,? [^\W\d_]{3,}|[^\W\d_]{4,}\.? \d{1,4}[a-z]?$",
    re.IGNORECASE,
)
"""A telephone number, a web or mail address, a postcode with its town, a street with its number."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands on a page, and what of it a person should look at."""

    blocks: tuple[Block, ...]
    doubts: tuple[Doubt, ...] = ()


def layout(
    pieces: Sequence[Line],
    pixels: NDArray[np.uint8],  # noqa: ARG001  tables and marks are found on them
    *,
    source: Source,
) -> Layout:
    """Return the page's blocks in reading order; every piece is in exactly one of them.

    `pieces` are in no order. `pixels` are the page's, in RGB, whatever the source of the text.
    """
    boxes = np.array([_corners(piece.box) for piece in pieces], dtype=np.float64).reshape(-1, 4)
    address = np.array([bool(_ADDRESS.search(piece.text)) for piece in pieces], dtype=np.bool_)
    stretches = reading_order(boxes, address=address)
    return Layout(
        tuple(
            text_block([joined([pieces[one] for one in row]) for row in stretch], source)
            for stretch in stretches
        )
    )


def text_block(lines: Sequence[Line], source: Source, kind: BlockKind = BlockKind.TEXT) -> Block:
    """Return lines as one block."""
    return Block(
        kind=kind,
        box=around(line.box for line in lines),
        text="\n".join(line.text for line in lines),
        lines=tuple(lines),
        confidence=_confidence(lines),
        source=source,
    )


def joined(row: Sequence[Line]) -> Line:
    """Return pieces that stand side by side as one line."""
    if len(row) == 1:
        return row[0]
    return Line(
        text=" ".join(piece.text for piece in row),
        box=around(piece.box for piece in row),
        confidence=_confidence(row),
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


def _words(piece: Line) -> tuple[Word, ...]:
    return piece.words or (Word(text=piece.text, box=piece.box, confidence=piece.confidence),)


def _confidence(lines: Sequence[Line]) -> float | None:
    known = [(len(line.text), line.confidence) for line in lines if line.confidence is not None]
    length = sum(weight for weight, _ in known)
    return sum(weight * confidence for weight, confidence in known) / length if length else None


def _corners(box: Box) -> tuple[int, int, int, int]:
    return box.left, box.top, box.right, box.bottom
