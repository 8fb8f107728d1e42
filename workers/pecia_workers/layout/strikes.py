"""Words that are struck out: a line runs through their letters. Needs OpenCV (pecia[cpu]).

Lines of a file, of annotations and of a pen on paper look alike in the pixels, which are examined for any source of
text. A line strikes letters out if

1. it is thin, and longer than a line of text is high: no stroke of a letter is;
2. it is visible alone between letters, where white would be without it: connected letters have no such gaps;
3. strokes of the letters meet it from above and below, unlike those beside a fraction bar;
4. it runs between `_HIGHEST` and `_LOWEST` of the height of their ink: below is an underline;
5. both of its ends are near text of the row: a rule of a table or a chart continues.

A pen's line is wavy, and double lines strike out too. Such lines are followed between the gaps of letters, where a
column of pixels has only one or two thin strokes. A short line through a number of a few digits starts in the white
before it and ends in the white after it. Long diagonals strike out the words that they cross, and a cross those between
its arms.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Line, Word
from pecia_workers.layout.lines import Mask, runs_of

_LONG: Final = 1.5
"""Least length, relative to the height of a text line."""
_THICK: Final = 0.2
_CONTRAST: Final = (12, 48)
_OF_STRONG: Final = 0.35
"""Contrast of ink: a share of the strongest, within bounds in levels."""
_ALONE, _EVEN = 0.08, 0.5
"""Share of a line's length at which it is visible alone, and its least contrast there, relative to its darkest part:
joins of connected letters are less even."""
_LARGE: Final = 24
"""Height of a text line, in pixels, from which letters do not merge with the steps of a sloping line."""
_MET: Final = 0.12
"""Share of a line's length at which strokes meet it from above and below."""
_HIGHEST, _LOWEST = 0.25, 0.7
_BESIDE: Final = 2.0
"""Greatest extension of a line beside text, relative to its height."""
_COVERED: Final = 0.6
"""Share of a word's width from which it is struck."""
_BAND: Final = (0.12, 0.8)
"""Band of a text line's height in which a pen's line is searched: an underline is below."""
_LONG_WINDING, _ALONE_WINDING = 1.5, 0.2
"""Least length of a pen's line, relative to the height of a text line, and its share in gaps between letters."""
_APART: Final = 0.3
"""Greatest distance of a double line's edges, relative to the same height."""
_GAP, _WIDE_GAP, _GAPS = 0.1, 0.22, 3
"""Width of a gap, and of a wide one as between words, relative to the height of a text line, and number of wide ones:
connected letters leave none."""
_DASHES: Final = "-\u2010\u2011\u2012\u2013\u2014\u2212=_~"
"""Characters that resemble a wide gap with a line in it."""
_STEEP, _LEAPS = 0.6, 0.15
"""Greatest slope of a pen's line, and the share of columns in which it may be steeper."""
_FOLLOWED, _MET_WINDING = 0.88, 0.2
"""Share of columns in which a pen's line has ink, and of those between gaps in which letters have ink on both sides."""
_LEAST_WINDING, _LEAST_CROSSED = 16, 20
"""Least text height, in pixels, for the search of pen lines, and of diagonals."""
_HIGH_CROSS, _DENSE = 0.6, 0.6
_MOST_CROSSES: Final = 50
_ALONG: Final = 5
"""Least length of a diagonal within one text line, relative to its height."""
_DRAWN, _ALONE_DIAGONAL = 0.95, 0.3
"""Share of a diagonal's length that has ink, and that has none beside it."""
_LONG_DIAGONAL, _SLOPES, _SLACK = 3.2, (0.045, 6.0), 0.3
"""Least length of a diagonal, relative to a text line's height; its slopes; the part of a line that it may miss."""
_NUMBER: Final = re.compile(r"[\d.,/:%]{1,6}")
_BEYOND, _BEYOND_A_FOUR, _MOST_BEYOND = 0.08, 0.2, 0.8
"""Extension of a line beside a number, relative to the line's height: least, beside a 4, and greatest."""
_TALL, _LEAST_WIDTH, _LEVEL = 0.4, 0.25, 0.2
"""Height of digits and width of a number, relative to the same height; greatest difference of the line's ends."""
_CURSIVE: Final = ("\u0590", "\u0dff")
"""Scripts whose letters are connected by their own line: Hebrew to Sinhala."""


