"""Words that are struck out: a straight line runs through the middle of their letters. Needs OpenCV (pecia[cpu]).

Lines that are drawn in a file, its annotations and a pen on paper look alike in the pixels, which are looked at
whatever the source of the text. A line strikes letters out if

1. it is thin, and longer than a line of text is high: no stroke of a letter is;
2. it is seen alone between the letters, where white would be without it: letters that touch have no such gaps;
3. strokes of the letters meet it from above and from below, as those beside a fraction's bar do not;
4. it runs between `_HIGHEST` and `_LOWEST` of the height of their ink: below is an underline;
5. both of its ends are near text of the row: a rule of a table or a chart goes on.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Line, Word
from pecia_workers.layout.lines import Mask

_LONG: Final = 1.5
"""Least length, by the height of a line of text."""
_THICK: Final = 0.2
_CONTRAST: Final = (12, 48)
_OF_STRONG: Final = 0.35
"""Contrast of ink: a share of the strongest, within limits in levels."""
_ALONE, _EVEN = 0.08, 0.5
"""Share of a line's length at which it is seen alone, and how faint it may be there beside where it is darkest: where
letters touch their joins are less even."""
_LARGE: Final = 24
"""Pixels, of a line of text whose letters do not grow together with the steps of a line that slopes."""
_MET: Final = 0.12
"""Share of a line's length at which strokes meet it, above and below."""
_HIGHEST, _LOWEST = 0.25, 0.7
_BESIDE: Final = 2.0
"""How far a line may go on beside text, by its height."""
_COVERED: Final = 0.6
"""Of a word's width, from which it is struck."""
_CURSIVE: Final = ("\u0590", "\u0dff")
"""Scripts whose letters are joined by a line of their own: Hebrew to Sinhala."""


def with_strikes(pieces: Sequence[Line], pixels: NDArray[np.uint8]) -> list[Line]:
    """Return pieces of a page, RGB, with the words marked that are struck out."""
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    boxes = np.array([(one.box.left, one.box.top, one.box.right, one.box.bottom) for one in pieces])
    return [_marked(piece, [*_strikes(piece, grey, boxes)]) for piece in pieces]


def _marked(piece: Line, strikes: Sequence[tuple[int, int]]) -> Line:
    if not strikes:
        return piece

    def is_struck(word: Word) -> bool:
        left, right = word.box.left, word.box.right
        covered = max(min(right, end) - max(left, start) for start, end in strikes)
        return covered >= _COVERED * (right - left) and any(map(str.isalnum, word.text))

    words = (word.model_copy(update={"struck": True}) if is_struck(word) else word for word in piece.words)
    return piece.model_copy(update={"words": tuple(words)})


def _strikes(piece: Line, grey: NDArray[np.uint8], boxes: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Yield from where to where a piece is struck out."""
    box = piece.box
    height, width = box.bottom - box.top, box.right - box.left
    long = max(10, round(_LONG * height))
    if width < long or not piece.words or any(_CURSIVE[0] <= one <= _CURSIVE[1] for one in piece.text):
        return
    top, margin = max(0, box.top), round(_BESIDE * height)
    left, right = max(0, box.left - margin), min(grey.shape[1], box.right + margin)
    crop = grey[top : box.bottom, left:right]
    own = crop[::2, max(0, box.left) - left : box.right - left : 2]
    if not own.size:
        return
    contrast = np.asarray(cv2.absdiff(crop, np.full_like(crop, np.median(own))), dtype=np.uint8)
    ink = (contrast > np.clip(_OF_STRONG * contrast.max(), *_CONTRAST)).view(np.uint8)
    level = cv2.dilate(ink, np.ones((3, 1), np.uint8)) if height >= _LARGE else ink
    runs = cv2.morphologyEx(level, cv2.MORPH_OPEN, np.ones((1, long), np.uint8))
    if not runs.any():
        return
    _, labels, stats, _ = cv2.connectedComponentsWithStats(runs & ink, connectivity=8)
    for label in 1 + np.flatnonzero(stats[1:, cv2.CC_STAT_WIDTH] >= long):
        start, end = _stretch(ink, contrast, (labels == label).view(np.uint8), height)
        if end > start and _ends_at_text(left + start, left + end, box.top + height / 2, boxes, height):
            yield left + start, left + end


def _stretch(ink: Mask, contrast: NDArray[np.uint8], line: Mask, height: int) -> tuple[int, int]:
    """Return the columns from where to where a line strikes letters out; nothing if it does not."""
    columns = np.flatnonzero(line.any(axis=0))
    start, end = int(columns[0]), int(columns[-1]) + 1
    part, line = ink[:, start:end], line[:, start:end]
    depth, strokes = part.sum(axis=0), np.count_nonzero(np.diff(part, axis=0, prepend=0) == 1, axis=0)
    alone = (strokes == 1) & (depth <= max(2, _THICK * height)) & (depth == (part & line).sum(axis=0))
    peaks = (contrast[:, start:end] * line).max(axis=0)[alone]
    if alone.sum() < max(3, _ALONE * (end - start)) or np.percentile(peaks, 10) < _EVEN * peaks.max():
        return 0, 0
    rows = np.arange(len(part))[:, np.newaxis]
    across = np.flatnonzero(alone)
    middles = (rows * part).sum(axis=0)[across] / depth[across]
    slope, offset = (
        np.polyfit(across, middles, 1) if np.ptp(across) > height else (0.0, float(np.median(middles)))
    )
    path = slope * np.arange(end - start) + offset
    half = np.percentile(depth[across], 75) / 2
    if np.abs(middles - path[across]).mean() > max(1.0, half):
        return 0, 0
    beside = (
        ((rows > path + half) & (rows <= path + half + 2)),
        ((rows < path - half) & (rows >= path - half - 2)),
    )
    met = min(float((part & side.view(np.uint8)).any(axis=0).mean()) for side in beside)
    letters = np.flatnonzero(part[:, ~alone].any(axis=1)) if not alone.all() else np.zeros(0, np.intp)
    if met < _MET or not letters.size:
        return 0, 0
    place = (offset + slope * (end - start) / 2 - letters[0]) / max(1, letters[-1] - letters[0])
    return (start, end) if _HIGHEST <= place <= _LOWEST else (0, 0)


def _ends_at_text(start: int, end: int, middle: float, boxes: NDArray[np.intp], height: int) -> bool:
    """Whether both ends of a line are near text of the row."""
    row = boxes[(boxes[:, 1] < middle) & (boxes[:, 3] > middle)]
    near = _BESIDE * height - 1
    return all(bool(((row[:, 0] - near < x) & (x < row[:, 2] + near)).any()) for x in (start, end))
