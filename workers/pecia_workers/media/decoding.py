"""What runs in a decoding process: from a file to its frames, or to pages as an engine sees them.

A page is prepared in steps, each of which can be left out: is it blank, turned upright, levelled, scaled down.
"""

from __future__ import annotations

import atexit
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import SecretStr

from pecia_schemas.blocks import Source
from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, MediaType, PageRanges, sniff
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.media.images import ImagePages, TiffPages
from pecia_workers.media.ink import View, growth_for, is_blank, levelled
from pecia_workers.media.limits import Limits, MediaError, disguise
from pecia_workers.media.orientation import line_classifier, turn_needed
from pecia_workers.media.pages import (
    EVERY_STEP,
    Clip,
    FramePlan,
    PageImage,
    PageInfo,
    PageSource,
    Plan,
    Stretch,
    VideoInfo,
)
from pecia_workers.media.pdf import PdfPages
from pecia_workers.media.text_layer import TextLayer

_READS_LAYERS = importlib.util.find_spec("cv2") is not None
"""Whether OpenCV is there, which comes with pecia[cpu] and with vLLM."""

Document = Path | int
"""Where a file lies, or the descriptor of one that is open, which is closed when another is opened."""


def initialize_process(limits: Limits) -> None:
    """Make a fresh process ready to decode: one thread, and everything loaded."""
    Image.MAX_IMAGE_PIXELS = limits.page_pixels
    line_classifier()
    if _READS_LAYERS:
        import cv2  # noqa: PLC0415

        from pecia_workers.reading import coverage, layout  # noqa: F401, PLC0415  OpenCV is theirs too

        cv2.setNumThreads(1)


def inspect_file(
    document: Document, limits: Limits, pages: PageRanges | None = None, password: SecretStr | None = None
) -> tuple[PageInfo, ...]:
    """Return the pages of a file, those asked for, and the size each will be decoded at, judged by its content.

    Reads headers only, so damage inside a page shows when that page is loaded. Raises `MediaError`.
    """
    with _bounded_memory():
        return _open_file.get(document, limits, password).infos(pages)


def load_page(
    document: Document, index: int, limits: Limits, plan: Plan = EVERY_STEP, password: SecretStr | None = None
) -> PageImage:
    """Decode one page (counted from 0) and prepare it as planned. Raises `MediaError`.

    The last file stays open in this process, so that a long document is not parsed again for every page.
    """
    with _bounded_memory():
        source = _open_file.get(document, limits, password)
        pixels = source.pixels(index)
        if not (_READS_LAYERS and isinstance(source, PdfPages)):
            return prepare(pixels, plan)
        is_read = plan.prefer is not Prefer.PIXELS
        layer = source.layer(index, pixels, plan) if is_read or plan.witness else None
        if layer is None:
            return prepare(pixels, plan)
        return with_layer(pixels, layer, plan) if is_read else with_witness(prepare(pixels, plan), layer)


def page_pixels(
    document: Document, index: int, limits: Limits, password: SecretStr | None = None
) -> NDArray[np.uint8]:
    """Decode one page (counted from 0) as the file has it, and do nothing else to it. Raises `MediaError`."""
    with _bounded_memory():
        return _open_file.get(document, limits, password).pixels(index)


def probe_video(document: Document, limits: Limits) -> VideoInfo:
    """Return a video's length and size, from its headers. Raises `MediaError`."""
    from pecia_workers.media import video  # noqa: PLC0415  loads FFmpeg, which pages do not need

    with _bounded_memory(), open(document, "rb") as file:  # noqa: PTH123  may be a descriptor
        return video.probe(file, _video_type(file, limits), limits)


def load_clip(document: Document, stretch: Stretch, plan: FramePlan, limits: Limits) -> Clip:
    """Return frames of a stretch of a video, upright and scaled down. Raises `MediaError`."""
    from pecia_workers.media import video  # noqa: PLC0415  as above

    with _bounded_memory(), open(document, "rb") as file:  # noqa: PTH123  as above
        return video.sample(file, _video_type(file, limits), stretch, plan, limits)


