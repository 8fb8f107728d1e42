"""What runs in a decoding process: from a file to its pages or frames, or to the drawn pages of a searchable PDF."""

from __future__ import annotations

import atexit
import importlib.util
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile
from pydantic import SecretStr

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, Encoding, MediaType, PageRanges, Picture, sniff
from pecia_schemas.tasks import Prefer
from pecia_workers.media.classifier import line_classifier
from pecia_workers.media.images import ImagePages, TiffPages
from pecia_workers.media.ink import View, growth_for, levelled
from pecia_workers.media.limits import Limits, MediaError, disguise
from pecia_workers.media.pages import Clip, FramePlan, PageImage, PageInfo, PageSource, Stretch, VideoInfo
from pecia_workers.media.pdf import PdfPages
from pecia_workers.media.preparation import EVERY_STEP, Plan, prepare, with_layer, with_witness

_COLOURED: Final = 16
"""Steps of 255 between the channels of a pixel above which it is no grey: scanners and JPEG tint what is grey."""
_STRIP_OFFSETS, _STRIP_SIZES = 273, 279  # TIFF tags
_ONE_STRIP: Final = 2**30


def draw(
    document: Document,
    index: int,
    limits: Limits,
    password: SecretStr | None = None,
    *,
    rotation: int,
    skew: float,
    quality: int,
) -> Picture:
    """Return a page, counted from 0, turned clockwise by `rotation` and then `skew` degrees. Raises `MediaError`."""
    dpi = _dpi(document, limits)  # before the descriptor is given away
    pixels = as_read(page_pixels(document, index, limits, password), rotation, skew)
    encoding, data = compressed(pixels, quality)
    height, width = pixels.shape[:2]
    return Picture(encoding=encoding, data=data, width=width, height=height, dpi=dpi)


def as_read(pixels: NDArray[np.uint8], rotation: int, skew: float) -> NDArray[np.uint8]:
    """Return a decoded page as its preparation had turned it, by what the result tells of that."""
    turned = np.ascontiguousarray(np.rot90(pixels, -rotation // 90))
    if not skew:
        return turned
    growth = growth_for(View.of(turned).ink, skew)
    return np.asarray(levelled(Image.fromarray(turned), skew, growth))


def compressed(pixels: NDArray[np.uint8], quality: int) -> tuple[Encoding, bytes]:
    """Return the pixels of a page by the cheapest means that show it as it is."""
    if (np.ptp(pixels, axis=2) > _COLOURED).any():
        return Encoding.RGB, _jpeg(Image.fromarray(pixels), quality)
    grey = pixels[:, :, 1]
    if ((grey == 0) | (grey == 255)).all():  # noqa: PLR2004  black and white
        return Encoding.BILEVEL, _group4(grey)
    return Encoding.GREY, _jpeg(Image.fromarray(pixels).convert("L"), quality)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def _group4(grey: NDArray[np.uint8]) -> bytes:
    """Return the one strip of a TIFF; a PDF takes it as it is."""
    buffer = io.BytesIO()
    bits = Image.fromarray(grey).convert("1", dither=Image.Dither.NONE)
    bits.save(buffer, "TIFF", compression="group4", strip_size=_ONE_STRIP)
    file = buffer.getvalue()
    with TiffImageFile(io.BytesIO(file)) as image:
        (start,), (size,) = image.tag_v2[_STRIP_OFFSETS], image.tag_v2[_STRIP_SIZES]
    return file[start : start + size]


def _dpi(document: Document, limits: Limits) -> float | None:
    same = os.dup(document) if isinstance(document, int) else document
    with open(same, "rb") as file:  # noqa: PTH123  may be a descriptor
        file.seek(0)
        return limits.render_dpi if sniff(file.read(HEAD_BYTES)) is MediaType.PDF else None


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
        return _open_files.get(document, limits, password).infos(pages)


def load_page(
    document: Document, index: int, limits: Limits, plan: Plan = EVERY_STEP, password: SecretStr | None = None
) -> PageImage:
    """Decode one page (counted from 0) and prepare it as planned. Raises `MediaError`.

    The last file stays open in this process, so that a long document is not parsed again for every page.
    """
    with _bounded_memory():
        source = _open_files.get(document, limits, password)
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
        return _open_files.get(document, limits, password).pixels(index)


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


class _OpenFiles:
    """The one file this process has open."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._file: BinaryIO | None = None
        self._source: PageSource | None = None

    def get(self, document: Document, limits: Limits, password: SecretStr | None) -> PageSource:
        """Return the file, parsed once as long as it is not replaced and no other is opened."""
        file = open(document, "rb")  # noqa: PTH123, SIM115  as above; it stays open
        stat = os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, limits, password)
        if self._source is not None and key == self._key:
            file.close()
            return self._source
        self.close()
        self._file = file
        self._source = _open_source(file, limits, password)
        self._key = key
        return self._source

    def close(self) -> None:
        """Forget the file."""
        file, self._file = self._file, None
        source, self._source, self._key = self._source, None, None
        if source is not None:
            source.close()
        if file is not None:
            file.close()


_open_files = _OpenFiles()
atexit.register(_open_files.close)


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
        _open_files.close()
        raise MediaError(
            FailureCode.TOO_LARGE, "Decoding needs more memory than PECIA_DECODE_MEMORY_BYTES."
        ) from None
