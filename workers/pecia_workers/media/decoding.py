"""Functions of a decoding process: from a file to frames, or to pages prepared for an engine.

A page is prepared in optional steps: test for blank, turn upright, level, scale down.
"""

import atexit
import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import zxingcpp
from numpy.typing import NDArray
from PIL import Image
from pydantic import SecretStr

from pecia_schemas.blocks import Block, BlockKind, Box, Doubt, DoubtReason, Source
from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, MediaType, PageRanges, sniff
from pecia_schemas.tasks import Prefer, Preparation
from pecia_workers.layout.ink import View, growth_for, is_blank, levelled, turned
from pecia_workers.layout.lines import box_of, scaled
from pecia_workers.media.files import PilePages, disguise
from pecia_workers.media.images import ImagePages, TiffPages
from pecia_workers.media.orientation import line_classifier, turn_needed
from pecia_workers.media.pages import (
    EVERY_STEP,
    Clip,
    FramePlan,
    Limits,
    MediaError,
    PageImage,
    PageInfo,
    PageSource,
    Plan,
    Stretch,
    VideoInfo,
)
from pecia_workers.media.pdf import PdfPages

_READS_LAYERS = importlib.util.find_spec("cv2") is not None
"""Whether OpenCV is installed, as with pecia[cpu] and vLLM."""

_LEAST_STRETCH: Final = 640
"""Width in pixels; a narrower page is split as if it were this wide."""

Document = Path | int
"""A file's path, or the descriptor of an open file, closed when the next file is opened."""


def initialize_process(limits: Limits) -> None:
    """Prepare a new process for decoding: one thread, all libraries loaded."""
    Image.MAX_IMAGE_PIXELS = limits.page_pixels
    line_classifier()
    if _READS_LAYERS:
        import cv2  # noqa: PLC0415

        from pecia_workers.layout import blocks, coverage  # noqa: F401, PLC0415  OpenCV is theirs too

        cv2.setNumThreads(1)


def inspect_file(
    document: Document, limits: Limits, pages: PageRanges | None = None, password: SecretStr | None = None
) -> tuple[PageInfo, ...]:
    """Return the requested pages of a file, with the size at which each will be decoded.

    Reads headers only, so that damage inside a page is found when that page is loaded. Raises `MediaError`.
    """
    with _bounded_memory():
        return _open_file.get(document, limits, password).infos(pages)


def load_page(
    document: Document, index: int, limits: Limits, plan: Plan = EVERY_STEP, password: SecretStr | None = None
) -> PageImage:
    """Decode one page (counted from 0) and prepare it as planned. Raises `MediaError`.

    The last file stays open, so that a long document is not parsed again for every page.
    """
    with _bounded_memory():
        source, index = _page(document, index, limits, password)
        pixels = source.pixels(index)
        attachments = source.attachments(index) if isinstance(source, PdfPages) else 0
        page = _with_damage(_prepared(source, index, pixels, plan), pixels, source.damage)
        page = replace(page, attachments=attachments)
        return page if page.blank else replace(page, barcodes=_barcodes_of(page.pixels))


def _prepared(source: PageSource, index: int, pixels: NDArray[np.uint8], plan: Plan) -> PageImage:
    """Return a page as planned, with its own text layer if that is to be read."""
    layer = None
    is_read = plan.prefer is not Prefer.PIXELS
    if _READS_LAYERS and isinstance(source, PdfPages) and (is_read or plan.witness):
        layer = source.layer(index, pixels, plan)
    if layer is None:
        return prepare(pixels, plan)
    if is_read:  # turned by its layer: nothing else is as certain
        page = _scaled_down(PageImage(pixels=turned(pixels, layer.turn), rotation=layer.turn), plan)
    else:
        page = prepare(pixels, plan)
        if page.blank or page.skew or page.rotation != layer.turn:  # the layer lies otherwise
            return page
    from pecia_workers.layout.blocks import layout  # noqa: PLC0415  OpenCV comes with pecia[cpu]

    pieces = layer.lines(page.scale)
    found = layout(pieces, page.pixels, source=Source.LAYER)
    if is_read:
        unread = tuple(scaled(box, page.scale) for box in layer.unread)
        doubts = (*found.doubts, *layer.doubts(page.scale))
        return replace(
            page, blocks=found.blocks, doubts=doubts, pieces=pieces if unread else (), unread=unread
        )
    return replace(page, witness=found.blocks)