def with_strikes(pieces: Sequence[Line], pixels: NDArray[np.uint8]) -> list[Line]:
    """Return pieces of an RGB page with struck-out words marked."""
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    boxes = np.array([(one.box.left, one.box.top, one.box.right, one.box.bottom) for one in pieces])
    crossed = _crossed(pieces, grey)
    return [
        _marked(piece, [*_strikes(piece, grey, boxes), *crossed.get(number, ())])
        for number, piece in enumerate(pieces)
    ]


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
    """Yield the extents in which a piece is struck out."""
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
    least = _GAPS + sum(map(piece.text.count, _DASHES))
    for start, end in _through_numbers(piece, ink, left, height):
        yield left + start, left + end
    for start, end in (*_straight(ink, contrast, height, long), *_winding(ink, contrast, height, least)):
        if end > start and _ends_at_text(left + start, left + end, box.top + height / 2, boxes, height):
            yield left + start, left + end


def _straight(ink: Mask, contrast: NDArray[np.uint8], height: int, long: int) -> Iterator[tuple[int, int]]:
    """Yield the column ranges in which a straight line strikes letters out."""
    level = cv2.dilate(ink, np.ones((3, 1), np.uint8)) if height >= _LARGE else ink
    runs = cv2.morphologyEx(level, cv2.MORPH_OPEN, np.ones((1, long), np.uint8))
    if not runs.any():
        return
    _, labels, stats, _ = cv2.connectedComponentsWithStats(cv2.bitwise_and(runs, ink), connectivity=8)
    for label in 1 + np.flatnonzero(stats[1:, cv2.CC_STAT_WIDTH] >= long):
        yield _stretch(ink, contrast, (labels == label).view(np.uint8), height)