class _OpenFile:
    """The one file this process has open."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._source: PageSource | None = None
        self._opened = ExitStack()

    def get(self, document: Document, limits: Limits, password: SecretStr | None) -> PageSource:
        """Return the file, parsed once as long as it is not replaced and no other is opened."""
        file = open(document, "rb")  # noqa: PTH123, SIM115  as above; it stays open
        stat = os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, limits, password)
        if self._source is not None and key == self._key:
            file.close()
            return self._source
        self.close()
        self._opened.enter_context(file)
        self._source, self._key = _open_source(file, limits, password), key
        self._opened.callback(self._source.close)
        return self._source

    def close(self) -> None:
        """Forget the file."""
        self._source = self._key = None
        self._opened.close()


_open_file = _OpenFile()
atexit.register(_open_file.close)


def _open_source(file: BinaryIO, limits: Limits, password: SecretStr | None) -> PageSource:
    media = _media_type(file, limits)
    if media.is_video:
        raise MediaError(
            FailureCode.UNSUPPORTED_TYPE,
            "The file is a video: have it captioned (`caption`, `CaptionVideo`).",
        )
    if media is MediaType.PDF:
        return PdfPages(file, limits, password)
    if media is MediaType.DICOM:
        return _open_dicom(file, limits, password)
    return TiffPages(file, limits) if media is MediaType.TIFF else ImagePages(file, media, limits)


def _open_dicom(file: BinaryIO, limits: Limits, password: SecretStr | None) -> PageSource:
    try:
        from pecia_workers.media.dicom import open_dicom  # noqa: PLC0415  comes with pecia[dicom]
    except ModuleNotFoundError:
        raise MediaError(
            FailureCode.UNSUPPORTED_TYPE,
            "The file is DICOM, which this fleet does not read: install pecia[dicom] where its workers run.",
        ) from None
    return open_dicom(file, limits, password)


def _video_type(file: BinaryIO, limits: Limits) -> MediaType:
    media = _media_type(file, limits)
    if not media.is_video:
        raise MediaError(
            FailureCode.UNSUPPORTED_TYPE, "The file is no video: have it read (`read`, `ReadDocument`)."
        )
    return media


def _media_type(file: BinaryIO, limits: Limits) -> MediaType:
    limits.check_bytes(os.fstat(file.fileno()).st_size)
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    media = sniff(head)
    if media is None:
        what = disguise(head) or "of no kind that is known here"
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"The file is {what}.")
    return media


@contextmanager
def _bounded_memory() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        _open_file.close()
        raise MediaError(
            FailureCode.TOO_LARGE, "Decoding needs more memory than PECIA_DECODE_MEMORY_BYTES."
        ) from None


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
        page = scaled_down(page, plan)
    found = layout(layer.lines(page.scale), page.pixels, source=Source.LAYER)
    return replace(page, blocks=found.blocks, doubts=found.doubts)


def with_witness(page: PageImage, layer: TextLayer) -> PageImage:
    """Return a page that is read from its pixels with its text layer, if both lie alike on the page."""
    from pecia_workers.reading.layout import layout  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    if page.blank or page.skew or page.rotation != layer.turn:
        return page
    return replace(page, witness=layout(layer.lines(page.scale), page.pixels, source=Source.LAYER).blocks)


def orient(sheet: Sheet, _: Plan) -> Sheet:
    """Turn a page that lies on its side or stands on its head. Without pecia[cpu] none is."""
    classifier = None if sheet.page.blank else line_classifier()
    if classifier is None:
        return sheet
    rotation = turn_needed(sheet.view, classifier)
    if not rotation:
        return sheet
    pixels = np.ascontiguousarray(np.rot90(sheet.page.pixels, -rotation // 90))
    return Sheet(page=replace(sheet.page, pixels=pixels, rotation=rotation), view=sheet.view.turned(rotation))


def deskew(sheet: Sheet, _: Plan) -> Sheet:
    """Turn a page whose lines clearly slope until they are level; where ink would be cut off the page grows."""
    slope = 0.0 if sheet.page.blank else sheet.view.slope
    if not slope:
        return sheet
    image = levelled(Image.fromarray(sheet.page.pixels), -slope, growth_for(sheet.view.ink, -slope))
    return replace(sheet, page=replace(sheet.page, pixels=np.asarray(image), skew=-slope))


def scaled_down(page: PageImage, plan: Plan) -> PageImage:
    """Scale down a page with more pixels than the engine can use: the border between two processes is no cheap one."""
    height, width = page.pixels.shape[:2]
    scale = min(math.sqrt(plan.most_pixels / (width * height)), plan.longest_side / max(width, height))
    if scale >= 1:
        return page
    size = (max(1, math.floor(width * scale)), max(1, math.floor(height * scale)))
    image = Image.fromarray(page.pixels).resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    return replace(page, pixels=np.asarray(image), scale=max(size) / max(width, height))


STEPS: Final[dict[Preparation, Callable[[Sheet, Plan], Sheet]]] = {
    Preparation.BLANK: lambda sheet, _: replace(
        sheet, page=replace(sheet.page, blank=is_blank(sheet.view.grey))
    ),
    Preparation.ORIENT: orient,
    Preparation.DESKEW: deskew,
    Preparation.DOWNSCALE: lambda sheet, plan: replace(sheet, page=scaled_down(sheet.page, plan)),
}
"""What EXIF and a PDF's /Rotate say has been done before, by the decoder."""