def _with_damage(
    page: PageImage, drawn: NDArray[np.uint8], damage: Sequence[tuple[float, float, float, float]]
) -> PageImage:
    """Return a page with a doubt for each damaged place of the rendered page.

    Raises `MediaError` if the page has nothing else.
    """
    if damage and page.blank:
        raise MediaError(FailureCode.DAMAGED, "A picture on the page cannot be decoded.")
    height, width = drawn.shape[:2]
    tall, wide = page.pixels.shape[:2]
    turn = math.radians(page.rotation + page.skew)
    doubts = []
    for left, top, right, bottom in damage:
        corners = [(x - width / 2, y - height / 2) for x in (left, right) for y in (top, bottom)]
        across = [wide / 2 + page.scale * (x * math.cos(turn) - y * math.sin(turn)) for x, y in corners]
        down = [tall / 2 + page.scale * (x * math.sin(turn) + y * math.cos(turn)) for x, y in corners]
        box = Box(
            left=max(0, math.floor(min(across))),
            top=max(0, math.floor(min(down))),
            right=min(wide, math.ceil(max(across))),
            bottom=min(tall, math.ceil(max(down))),
        )
        doubts.append(Doubt(reason=DoubtReason.UNCOVERED, box=box))
    return replace(page, doubts=(*page.doubts, *doubts))


def page_pixels_and_dpi(
    document: Document, index: int, limits: Limits, password: SecretStr | None = None
) -> tuple[NDArray[np.uint8], float | None]:
    """Decode one page (counted from 0) and do nothing else to it; with its resolution if it is one of a PDF.

    Raises `MediaError`.
    """
    with _bounded_memory():
        source, index = _page(document, index, limits, password)
        return source.pixels(index), source.dpi(index) if isinstance(source, PdfPages) else None


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
    """The single file that this process has open."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._source: PageSource | None = None
        self._opened = ExitStack()

    def get(self, document: Document, limits: Limits, password: SecretStr | None) -> PageSource:
        """Return the parsed file, from memory if it is the last one and was not replaced."""
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


def _page(
    document: Document, index: int, limits: Limits, password: SecretStr | None
) -> tuple[PageSource, int]:
    """Return the file with a page of the document, and the page's index in it."""
    source = _open_file.get(document, limits, password)
    return source.page(index) if isinstance(source, PilePages) else (source, index)


def _open_source(
    file: BinaryIO, limits: Limits, password: SecretStr | None, *, is_inner: bool = False
) -> PageSource:
    media = _media_type(file, limits)
    if media is MediaType.PILE and not is_inner:
        opening = partial(_open_source, limits=limits, password=password, is_inner=True)
        return PilePages(file, limits, opening)
    if media.is_video:
        found = "The file is a video: have it captioned (`caption`, `CaptionVideo`)."
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, found)
    if media is MediaType.PDF:
        return PdfPages(file, limits, password)
    if media is MediaType.TIFF:
        return TiffPages(file, limits)
    if media is MediaType.PILE:
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, "The file is a joined document inside another.")
    if media is not MediaType.DICOM:
        return ImagePages(file, media, limits)
    try:
        from pecia_workers.media.dicom import open_dicom  # noqa: PLC0415  comes with pecia[dicom]
    except ModuleNotFoundError:
        found = "The file is DICOM, which this fleet cannot read: install pecia[dicom] on its workers."
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, found) from None
    return open_dicom(file, limits, password)


def _video_type(file: BinaryIO, limits: Limits) -> MediaType:
    media = _media_type(file, limits)
    if not media.is_video:
        found = "The file is no video: have it read (`read`, `ReadDocument`)."
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, found)
    return media


