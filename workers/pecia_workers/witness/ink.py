"""Where the words of a recognised line stand: a recogniser knows it to within a letter, the ink to within a pixel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, Line, Word
from pecia_workers.reading.lines import words_of

_CONTRAST: Final = 0.4
"""Of a line's own darkest or lightest print, from which a pixel is ink."""
_LEAST_CONTRAST: Final = 24
_ASIDE: Final = 0.3
"""How far a line may reach beyond its box, by its height."""
_DOT: Final = 0.12
"""Height of the white between a letter and its dot, by that of the line's box."""
_RULE: Final = 0.9
"""Share of a row of pixels that is a rule rather than print."""


def placed_words(line: Line, pixels: NDArray[np.uint8] | None) -> Sequence[Word]:
    """Return a line's words, each as wide as its ink and as high as that of the line; as given where there is none."""
    words, box = words_of(line), line.box
    height, width = box.bottom - box.top, box.right - box.left
    if pixels is None or not words or height > width:
        return words
    aside = round(_ASIDE * height)
    left, top = max(0, box.left - aside), max(0, box.top)
    ink = _ink(pixels[top : box.bottom, left : box.right + aside])
    inked: NDArray[np.bool_] = np.any(ink, axis=1)
    rows = _band(inked, round(_DOT * height) + 1)
    if rows is None:
        return words
    columns: NDArray[np.bool_] = np.any(ink[rows.start : rows.stop], axis=0)
    walls = [
        0,
        *(
            _gap(columns, one.box.right - left, other.box.left - left, height)
            for one, other in pairwise(words)
        ),
    ]
    found = []
    for word, start, end in zip(words, walls, [*walls[1:], len(columns)], strict=True):
        across = np.flatnonzero(columns[start:end])
        if across.size:
            place = Box(
                left=left + start + int(across[0]),
                right=left + start + int(across[-1]) + 1,
                top=top + rows.start,
                bottom=top + rows.stop,
            )
            found.append(word.model_copy(update={"box": place}))
        else:
            found.append(word)
    return found


def _ink(crop: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which pixels of a line are print, dark or light; rules are none."""
    if not crop.size:
        return np.zeros(crop.shape[:2], dtype=bool)
    green = crop[:, :, 1].astype(np.int16)
    apart = np.abs(green - int(np.bincount(crop[:, :, 1].ravel()).argmax()))
    ink: NDArray[np.bool_] = apart > max(_LEAST_CONTRAST, _CONTRAST * int(apart.max()))
    ink[np.count_nonzero(ink, axis=1) > _RULE * ink.shape[1]] = False
    ink[:, np.count_nonzero(ink, axis=0) == ink.shape[0]] = False
    return ink


def _band(rows: NDArray[np.bool_], apart: int) -> range | None:
    """Return the rows of print around the middle; what is farther apart is of the lines above and below."""
    inked = np.flatnonzero(rows)
    if not inked.size:
        return None
    cuts = np.flatnonzero(np.diff(inked) > apart) + 1
    bands = np.split(inked, cuts)
    middle = len(rows) / 2
    best = max(bands, key=lambda band: (band[0] <= middle <= band[-1], len(band)))
    return range(int(best[0]), int(best[-1]) + 1)


def _gap(columns: NDArray[np.bool_], end: int, start: int, height: int) -> int:
    """Return where the white between two words is, which the recogniser has end and start there."""
    about = (end + start) / 2
    low, high = max(0, round(about - height)), min(len(columns), round(about + height))
    edges = np.flatnonzero(np.diff(np.concatenate([[1], columns[low:high].astype(np.int8), [1]])))
    gaps = [(int(first) + low, int(last) + low) for first, last in zip(edges[::2], edges[1::2], strict=False)]
    best = max(
        gaps, key=lambda gap: (gap[1] - gap[0]) - 0.7 * abs((gap[0] + gap[1]) / 2 - about), default=None
    )
    return round(about) if best is None else (best[0] + best[1]) // 2
