"""From decoded pixels to the page that an engine sees: one function a step, each of which can be left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

from pecia_schemas.blocks import Source
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.media.blank import is_blank
from pecia_workers.media.classifier import line_classifier
from pecia_workers.media.ink import View
from pecia_workers.media.pages import PageImage
from pecia_workers.media.skew import growth_for, levelled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pecia_workers.media.text_layer import TextLayer


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
