"""By how much a page's lines slope, and the page turned until they are level. numpy and Pillow alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_SKEW: Final = 0.3
"""Degrees; engines read lines of less slope as well, and turning blurs."""
MOST_SKEW: Final = 10.0
_SEARCHED: Final = 12.0
_COARSE, _FINE = 0.5, 0.1
_ROW: Final = 2  # pixels
_MARGIN: Final = 0.05
"""Share of the sides that is not looked at: the dark edge of a scan is level whatever lies on the glass."""
_SAMPLE: Final = 20_000
_LEAST_INK: Final = 200
_CLEAR: Final = 3.0
"""Sharpness of the best slope beside the median of all. Measured: pictures and specks at most 1.2, text from 3.8."""
_BETTER: Final = 1.3
"""Sharpness of the best slope beside that of no slope."""


def slope_of(ink: NDArray[np.bool_]) -> float:
    """Return the degrees, clockwise, by which lines that run across slope downwards; 0 if in doubt or negligible.

    Where rows follow the lines, ink and white alternate most sharply from row to row; W. Postl, "Detection of linear
    oblique structures and skew scan in digitized documents", ICPR (1986). On a sample of the ink: 8 ms.
    """
    rows, columns = _sampled(_without_margin(ink))
    if len(rows) < _LEAST_INK:
        return 0.0
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
    return round(slope, 1) if clear and LEAST_SKEW <= abs(round(slope, 1)) <= MOST_SKEW else 0.0


def levelled(
    image: Image.Image,
    degrees: float,
    growth: tuple[float, float] = (1.0, 1.0),
    *,
    quality: Image.Resampling = Image.Resampling.BICUBIC,
) -> Image.Image:
    """Return the picture turned clockwise about its middle, which stays the middle; white where nothing was.

    Width and height of the result are `growth` times those of the picture.
    """
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    size = (round(image.width * growth[0]), round(image.height * growth[1]))
    across, down = size[0] / 2, size[1] / 2
    matrix = (  # Pillow asks where each pixel of the result comes from
        cosine,
        sine,
        image.width / 2 - cosine * across - sine * down,
        -sine,
        cosine,
        image.height / 2 + sine * across - cosine * down,
    )
    return image.transform(size, Image.Transform.AFFINE, matrix, resample=quality, fillcolor="white")


def growth_for(ink: NDArray[np.bool_], degrees: float) -> tuple[float, float]:
    """Return how much wider and higher a page must become so that no ink is cut off when it is turned."""
    height, width = ink.shape
    rows = np.flatnonzero(ink.any(axis=1))
    edges = np.concatenate([ink[rows].argmax(axis=1), width - ink[rows, ::-1].argmax(axis=1)])
    x, y = edges - width / 2, np.tile(rows, 2) - height / 2
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    across = float(np.abs(x * cosine - y * sine).max(initial=0))
    down = float(np.abs(x * sine + y * cosine).max(initial=0))
    return max(1.0, (2 * across + 2) / width), max(1.0, (2 * down + 2) / height)


def _without_margin(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    rows, columns = (round(side * _MARGIN) for side in ink.shape)
    return ink[rows : ink.shape[0] - rows, columns : ink.shape[1] - columns]


def _sampled(ink: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return rows and columns of some of the ink; columns count from the middle."""
    places = np.flatnonzero(ink)
    if len(places) > _SAMPLE:
        places = np.random.default_rng(0).choice(places, _SAMPLE, replace=False)
    rows, columns = np.divmod(places, ink.shape[1])
    return rows.astype(np.float32), (columns - ink.shape[1] / 2).astype(np.float32)
