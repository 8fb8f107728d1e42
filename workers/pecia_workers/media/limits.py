"""What a file may ask of the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE
from pecia_workers.media.errors import MediaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pecia_schemas.media import PageRanges
    from pecia_schemas.settings import WorkerSettings

_SHARE_OF_TIMEOUT = 0.9


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
    """Seconds that decoding a part of a video may take; less than what ends its process."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> Limits:
        """Return the limits that the fleet's settings name."""
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
            raise MediaError(
                FailureCode.TOO_LARGE, f"A page or frame has {width} x {height} pixels: {allowed}."
            )

    def check_total(self, pixels: int) -> None:
        """Raise `MediaError` if all pages together have too many pixels."""
        if pixels > self.total_pixels:
            raise MediaError(
                FailureCode.TOO_LARGE,
                f"The pages have more than {self.total_pixels} pixels in all (PECIA_MAX_TOTAL_PIXELS).",
            )

    def check_video(self, seconds: float) -> None:
        """Raise `MediaError` if a video is empty or lasts too long."""
        if not seconds > 0:
            raise MediaError(FailureCode.EMPTY, "The video has no frames.")
        if seconds > self.video_s:
            raise MediaError(
                FailureCode.TOO_LONG,
                f"The video lasts {seconds:.0f} s: {self.video_s:.0f} s are allowed (PECIA_MAX_VIDEO_DURATION).",
            )

    def check_segments(self, segments: int) -> None:
        """Raise `MediaError` if a video has too many segments."""
        if segments > self.segments:
            allowed = f"{self.segments} are allowed (PECIA_MAX_SEGMENTS)"
            raise MediaError(FailureCode.TOO_LONG, f"The video has {segments} segments: {allowed}.")

    def choose(self, count: int, pages: PageRanges | None) -> Sequence[int]:
        """Return the pages to read, counted from 0, of a document of so many.

        Raises `MediaError` if there is none at all, if one that is asked for is not there, or if they are too many.
        """
        if count < 1:
            raise MediaError(FailureCode.EMPTY, "The document has no pages.")
        if pages is None:
            self._check_count(count, "The document has")
            return range(count)
        if (missing := pages.missing_from(count)) is not None:
            raise MediaError(
                FailureCode.NO_SUCH_PAGE, f"Page {missing} was asked for, of {count} in the document."
            )
        self._check_count(pages.length(count), "The pages asked for are")
        return tuple(pages.indices(count))

    def enough(self, pages: PageRanges | None) -> int:
        """Return up to where pages must be counted to know which to read, or that they are too many."""
        if pages is None:
            return self.pages + 1
        return pages.ranges[-1][0] + self.pages if pages.last is None else pages.last

    def _check_count(self, pages: int, what: str) -> None:
        if pages > self.pages:
            raise MediaError(
                FailureCode.TOO_MANY_PAGES, f"{what} more than {self.pages} pages (PECIA_MAX_PAGES)."
            )

    def check_bytes(self, size: int) -> None:
        """Raise `MediaError` if the file is empty or too long."""
        if size == 0:
            raise MediaError(FailureCode.EMPTY, "The file has no bytes.")
        if size > self.file_bytes:
            allowed = f"{self.file_bytes} are allowed (PECIA_MAX_PAYLOAD_BYTES)"
            raise MediaError(FailureCode.TOO_LARGE, f"The file has {size} bytes: {allowed}.")
