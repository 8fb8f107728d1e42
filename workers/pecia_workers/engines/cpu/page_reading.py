"""What every OCR library's reading of a page is made into: blocks, how much of the page they cover, and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import (
    Block,
    Box,
    Doubt,
    DoubtReason,
    Line,
    Source,
    Word,
)
from pecia_workers.engines.cpu.page_reader import PageRead
from pecia_workers.reading.coverage import Letters
from pecia_workers.reading.layout import layout
from pecia_workers.reading.lines import is_value

_LEAST_SHARE, _LEAST_LETTERS = 0.02, 12
"""Letters that were not read, from which a page is incomplete: pictures have some that are none."""


class Doubtful(NamedTuple):
    """Confidence of an engine below which about every other word is wrong."""

    word: float
    value: float


def page_read(
    pieces: Sequence[Line],
    pixels: NDArray[np.uint8],
    letters: Letters,
    doubtful: Doubtful,
    *,
    left_out: Sequence[Line] = (),
) -> PageRead:
    """Return what was read of a page, from recognised pieces of text in no order.

    `left_out`: pieces that may be text or specks. They are doubts, and no part of the text.
    """
    found = layout(pieces, pixels, source=Source.OCR)
    missed = letters.outside([_corners(piece.box) for piece in pieces])
    is_incomplete = len(missed) >= _LEAST_LETTERS and missed.share_of(letters) >= _LEAST_SHARE
    uncovered = missed.rows() if is_incomplete else ()
    return PageRead(
        blocks=found.blocks,
        coverage=1 - missed.share_of(letters) if len(letters) else None,
        doubts=(
            *found.doubts,
            *(Doubt(reason=DoubtReason.UNCOVERED, box=box) for box in uncovered),
            *_unsure(found.blocks, doubtful),
            *_left_out(left_out),
        ),
    )


def _left_out(pieces: Sequence[Line]) -> Iterator[Doubt]:
    for piece in pieces:
        on_value = any(map(is_value, piece.text.split()))
        yield Doubt(reason=DoubtReason.LOW_CONFIDENCE, box=piece.box, text=piece.text, on_value=on_value)


def _unsure(blocks: Sequence[Block], doubtful: Doubtful) -> Iterator[Doubt]:
    """Yield the words that the engine is not sure of; of a line without words, the line."""
    for line in (line for block in blocks for line in block.lines):
        words: Sequence[Word | Line] = line.words or (line,)
        for number, word in enumerate(words):
            if word.confidence is None or word.confidence >= max(doubtful):
                continue
            before = " ".join(earlier.text for earlier in line.words[:number])
            on_value = any(is_value(part, before) for part in word.text.split())
            if word.confidence < (doubtful.value if on_value else doubtful.word):
                reason = DoubtReason.LOW_CONFIDENCE
                yield Doubt(reason=reason, box=word.box, text=word.text, on_value=on_value)


def _corners(box: Box) -> NDArray[np.float32]:
    return np.array(
        [(box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom)],
        np.float32,
    )
