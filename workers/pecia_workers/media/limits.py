"""What a file may ask of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PageRanges

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings


class MediaError(Exception):
    """A file or page that the fleet cannot read; says the code and what was found, never a name or text of the file."""

    def __init__(self, code: FailureCode, found: str) -> None:
        super().__init__(code, found)  # positional, so that it survives the way back from another process
        self.code = code
        self.found = found

    def __str__(self) -> str:
        return f"{self.code}: {self.found}"


_OFFICE: Final = "an Office document: export it as PDF"
_ARCHIVE: Final = "an archive: unpack it and send the files in it"
_POSTSCRIPT: Final = "PostScript: convert it to PDF"
_PICTURE: Final = "a picture of a kind that is not read: save it as PNG or JPEG"
_SOUND: Final = "a sound recording: there is nothing to read or to see in it"
_PROGRAM: Final = "a program"
_HTML: Final = "a web page, perhaps a server's message in the place of a document: print it as PDF"
_SVG: Final = "an SVG drawing: export it as PDF or PNG"
_XML: Final = "XML: it is text already, or needs the program it was made with to export it as PDF"
_MAIL: Final = "an e-mail: send what is attached to it"
_TEXT: Final = "plain text: there is nothing to recognise in it"

_SIGNATURES: Final = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _OFFICE),  # .doc, .xls, .ppt, .msg, .hwp
    (b"{\\rtf", _OFFICE),
    (b"%!", _POSTSCRIPT),
    (b"\x04%!", _POSTSCRIPT),
    (b"\xc5\xd0\xd3\xc6", _POSTSCRIPT),  # EPS with a preview
    (b"AT&TFORM", "a DjVu document: convert it to PDF"),
    (b"\x1f\x8b", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE),
    (b"Rar!", _ARCHIVE),
    (b"BZh", _ARCHIVE),
    (b"\xfd7zXZ", _ARCHIVE),
    (b"8BPS", _PICTURE),
    (b"\0\0\0\x0cJXL ", _PICTURE),
    (b"\xff\x0a", _PICTURE),
    (b"II\xbc\x01", _PICTURE),  # JPEG XR
    (b"\0\0\x01\0", _PICTURE),  # icons
    (b"\xd7\xcd\xc6\x9a", _PICTURE),  # WMF
    (b"ID3", _SOUND),
    (b"OggS", _SOUND),
    (b"fLaC", _SOUND),
    (b"MZ", _PROGRAM),
    (b"\x7fELF", _PROGRAM),
)
_ZIP: Final = b"PK\x03\x04"
_OF_OFFICE: Final = (b"[Content_Types].xml", b"_rels/", b"docProps/", b"mimetypeapplication/")
_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_NO_TEXT: Final = bytes({*range(0x20), 0x7F} - {*b"\t\n\r\f\x1b"})


def disguise(head: bytes) -> str | None:
    """Return what a file is and what to do, from its first bytes, to follow `The file is`; None if it is unknown."""
    if head.startswith(_ZIP):
        return _OFFICE if any(mark in head for mark in _OF_OFFICE) else _ARCHIVE
    if head[:4] == b"RIFF":
        return _SOUND if head[8:12] == b"WAVE" else None
    if found := next((what for signature, what in _SIGNATURES if head.startswith(signature)), None):
        return found
    text = head.replace(b"\0", b"") if head.startswith(_MARKS[1:]) else head
    for mark in _MARKS:
        text = text.removeprefix(mark)
    start = text.lstrip().lower()
    kinds = (
        (text.translate(None, _NO_TEXT) != text, None),
        (b"<svg" in start, _SVG),
        (start.startswith(b"<!doctype html") or b"<html" in start, _HTML),
        (start.startswith(b"<?xml"), _XML),
        (b"mime-version:" in start, _MAIL),
    )
    return next((what for is_that, what in kinds if is_that), _TEXT)


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
