"""Limits of files, and pages and clips: their sizes, pixels and preparation."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pecia_schemas.blocks import Block, Box, Doubt, Line
from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PageRanges
from pecia_schemas.tasks import Prefer, Preparation

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings


class MediaError(Exception):
    """An unreadable file or page; has a code and a description, never a name or text of the file."""

    def __init__(self, code: FailureCode, found: str) -> None:
        super().__init__(code, found)  # positional, so that it survives the way back from another process
        self.code = code
        self.found = found

    def __str__(self) -> str:
        return f"{self.code}: {self.found}"


_SHARE_OF_TIMEOUT = 0.9
_SQUARE: Final = 1.15
"""Ratio of a pixel's sides up to which it counts as square, like that of a fine fax, 204 x 196 dpi."""
_LARGEST_ASPECT: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that are checked before anything is decoded."""

    file_bytes: int
    page_pixels: int
    total_pixels: int
    pages: int
    render_dpi: int
    video_s: float
    segments: int
    decode_s: float
    """Seconds that decoding a part of a video may take, less than the timeout of its process."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Limits:
        """Return the limits of the fleet's settings."""
        return cls(
            file_bytes=settings.max_payload_bytes,
            page_pixels=settings.max_page_pixels,
            total_pixels=settings.max_total_pixels,
            pages=settings.max_pages,
            render_dpi=settings.render_dpi,
            video_s=settings.max_video_duration.total_seconds(),
            segments=settings.max_segments,
            decode_s=_SHARE_OF_TIMEOUT * settings.decode_timeout.total_seconds(),
        )

    def check_page(self, width: int, height: int) -> None:
        """Raise `MediaError` if a picture of this size may not be decoded."""
        if width < 1 or height < 1:
            raise MediaError(FailureCode.DAMAGED, "A page or frame has no pixels.")
        if width * height > self.page_pixels or max(width, height) > MAX_SIDE:
            allowed = f"{self.page_pixels} in all (PECIA_MAX_PAGE_PIXELS) and {MAX_SIDE} a side are allowed"
            found = f"A page or frame has {width} x {height} pixels: {allowed}."
            raise MediaError(FailureCode.TOO_LARGE, found)

    def square(self, width: int, height: int, aspect: float) -> tuple[int, int]:
        """Return the size with square pixels of a picture whose pixels are `aspect` times as high as wide.

        The coarser direction grows, or the finer one shrinks if the result would be too large. Ratios that no scanner
        or fax has are ignored as mistakes.
        """
        if not (1 / _LARGEST_ASPECT <= aspect <= _LARGEST_ASPECT) or 1 / _SQUARE <= aspect <= _SQUARE:
            return width, height
        wide, high = (width, height * aspect) if aspect > 1 else (width / aspect, height)
        if wide * high > self.page_pixels or max(wide, high) > MAX_SIDE:
            wide, high = (width / aspect, height) if aspect > 1 else (width, height * aspect)
        return max(1, round(wide)), max(1, round(high))

    def check_total(self, pixels: int) -> None:
        """Raise `MediaError` if all pages together have too many pixels."""
        if pixels > self.total_pixels:
            found = f"The pages have more than {self.total_pixels} pixels in all (PECIA_MAX_TOTAL_PIXELS)."
            raise MediaError(FailureCode.TOO_LARGE, found)

    def check_video(self, seconds: float) -> None:
        """Raise `MediaError` if a video is empty or lasts too long."""
        if not seconds > 0:
            raise MediaError(FailureCode.EMPTY, "The video has no frames.")
        if seconds > self.video_s:
            allowed = f"{self.video_s:.0f} s are allowed (PECIA_MAX_VIDEO_DURATION)"
            raise MediaError(FailureCode.TOO_LONG, f"The video lasts {seconds:.0f} s: {allowed}.")

    def check_segments(self, segments: int) -> None:
        """Raise `MediaError` if a video has too many segments."""
        if segments > self.segments:
            allowed = f"{self.segments} are allowed (PECIA_MAX_SEGMENTS)"
            raise MediaError(FailureCode.TOO_LONG, f"The video has {segments} segments: {allowed}.")

    def choose(self, count: int, pages: PageRanges | None) -> Sequence[int]:
        """Return the pages to read, counted from 0; `count`: pages of the document.

        Raises `MediaError` if there are no pages, too many, or if a requested page does not exist.
        """
        if count < 1:
            raise MediaError(FailureCode.EMPTY, "The document has no pages.")
        if pages is None:
            self._check_count(count, "The document has")
            return range(count)
        if (missing := pages.missing_from(count)) is not None:
            found = f"Page {missing} was asked for, of {count} in the document."
            raise MediaError(FailureCode.NO_SUCH_PAGE, found)
        self._check_count(pages.length(count), "The pages asked for are")
        return tuple(pages.indices(count))

    def enough(self, pages: PageRanges | None) -> int:
        """Return up to which page a document must be counted to select pages, or to know that it has too many."""
        if pages is None:
            return self.pages + 1
        return pages.ranges[-1][0] + self.pages if pages.last is None else pages.last

    def _check_count(self, pages: int, what: str) -> None:
        if pages > self.pages:
            found = f"{what} more than {self.pages} pages (PECIA_MAX_PAGES)."
            raise MediaError(FailureCode.TOO_MANY_PAGES, found)

    def check_bytes(self, size: int) -> None:
        """Raise `MediaError` if the file is empty or too long."""
        if size == 0:
            raise MediaError(FailureCode.EMPTY, "The file has no bytes.")
        if size > self.file_bytes:
            allowed = f"{self.file_bytes} are allowed (PECIA_MAX_PAYLOAD_BYTES)"
            raise MediaError(FailureCode.TOO_LARGE, f"The file has {size} bytes: {allowed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInfo:
    """A page that is not decoded yet, with its size."""

    index: Annotated[int, Field(ge=0, lt=2**31)]
    """Counted from 0."""
    width: int
    """Pixels, after EXIF orientation and a PDF's /Rotate; swapped with the height if the page is turned later."""
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageImage:
    """A page prepared for an engine: upright, as far as its orientation is known."""

    pixels: NDArray[np.uint8]
    """RGB, height x width x 3, contiguous."""
    rotation: int = 0
    """Degrees, clockwise, by which the page was turned *after* EXIF orientation and /Rotate: 0, 90, 180 or 270."""
    skew: float = 0.0
    """Degrees, clockwise, by which it was then turned about its middle to make its lines level; 0 in doubt."""
    scale: float = 1.0
    """Factor by which its sides were then scaled down."""
    blocks: tuple[Block, ...] = ()
    """Blocks of its text layer, if these are to be its text; empty: the page is read from its pixels."""
    doubts: tuple[Doubt, ...] = ()
    """Doubts about the blocks, and about damaged places of the file."""
    pieces: tuple[Line, ...] = ()
    """Pieces of the blocks' text, in any order, if other areas have to be read."""
    unread: tuple[Box, ...] = ()
    """Areas of text-like ink outside of the blocks, such as text in a picture, without overlap."""
    witness: tuple[Block, ...] = ()
    """Its text layer as a witness, where the page is read from its pixels."""
    barcodes: tuple[Block, ...] = ()
    """Its barcodes."""
    attachments: int = 0
    """Files attached to the document or this page, which are not read."""
    blank: bool = False
    """Whether it is blank, so that no engine reads it; a blank page is never turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How pages are prepared."""

    steps: Collection[Preparation] = tuple(Preparation)
    most_pixels: int = 4096 * 4096
    """Most pixels of a page that the engine can use."""
    longest_side: int = 4096 * 4096
    """Longest side of a page that the engine can use."""
    prefer: Prefer = Prefer.AUTO
    """Source of the text of a page with a text layer."""
    completes: bool = False
    """Whether an engine is available for areas outside of the text layer."""
    witness: bool = False
    """Whether the text layer is kept as a witness of a page that is read from its pixels."""


EVERY_STEP: Final = Plan()


class PageSource(Protocol):
    """An open file whose pages can be decoded one by one, in any order."""

    damage: tuple[tuple[float, float, float, float], ...] = ()
    """Damaged places of the page decoded last, in its pixels."""

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each requested page, all if None, without decoding any. Raises `MediaError`."""
        ...

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one page: RGB, oriented as the file says. Raises `MediaError`."""
        ...

    def close(self) -> None:
        """Free what was opened and decoded."""
        ...


Method = Literal["uniform", "fps", "scene"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoInfo:
    """A video that is not decoded yet, by its headers."""

    duration: float
    """Seconds."""
    fps: Annotated[float, Field(gt=0, le=1e6)]
    """Frames per second, on average."""
    width: int
    """Coded width in pixels; swapped with the height if the video is turned for display."""
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a video, in seconds from its first frame."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The frames chosen from a stretch, upright, in the order of time."""

    frames: NDArray[np.uint8]
    """RGB, frames x height x width x 3."""
    times: tuple[float, ...]
    """Time of each frame, in seconds from the video's first frame."""
    fps: float
    """Mean frames per second of the source."""
    damaged: bool = False
    """Whether the file is truncated or corrupt within the stretch; then the frames are those that could be decoded."""

    def __post_init__(self) -> None:
        """Raise `ValueError` if the numbers of frames and times differ."""
        if len(self.times) != len(self.frames):
            raise ValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlan:
    """Which frames of a stretch are chosen, and their size."""

    method: Method
    most: int
    fps: float
    """Frames for each second, for the method `fps`."""
    pixels: int
    """Most pixels of all frames of a stretch together."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> FramePlan:
        """Return the plan of the fleet's settings."""
        return cls(
            method=settings.video_sampling,
            most=settings.video_frames,
            fps=settings.video_fps,
            pixels=settings.video_pixels,
        )

    def count(self, stretch: Stretch, rate: float) -> int:
        """Return the most frames of a stretch of a video with this frame rate."""
        there = max(1, round(stretch.length * rate))
        sampled = max(1, round(stretch.length * self.fps)) if self.method == "fps" else self.most
        return min(there, sampled, self.most)

    def size(self, frames: int, width: int, height: int) -> tuple[int, int]:
        """Return the width and height to which `frames` of this size are scaled: even, never enlarged."""
        scale = min(1.0, math.sqrt(self.pixels / (frames * width * height)))
        return _even(width * scale, width), _even(height * scale, height)


def spread(stretch: Stretch, count: int) -> tuple[float, ...]:
    """Return the middles of `count` equal pieces of the stretch, in seconds."""
    return tuple(stretch.start + (index + 0.5) * stretch.length / count for index in range(count))


def _even(wanted: float, most: int) -> int:
    return min(most, max(2, 2 * math.floor(wanted / 2)))