def _media_type(file: BinaryIO, limits: Limits) -> MediaType:
    limits.check_bytes(file.seek(0, os.SEEK_END))
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    media = sniff(head)
    if media is None:
        what = disguise(head) or "of an unknown kind"
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"The file is {what}.")
    return media


@contextmanager
def _bounded_memory() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        _open_file.close()
        found = "Decoding needs more memory than PECIA_DECODE_MEMORY_BYTES."
        raise MediaError(FailureCode.TOO_LARGE, found) from None


def prepare(pixels: NDArray[np.uint8], plan: Plan = EVERY_STEP) -> PageImage:
    """Return the page after the steps of the plan; a blank page is only scaled down.

    The decoder has applied EXIF orientation and /Rotate already. Without pecia[cpu] no page is turned.
    """
    page, view = PageImage(pixels=pixels), View.of(pixels)
    if Preparation.BLANK in plan.steps:
        parts = (View.of(part).grey for part in _stretches(pixels))
        page = replace(page, blank=is_blank(view.grey) and all(map(is_blank, parts)))
    classifier = line_classifier() if Preparation.ORIENT in plan.steps and not page.blank else None
    if classifier and (rotation := turn_needed(view, classifier)):
        page, view = replace(page, pixels=turned(pixels, rotation), rotation=rotation), view.turned(rotation)
    if Preparation.DESKEW in plan.steps and not page.blank and (slope := view.slope):
        # It grows where ink would be cut off.
        image = levelled(Image.fromarray(page.pixels), -slope, growth_for(view.ink, -slope))
        page = replace(page, pixels=np.asarray(image), skew=-slope)
    return _scaled_down(page, plan)


def _stretches(pixels: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Yield a long page in parts that overlap by half: in one scaled image its lines would be illegible."""
    longer, side = max(pixels.shape[:2]), max(_LEAST_STRETCH, min(pixels.shape[:2]))
    for start in range(0, longer - side if longer > 2 * side else 0, side):
        part = slice(start, start + 2 * side)
        yield pixels[part] if pixels.shape[0] == longer else pixels[:, part]


def _scaled_down(page: PageImage, plan: Plan) -> PageImage:
    """Scale down a page with more pixels than the engine can use, since passing pixels between processes is costly."""
    height, width = page.pixels.shape[:2]
    scale = min(math.sqrt(plan.most_pixels / (width * height)), plan.longest_side / max(width, height))
    if scale >= 1 or Preparation.DOWNSCALE not in plan.steps:
        return page
    size = (max(1, math.floor(width * scale)), max(1, math.floor(height * scale)))
    image = Image.fromarray(page.pixels).resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    return replace(page, pixels=np.asarray(image), scale=max(size) / max(width, height))


_MOST_BARCODES: Final = 16
_LONGEST_BARCODE: Final = 4296
"""Most characters of a QR code."""


def _barcodes_of(pixels: NDArray[np.uint8]) -> tuple[Block, ...]:
    """Return the barcodes of an upright page, from top to bottom, with their text."""
    kind = zxingcpp.BarcodeFormat
    # Not a constant of the module: what outlives the interpreter is told on the terminal as a leak.
    formats = zxingcpp.BarcodeFormats([kind.Code128, kind.QRCode, kind.PDF417, kind.DataMatrix])
    found = zxingcpp.read_barcodes(  # one channel is a third of the work
        np.ascontiguousarray(pixels[:, :, 1]), formats=formats, try_rotate=False, try_invert=False
    )
    places = []
    for code in found[:_MOST_BARCODES]:
        place = code.position
        corners = (place.top_left, place.top_right, place.bottom_right, place.bottom_left)
        across, down = [corner.x for corner in corners], [corner.y for corner in corners]
        places.append((min(down), min(across), max(across) + 1, max(down) + 1, code.text[:_LONGEST_BARCODE]))
    return tuple(
        Block(kind=BlockKind.BARCODE, text=text, box=box_of(left, top, right, bottom), source=Source.OCR)
        for top, left, right, bottom, text in sorted(places)
        if text
    )
