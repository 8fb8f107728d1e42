"""From decoded pixels to the page that an engine sees, and whether anything stands on it. Each step can be left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from pecia_schemas.blocks import Source
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.media.classifier import line_classifier
from pecia_workers.media.ink import (
    CLEAR_IF_SMOOTH,
    MOST_CONTRAST,
    SMOOTHING,
    View,
    above_noise,
    from_paper,
    growth_for,
    levelled,
)
from pecia_workers.media.pages import PageImage
from pecia_workers.media.text_layer import TextLayer

_CELL = 4
_FULL = 255
_CELL_SHARE = 0.2
_WINDOW = (4, 10)  # cells: a word of body text, and more than a speck of dust fills
_WINDOW_CELLS = 9
_SMALLEST = 64  # pixels; less is a cutting, not a page with edges and dust
_EDGE_SHARE, _EDGE_DARKER, _EDGE_DEPTH = 0.25, 24, 0.05
"""A scanner's dark edge: how full or how much darker than the page a row of it is, how far in it may reach."""


def is_blank(grey: Image.Image) -> bool:
    """Return whether there is nothing on a page but noise, specks of dust and the scanner's dark edges.

    One short word, however faint, is enough for a page not to be blank: text lost costs more than an empty page read.
    """
    if min(grey.size) < _SMALLEST:
        return bool(np.ptp(np.asarray(grey)) <= CLEAR_IF_SMOOTH[0])
    difference = from_paper(grey.filter(ImageFilter.GaussianBlur(SMOOTHING)))
    noise = above_noise(difference, *CLEAR_IF_SMOOTH)  # or the texture of a picture that fills its page
    ink = (difference > min(noise, MOST_CONTRAST)).view(np.uint8) * _FULL
    marks = np.asarray(Image.fromarray(ink).reduce(_CELL)) > _CELL_SHARE * _FULL
    marks = _without_edges(marks, np.asarray(grey.reduce(_CELL)))
    sums = np.pad(marks.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    height, width = _WINDOW
    filled = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    return bool(filled.max() < _WINDOW_CELLS)


def _without_edges(marks: NDArray[np.bool_], grey: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the marks without the dark edges, which begin at the border: a line of text near it does not."""
    paper = np.median(grey)
    for _ in range(4):
        depth = max(1, int(marks.shape[0] * _EDGE_DEPTH))
        full = marks[:depth].mean(axis=1) > _EDGE_SHARE
        dark = grey[:depth].mean(axis=1) < paper - _EDGE_DARKER
        edge = int(np.append(full | dark, False).argmin())
        marks, grey = np.rot90(marks[edge:]), np.rot90(grey[edge:])
    return marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How pages are prepared."""

    steps: Collection[Preparation] = tuple(Preparation)
    most_pixels: int = 4096 * 4096
    """What the engine can use of one page."""
    longest_side: int = 4096 * 4096
    """The same of its longer side."""
    prefer: Prefer = Prefer.AUTO
    """What a page that brings its own text is read from."""
    witness: bool = False
    """Whether that text is to be told of a page that is read from its pixels."""


EVERY_STEP: Final = Plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A page on its way through the steps, and the view of it that they share."""

    page: PageImage
    view: View


def prepare(pixels: NDArray[np.uint8], plan: Plan = EVERY_STEP) -> PageImage:
    """Return the page after the steps of the plan, in the order of `STEPS`. One that is blank is only scaled down."""
    sheet = Sheet(page=PageImage(pixels=pixels), view=View.of(pixels))
    for step, run in STEPS.items():
        if step in plan.steps:
            sheet = run(sheet, plan)
    return sheet.page


def with_layer(pixels: NDArray[np.uint8], layer: TextLayer, plan: Plan) -> PageImage:
    """Return a page that is read from its text layer, by which it is turned too; nothing else tells as surely."""
    from pecia_workers.reading.layout import layout  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    page = PageImage(pixels=np.ascontiguousarray(np.rot90(pixels, -layer.turn // 90)), rotation=layer.turn)
    if Preparation.DOWNSCALE in plan.steps:
        page = _scaled_down(page, plan)
    found = layout(layer.lines(page.scale), page.pixels, source=Source.LAYER)
    return replace(page, blocks=found.blocks, doubts=found.doubts)


def with_witness(page: PageImage, layer: TextLayer) -> PageImage:
    """Return a page that is read from its pixels with its text layer, if both lie alike on the page."""
    from pecia_workers.reading.layout import layout  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    if page.blank or page.skew or page.rotation != layer.turn:
        return page
    return replace(page, witness=layout(layer.lines(page.scale), page.pixels, source=Source.LAYER).blocks)


def find_blank(sheet: Sheet, _: Plan) -> Sheet:
    """Tell whether nothing is printed or written on the page."""
    return replace(sheet, page=replace(sheet.page, blank=is_blank(sheet.view.grey)))


def orient(sheet: Sheet, _: Plan) -> Sheet:
    """Turn a page that lies on its side or stands on its head. Without pecia[cpu] none is."""
    classifier = None if sheet.page.blank else line_classifier()
    if classifier is None:
        return sheet
    from pecia_workers.media.orientation import turn_needed, turned  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    rotation = turn_needed(sheet.view, classifier)
    if not rotation:
        return sheet
    pixels = turned(sheet.page.pixels, rotation)
    return Sheet(page=replace(sheet.page, pixels=pixels, rotation=rotation), view=sheet.view.turned(rotation))


def deskew(sheet: Sheet, _: Plan) -> Sheet:
    """Turn a page whose lines clearly slope until they are level; where ink would be cut off the page grows."""
    slope = 0.0 if sheet.page.blank else sheet.view.slope
    if not slope:
        return sheet
    image = levelled(Image.fromarray(sheet.page.pixels), -slope, growth_for(sheet.view.ink, -slope))
    return replace(sheet, page=replace(sheet.page, pixels=np.asarray(image), skew=-slope))


def downscale(sheet: Sheet, plan: Plan) -> Sheet:
    """Scale down a page with more pixels than the engine can use: the border between two processes is no cheap one."""
    return replace(sheet, page=_scaled_down(sheet.page, plan))


def _scaled_down(page: PageImage, plan: Plan) -> PageImage:
    height, width = page.pixels.shape[:2]
    scale = min(math.sqrt(plan.most_pixels / (width * height)), plan.longest_side / max(width, height))
    if scale >= 1:
        return page
    size = (max(1, math.floor(width * scale)), max(1, math.floor(height * scale)))
    image = Image.fromarray(page.pixels).resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    return replace(page, pixels=np.asarray(image), scale=max(size) / max(width, height))


STEPS: Final[dict[Preparation, Callable[[Sheet, Plan], Sheet]]] = {
    Preparation.BLANK: find_blank,
    Preparation.ORIENT: orient,
    Preparation.DESKEW: deskew,
    Preparation.DOWNSCALE: downscale,
}
"""What EXIF and a PDF's /Rotate say has been done before, by the decoder."""
