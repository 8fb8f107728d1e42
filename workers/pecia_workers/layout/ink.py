"""Ink: separates a page's print from paper and noise, measures the slope of its lines, and detects blank pages."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageFilter

Places: TypeAlias = NDArray[np.integer[Any]]

_LEAST_SKEW: Final = 0.3
"""Least slope to correct, in degrees: engines read smaller slopes equally well, and rotation blurs."""
_MOST_SKEW: Final = 10.0
_SEARCHED: Final = 12.0
_COARSE, _FINE = 0.5, 0.1
_ROW: Final = 2  # pixels
_MARGIN: Final = 0.05
"""Share of the sides that is ignored: a scan's dark edge is level whatever the page's slope."""
_SAMPLE: Final = 20_000
_LEAST_INK: Final = 200
_CLEAR: Final = 3.0
"""Sharpness of the best slope, relative to the median. Measured: pictures and specks at most 1.2, text from 3.8."""
_BETTER: Final = 1.3
"""Least sharpness of the best slope, relative to that without slope."""


def slope_of(ink: NDArray[np.bool_]) -> float:
    """Return the downward slope of horizontal lines, in degrees clockwise; 0 if unclear or negligible.

    At the right slope, ink and white alternate most sharply from row to row; W. Postl, "Detection of linear
    oblique structures and skew scan in digitized documents", ICPR (1986). On a sample of the ink: 8 ms.
    """
    margins = [slice(round(side * _MARGIN), side - round(side * _MARGIN)) for side in ink.shape]
    ink = ink[tuple(margins)]
    places = np.flatnonzero(ink)
    if len(places) < _LEAST_INK:
        return 0.0
    if len(places) > _SAMPLE:
        places = np.random.default_rng(0).choice(places, _SAMPLE, replace=False)
    down, across = np.divmod(places, ink.shape[1])
    rows, columns = down.astype(np.float32), (across - ink.shape[1] / 2).astype(np.float32)
    reach = float(np.abs(columns).max()) * math.tan(math.radians(_SEARCHED + _COARSE))

    def sharpness(degrees: float) -> float:
        levelled = rows - columns * np.float32(math.tan(math.radians(degrees))) + np.float32(reach)
        profile = np.bincount((levelled / _ROW).astype(np.intp))
        return float(np.square(np.diff(profile)).sum())

    steps = round(_SEARCHED / _COARSE)
    coarse = {step * _COARSE: sharpness(step * _COARSE) for step in range(-steps, steps + 1)}
    nearest = max(coarse, key=coarse.__getitem__)
    around = round(_COARSE / _FINE)
    fine = {nearest + step * _FINE: sharpness(nearest + step * _FINE) for step in range(-around, around + 1)}
    slope = max(fine, key=fine.__getitem__)
    usual = float(np.median(list(coarse.values())))
    clear = fine[slope] > _CLEAR * usual and fine[slope] > _BETTER * coarse[0.0]
    return round(slope, 1) if clear and _LEAST_SKEW <= abs(round(slope, 1)) <= _MOST_SKEW else 0.0


def levelled(
    image: Image.Image,
    degrees: float,
    growth: tuple[float, float] = (1.0, 1.0),
    *,
    quality: Image.Resampling = Image.Resampling.BICUBIC,
) -> Image.Image:
    """Return the picture turned clockwise about its middle, on white, its sides `growth` times as long."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    size = (round(image.width * growth[0]), round(image.height * growth[1]))
    across, down = size[0] / 2, size[1] / 2
    # Pillow asks where each pixel of the result comes from.
    right = image.width / 2 - cosine * across - sine * down
    below = image.height / 2 + sine * across - cosine * down
    matrix = (cosine, sine, right, -sine, cosine, below)
    return image.transform(size, Image.Transform.AFFINE, matrix, resample=quality, fillcolor="white")


