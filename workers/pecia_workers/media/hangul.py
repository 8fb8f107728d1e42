"""Which way up Korean text stands, for which the classifier of lines has no eye.

Beside the upright stroke of a syllable's vowel its consonant stands to the left, and to the right the next syllable
keeps away. On the head it is the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from pecia_workers.media.lines import Span

_TALL, _THIN = 0.55, 0.3
"""An upright stroke, by the height of its line."""
_BESIDE, _CLEAR = 0.4, 0.06
"""How far is looked to both sides, and what belongs to the stroke itself."""
_LEAST_STROKES: Final = 20
_LEAST_LEAN: Final = 0.12
"""Measured: Korean 0.16 to 0.31, English at most 0.1, a form of few words 0.18."""
_LEAST_SURENESS: Final = 3.0
"""By the standard error of the mean."""


def stands_on_head(letters: NDArray[np.bool_], spans: Iterable[Span]) -> bool | None:
    """Return whether lines that run across stand on their heads; None if they do not look Korean."""
    leans = np.array([lean for span in spans for lean in _leans(letters, span)])
    if len(leans) < _LEAST_STROKES:
        return None
    mean = float(leans.mean())
    error = float(leans.std()) / len(leans) ** 0.5
    if abs(mean) < _LEAST_LEAN or abs(mean) < _LEAST_SURENESS * error:
        return None
    return mean < 0


def _leans(letters: NDArray[np.bool_], span: Span) -> list[float]:
    """Return for each upright stroke how much more ink there is to its left than to its right, -1 to 1."""
    piece = letters[span.top : span.bottom, span.left : span.right]
    height, width = piece.shape
    gap, reach = max(1, round(height * _CLEAR)), round(height * (_CLEAR + _BESIDE))
    ink = np.concatenate([[0], piece.sum(axis=0).cumsum()])
    tall = np.pad(_longest_runs(piece) >= _TALL * height, 1)
    starts, ends = np.flatnonzero(~tall[:-1] & tall[1:]), np.flatnonzero(tall[:-1] & ~tall[1:])
    leans: list[float] = []
    for start, end in zip(starts, ends, strict=True):
        if end - start > _THIN * height or start < reach or end + reach > width:
            continue
        left = float(ink[start - gap] - ink[start - reach])
        right = float(ink[end + reach] - ink[end + gap])
        leans.append((left - right) / max(left + right, 1.0))
    return leans


def _longest_runs(piece: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the length of the longest unbroken run of ink in each column."""
    run = longest = np.zeros(piece.shape[1], dtype=np.int64)
    for row in piece:
        run = (run + 1) * row
        longest = np.maximum(longest, run)
    return longest