def _winding(ink: Mask, contrast: NDArray[np.uint8], height: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the column ranges in which a pen's line, or two lines, strike letters out.

    `least`: number of wide gaps in which it must be visible.
    """
    rows = len(ink)
    if height < _LEAST_WINDING:
        return
    inner = ink[round(_BAND[0] * rows) : max(1, round(_BAND[1] * rows))]
    for start, end in runs_of(np.asarray(inner.any(axis=0))).tolist():
        if end - start < _LONG_WINDING * height:
            continue
        part, dark = inner[:, start:end], contrast[: len(ink), start:end]
        strokes = np.count_nonzero(np.diff(part, axis=0, prepend=0) == 1, axis=0)
        depth = len(part) - part[::-1].argmax(axis=0) - part.argmax(axis=0)
        thin = part.sum(axis=0) <= np.maximum(2, _THICK * height) * strokes
        alone = (strokes == 1) | ((strokes == 2) & (depth <= _APART * height))  # noqa: PLR2004  a double line
        alone &= thin
        gaps = [gap for gap in runs_of(alone).tolist() if gap[1] - gap[0] >= max(2, _GAP * height)]
        wide = [gap for gap in gaps if gap[1] - gap[0] >= _WIDE_GAP * height]
        if len(wide) < least or sum(last - first for first, last in gaps) < _ALONE_WINDING * (end - start):
            continue
        if _is_pen(part, dark[round(_BAND[0] * rows) :][: len(part)], gaps):
            yield start, end


def _is_pen(part: Mask, contrast: NDArray[np.uint8], gaps: Sequence[tuple[int, int]]) -> bool:
    """Return whether the strokes in gaps between letters are parts of one line, which letters meet on both sides."""
    across = np.concatenate([np.arange(*gap) for gap in gaps])
    ink = part[:, across].astype(bool)
    peaks = np.where(ink, contrast[:, across], 0).max(axis=0)
    if np.percentile(peaks, 10) < _EVEN * peaks.max():
        return False
    top, bottom = ink.argmax(axis=0), len(ink) - 1 - ink[::-1].argmax(axis=0)
    middles = (top + bottom) / 2
    if (np.abs(np.diff(middles)) > np.maximum(2, _STEEP * np.diff(across))).mean() > _LEAPS:
        return False
    path = np.interp(np.arange(part.shape[1]), across, middles)
    half = np.percentile(bottom - top, 75) / 2
    rows = np.arange(len(part))[:, np.newaxis]
    followed = (part.astype(bool) & (np.abs(rows - path) <= half + 1)).any(axis=0).mean()
    between = np.ones(part.shape[1], bool)
    between[across] = False
    letters = part.astype(bool) & between
    above, below = (letters & (rows < path - half - 1)), (letters & (rows > path + half + 1))
    met = min(float(side.any(axis=0).sum()) for side in (above, below)) / max(1, between.sum())
    return (
        followed >= _FOLLOWED
        and met >= _MET_WINDING
        and _HIGHEST <= float(path.mean()) / len(part) <= 1 - _HIGHEST
    )


def _through_numbers(piece: Line, ink: Mask, left: int, height: int) -> Iterator[tuple[int, int]]:
    """Yield the column ranges in which a short line strikes a number out; `left`: first column of the ink."""
    if height < _LEAST_WINDING:
        return
    strokes = np.count_nonzero(np.diff(ink, axis=0, prepend=0) == 1, axis=0)
    depth, tops = ink.sum(axis=0), ink.argmax(axis=0)
    bottoms = len(ink) - ink[::-1].argmax(axis=0)
    is_line = (strokes == 1) & (depth <= max(2, _THICK * height))
    is_tall = (depth > 0) & (bottoms - tops >= _TALL * height)
    middles, runs = (tops + bottoms - 1) / 2, runs_of(depth > 0).tolist()
    for word in piece.words:
        if not _NUMBER.fullmatch(word.text) or not any(map(str.isdecimal, word.text)):
            continue
        middle = (word.box.left + word.box.right) / 2 - left
        from_, to = next((run for run in runs if run[0] <= middle < run[1]), (0, 0))
        tall = from_ + np.flatnonzero(is_tall[from_:to])
        if not tall.size or np.ptp(tall) + 1 < _LEAST_WIDTH * height:
            continue
        start, end = int(tall[0]), int(tall[-1]) + 1
        lengths = [int(is_line[side].sum()) for side in (slice(from_, start), slice(end, to))]
        least = (_BEYOND_A_FOUR if "4" in (word.text[0], word.text[-1]) else _BEYOND) * height
        if min(lengths) < least or max(start - from_, to - end) > _MOST_BEYOND * height:
            continue
        sides = (np.flatnonzero(is_line[side]) + side.start for side in (slice(from_, start), slice(end, to)))
        ends = tuple(float(np.median(middles[side])) for side in sides)
        path = np.interp(np.arange(start, end), [(from_ + start) / 2, (end + to) / 2], ends)
        if abs(ends[1] - ends[0]) <= _LEVEL * height and _crosses(
            ink[:, start:end], path, depth[from_:start]
        ):
            yield from_, to


def _crosses(digits: Mask, path: NDArray[np.float64], thickness: NDArray[np.intp]) -> bool:
    """Return whether a line follows a path through digits, with their ink above and below it."""
    half, rows = float(np.median(thickness)) / 2, np.arange(len(digits))[:, np.newaxis]
    on, above, below = np.abs(rows - path) <= half + 1, rows < path - half - 1, rows > path + half + 1
    ink = digits.astype(bool)
    of_digits = np.flatnonzero((ink & (above | below)).any(axis=1))
    if not of_digits.size or (ink & on).any(axis=0).mean() < _DRAWN:
        return False
    met = min(float((ink & side).any(axis=0).mean()) for side in (above, below))
    place = (float(path.mean()) - of_digits[0]) / max(1, of_digits[-1] - of_digits[0])
    return met >= _MET_WINDING and _HIGHEST <= place <= 1 - _HIGHEST


def _stretch(ink: Mask, contrast: NDArray[np.uint8], line: Mask, height: int) -> tuple[int, int]:
    """Return the column range in which a line strikes letters out; empty if it does not."""
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


def _crossed(pieces: Sequence[Line], grey: NDArray[np.uint8]) -> dict[int, list[tuple[int, int]]]:
    """Return the extents in which a diagonal or a cross strikes pieces out, by the pieces' indices."""
    heights = [piece.box.bottom - piece.box.top for piece in pieces if piece.words]
    if not heights:
        return {}
    step, height = 2, float(np.median(heights))
    if height < _LEAST_CROSSED:
        return {}
    size = -(-grey.shape[1] // step), -(-grey.shape[0] // step)
    small = np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    ink = (cv2.absdiff(small, np.full_like(small, np.median(small))) > _CONTRAST[1]).view(np.uint8)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    wide, high = stats[1:, cv2.CC_STAT_WIDTH] * step, stats[1:, cv2.CC_STAT_HEIGHT] * step
    dense = stats[1:, cv2.CC_STAT_AREA] * step**2 > _DENSE * wide * high
    found: dict[int, list[tuple[int, int]]] = {}
    for label in (
        1 + np.flatnonzero((wide > 2 * height) & (high > _HIGH_CROSS * height) & ~dense)[:_MOST_CROSSES]
    ):
        left, top, width, depth = (int(value) for value in stats[label, :4])
        mask = (labels[top : top + depth, left : left + width] == label).view(np.uint8)
        strokes = [
            (left + ends[0], top + ends[1], left + ends[2], top + ends[3])
            for ends in _diagonals(mask, height / step)
        ]
        for number, piece in enumerate(pieces):
            spans = [span for ends in strokes if (span := _span(piece, np.array(ends) * step))]
            if any(word.box.left < sum(span) / 2 < word.box.right for word in piece.words for span in spans):
                if len(spans) > 1:  # a cross
                    spans = [(min(start for start, _ in spans), max(end for _, end in spans))]
                found.setdefault(number, []).extend(spans)
    return found


def _diagonals(mask: Mask, height: float) -> list[tuple[float, float, float, float]]:
    """Return the ends of long, thin, straight, sloping strokes in a connected mark."""
    least = _LONG_DIAGONAL * height
    lines = cv2.HoughLinesP(mask, 1, np.pi / 180, int(least), minLineLength=least, maxLineGap=2)
    ends = np.zeros((0, 4)) if lines is None else lines.reshape(-1, 4).astype(float)
    return [
        (x0, y0, x1, y1)
        for x0, y0, x1, y1 in ends
        if _SLOPES[0] < abs(y1 - y0) / max(abs(x1 - x0), 1e-9) < _SLOPES[1]
        and _is_seen_alone(mask, np.array([x0, y0, x1, y1]), height)
    ]


def _is_seen_alone(mask: Mask, stroke: NDArray[np.float64], height: float) -> bool:
    """Return whether a stroke has ink along its length, and mostly none beside it, unlike strokes of letters."""
    start, end = stroke[:2], stroke[2:]
    length = float(np.hypot(*(end - start)))
    along, beside = (end - start) / length, max(2.0, _THICK * height)
    points = start + np.arange(0, length)[:, np.newaxis] * along
    across = np.array([-along[1], along[0]])

    def has_ink(distance: float) -> NDArray[np.bool_]:
        x, y = np.rint(points + distance * across).astype(int).T
        is_inside = (x >= 0) & (y >= 0) & (x < mask.shape[1]) & (y < mask.shape[0])
        ink = mask[y.clip(0, len(mask) - 1), x.clip(0, mask.shape[1] - 1)] > 0
        return np.asarray(is_inside & ink)

    is_alone = ~(has_ink(-beside) | has_ink(-beside - 1) | has_ink(beside) | has_ink(beside + 1))
    is_drawn = has_ink(-1) | has_ink(0) | has_ink(1)
    return bool(is_drawn.mean() >= _DRAWN and (is_drawn & is_alone).mean() >= _ALONE_DIAGONAL)


def _span(piece: Line, stroke: NDArray[np.float64]) -> tuple[int, int] | None:
    """Return the extent in which a stroke crosses a piece, nearly to its bottom or along it, or None."""
    x0, y0, x1, y1 = stroke if stroke[1] < stroke[3] else stroke[[2, 3, 0, 1]]
    box, slack = piece.box, _SLACK * (piece.box.bottom - piece.box.top)
    middle, reach = (y0 + y1) / 2, np.hypot(x1 - x0, y1 - y0)
    if (
        box.top - slack <= y0
        and y1 <= box.bottom + slack
        and abs(middle - (box.top + box.bottom) / 2) < slack
    ):
        return int(min(x0, x1)), int(max(x0, x1))  # along a line of text
    if y0 > box.top + slack or y1 < box.bottom - slack or reach < 2 * (box.bottom - box.top):
        return None
    at = [x0 + (min(max(y, y0), y1) - y0) * (x1 - x0) / (y1 - y0) for y in (box.top, box.bottom)]
    return int(min(at)), int(max(at))


def _ends_at_text(start: int, end: int, middle: float, boxes: NDArray[np.intp], height: int) -> bool:
    """Return whether both ends of a line are near text of the row."""
    row = boxes[(boxes[:, 1] < middle) & (boxes[:, 3] > middle)]
    near = _BESIDE * height - 1
    return all(bool(((row[:, 0] - near < x) & (x < row[:, 2] + near)).any()) for x in (start, end))