def turned(pixels: NDArray[np.uint8], degrees: int) -> NDArray[np.uint8]:
    """Return a page turned clockwise by a multiple of 90 degrees, contiguous."""
    return np.ascontiguousarray(np.rot90(pixels, -degrees // 90))


def growth_for(ink: NDArray[np.bool_], degrees: float) -> tuple[float, float]:
    """Return the factor by which a page must grow so that rotation cuts off no ink."""
    height, width = ink.shape
    rows = np.flatnonzero(ink.any(axis=1))
    edges = np.concatenate([ink[rows].argmax(axis=1), width - ink[rows, ::-1].argmax(axis=1)])
    x, y = edges - width / 2, np.tile(rows, 2) - height / 2
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    across = float(np.abs(x * cosine - y * sine).max(initial=0))
    down = float(np.abs(x * sine + y * cosine).max(initial=0))
    return max(1.0, (2 * across + 2) / width), max(1.0, (2 * down + 2) / height)


_WORKING_SIDE = 1760
"""Longer side, in pixels, at which pages are analysed: A4 at 150 dots per inch."""

_PAPER_CELL = 32
_LEAST_CONTRAST = 8.0
_MOST_CONTRAST: Final = 48.0
"""Contrast, in levels, from which pixels are ink, however uneven the paper."""
_ABOVE_NOISE = 5.0
_OF_STRONG = 0.35
_STRONG_SHARE, _LEAST_STRONG = 0.95, 30
_NOISE_SHARE, _NOISE_SPREAD = 0.3, 0.385
"""Print fills less than 70 % of a page; the smallest 30 % of normal noise lies within 0.385 standard deviations."""
_LOCAL_CELL = 16
_SMOOTHING: Final = 0.7
"""Size of smoothing in pixels; removes noise, not strokes."""
_CLEAR_IF_SMOOTH: Final = (5.0, 3.5)
"""Least contrast of ink, in levels and relative to noise, on a smoothed page."""
_FAINT, _STRENGTH = 64, 200
_RULE = 120  # pixels of unbroken ink that no letter has


@dataclass(frozen=True)
class View:
    """A reduced grey page, with its ink."""

    grey: Image.Image
    ink: NDArray[np.bool_]

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> Self:
        """Return the view of a page."""
        grey = Image.fromarray(pixels).convert("L")
        factor = max(grey.size) / _WORKING_SIDE
        if factor > 1:
            size = (max(1, round(grey.width / factor)), max(1, round(grey.height / factor)))
            grey = grey.resize(size, Image.Resampling.BOX, reducing_gap=1.0)
        return cls(grey, find_ink(grey))

    @cached_property
    def letters(self) -> NDArray[np.bool_]:
        """The ink without the rules of tables and forms, which resemble lines of text."""
        return self.ink & ~_long_runs(self.ink) & ~_long_runs(np.ascontiguousarray(self.ink.T)).T

    @cached_property
    def slope(self) -> float:
        """Slope of the page's lines, in degrees clockwise; 0 if unclear."""
        return slope_of(self.ink)

    def turned(self, degrees: int) -> Self:
        """Return the view turned clockwise by a multiple of 90 degrees."""
        quarters = degrees // 90
        return type(self)(self.grey.rotate(-degrees, expand=True), np.rot90(self.ink, -quarters))

    def levelled(self) -> Self:
        """Return the view with level lines; corners are cut off."""
        if not self.slope:
            return self
        grey = levelled(self.grey, -self.slope, quality=Image.Resampling.BILINEAR)
        return type(self)(grey, find_ink(grey))


def find_ink(grey: Image.Image) -> NDArray[np.bool_]:
    """Return a mask of print and handwriting: pixels that differ clearly from the paper around them.

    Works for grey paper, uneven light, faint print, and light print on dark ground. On a page with strong print, faint
    marks are ignored: its blur, and print that shines through from the back.
    """
    difference = from_paper(grey)
    clear, strong = contrasts(difference)
    return difference > max(clear, min(_MOST_CONTRAST, _OF_STRONG * strong))


def sum_within(
    sums: NDArray[np.int32], left: Places, top: Places, right: Places, bottom: Places
) -> NDArray[np.int32]:
    """Return the sums within rectangles, given a page's integral image."""
    rows, columns = sums.shape
    top, bottom = top.clip(0, rows - 1), bottom.clip(0, rows - 1)
    left, right = left.clip(0, columns - 1), right.clip(0, columns - 1)
    within: NDArray[np.int32] = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return within


def find_faint_ink(grey: Image.Image) -> NDArray[np.bool_]:
    """Return a mask of print like `find_ink`, including faint print on a page with strong print."""
    difference = from_paper(grey)
    padded = np.pad(difference, [(0, -side % _LOCAL_CELL) for side in difference.shape])
    height, width = (side // _LOCAL_CELL for side in padded.shape)
    cells = padded.reshape(height, _LOCAL_CELL, width, _LOCAL_CELL).max(axis=(1, 3))
    strongest = np.asarray(Image.fromarray(cells).filter(ImageFilter.MaxFilter(3)))
    clear = np.clip(_OF_STRONG * strongest, contrasts(difference)[0], _MOST_CONTRAST).astype(np.uint8)
    return difference > np.asarray(Image.fromarray(clear).resize(grey.size, Image.Resampling.BILINEAR))


def from_paper(grey: Image.Image) -> NDArray[np.uint8]:
    """Return the difference of each pixel from the paper, the lighter part of its neighbourhood."""
    size = (max(1, grey.width // _PAPER_CELL), max(1, grey.height // _PAPER_CELL))
    cells = np.asarray(grey.resize((size[0] * 4, size[1] * 4), Image.Resampling.BOX))
    blocks = cells.reshape(size[1], 4, size[0], 4).transpose(0, 2, 1, 3).reshape(size[1], size[0], 16)
    paper = Image.fromarray(np.percentile(blocks, 75, axis=2).astype(np.uint8))
    return np.asarray(ImageChops.difference(paper.resize(grey.size, Image.Resampling.BILINEAR), grey))


def strengthened(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an RGB page of faint print with dark print on white; any other page unchanged.

    PP-OCR's detector misses print that is only 12 levels darker than its paper; enhanced, it is read as well as any.
    """
    grey = Image.fromarray(pixels).convert("L")
    _, strong = contrasts(from_paper(grey))
    if strong >= _FAINT:
        return pixels
    difference = from_paper(grey.filter(ImageFilter.GaussianBlur(_SMOOTHING)))
    clear, strong = contrasts(difference, *_CLEAR_IF_SMOOTH)
    if not 0 < strong < _FAINT:
        return pixels
    weak = clear / 2
    dark = np.clip((difference - weak) * (_STRENGTH / (strong - weak)), 0, 255).astype(np.uint8)
    return np.repeat(255 - dark[:, :, np.newaxis], 3, axis=2)


def contrasts(
    difference: NDArray[np.uint8], least: float = _LEAST_CONTRAST, times: float = _ABOVE_NOISE
) -> tuple[float, float]:
    """Return the difference from the paper that its own noise does not reach, and that of the page's strong print.

    The first is `times` the noise's standard deviation; the second is 0 if hardly a pixel is above the first.
    """
    counts = np.array(Image.fromarray(difference).histogram())
    clear = max(least, times * _quantile(counts, _NOISE_SHARE) / _NOISE_SPREAD)
    strong = np.where(np.arange(counts.size) > clear, counts, 0)
    return clear, _quantile(strong, _STRONG_SHARE) if strong.sum() >= _LEAST_STRONG else 0.0


def _quantile(counts: NDArray[np.intp], share: float) -> float:
    """Return the level below which this share lies, interpolated between integers: noise may be less than one level."""
    sums = counts.cumsum()
    level = int(np.searchsorted(sums, share * sums[-1]))
    below = int(sums[level - 1]) if level else 0
    part = (share * int(sums[-1]) - below) / max(1, int(sums[level]) - below)
    return max(0.0, level - 0.5) + part * (1.0 if level else 0.5)


def _long_runs(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the horizontal runs of `_RULE` pixels of ink or more; a row counts the ink of the rows beside it, too."""
    import cv2  # noqa: PLC0415  comes with pecia[cpu]; only the orientation of a page needs it

    run = np.ones((1, _RULE), np.uint8)
    thick = cv2.dilate(ink.astype(np.uint8), np.ones((3, 1), np.uint8))  # a rule that was turned has steps
    middles = cv2.erode(thick, run, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return np.asarray(cv2.dilate(middles, run, anchor=(_RULE // 2 - 1, 0)), dtype=np.bool_)


_CELL = 4
_FULL = 255
_CELL_SHARE = 0.2
_WINDOW = (4, 10)  # cells: a word of body text, and more than a speck of dust fills
_WINDOW_CELLS = 9
_SMALLEST = 64  # pixels; less is a cutting, not a page with edges and dust
_EDGE_SHARE, _EDGE_DARKER, _EDGE_DEPTH = 0.25, 24, 0.05
"""A scanner's dark edge: fill of its rows, or their contrast with the page, and greatest depth."""


def is_blank(grey: Image.Image) -> bool:
    """Return whether a page has only noise, specks of dust and the scanner's dark edges.

    A page with one short word, however faint, is not blank: lost text costs more than the reading of an empty page.
    """
    if min(grey.size) < _SMALLEST:
        return bool(np.ptp(np.asarray(grey)) <= _CLEAR_IF_SMOOTH[0])
    difference = from_paper(grey.filter(ImageFilter.GaussianBlur(_SMOOTHING)))
    noise, _ = contrasts(difference, *_CLEAR_IF_SMOOTH)  # or the texture of a picture that fills its page
    ink = (difference > min(noise, _MOST_CONTRAST)).view(np.uint8) * _FULL
    marks = np.asarray(Image.fromarray(ink).reduce(_CELL)) > _CELL_SHARE * _FULL
    cells = np.asarray(grey.reduce(_CELL))
    paper = np.median(cells)
    for _ in range(4):  # dark edges begin at the border: a line of text near it does not
        depth = max(1, int(marks.shape[0] * _EDGE_DEPTH))
        full = marks[:depth].mean(axis=1) > _EDGE_SHARE
        dark = cells[:depth].mean(axis=1) < paper - _EDGE_DARKER
        edge = int(np.append(full | dark, False).argmin())
        marks, cells = np.rot90(marks[edge:]), np.rot90(cells[edge:])
    sums = np.pad(marks.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    height, width = _WINDOW
    filled = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    return bool(filled.max() < _WINDOW_CELLS)
