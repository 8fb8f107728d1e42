"""Files: a part of one as a file of its own, several that a client has put into one, and those that are not read."""

import io
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import PageRanges, Pile
from pecia_workers.media.pages import Limits, MediaError, PageInfo, PageSource

_A4: Final = (1240, 1754)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file that are a file of their own, or one that a clock of its own runs through."""

    start: int
    end: int = 0
    head: int = 0
    """Bytes of the file's beginning that declare its packets, for a part that does not."""


class PartFile(io.RawIOBase):
    """A part of a file as a separate file, with its own position."""

    def __init__(self, file: BinaryIO | io.RawIOBase, part: Part) -> None:
        outer = file if isinstance(file, PartFile) else None
        start = outer.part.start if outer else 0
        self.part: Part = Part(start + part.start, start + part.end, part.head)
        self.descriptor: int = outer.descriptor if outer else file.fileno()
        self._size = part.head + part.end - part.start
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read anywhere."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return how many bytes."""
        in_head = self._at < self.part.head
        begin = self._at if in_head else self.part.start + self._at - self.part.head
        end = self.part.head if in_head else self.part.end
        content = os.pread(self.descriptor, max(0, min(len(buffer), end - begin)), begin)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position and return it."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at


class PilePages(PageSource):
    """The files' pages one after the other. One file is open at a time; a file that cannot be opened is one page."""

    def __init__(self, file: BinaryIO, limits: Limits, opening: Callable[[BinaryIO], PageSource]) -> None:
        """Find the files in an open one; `opening` opens each of them. Raises `MediaError`."""
        self._file, self._limits, self._opening = file, limits, opening
        try:
            self._parts = [Part(start, end) for start, end in Pile.members(file)]
        except ValueError:
            raise MediaError(FailureCode.DAMAGED, "The files in it cannot be found.") from None
        limits.choose(len(self._parts), None)
        self._open: tuple[int, PageSource] | None = None
        self._infos = [self._infos_of(number) for number in range(len(self._parts))]
        self._ends = [*accumulate(map(len, self._infos))]

    def _infos_of(self, number: int) -> tuple[PageInfo, ...]:
        try:
            return self._source(number).infos()
        except MediaError:  # it fails alone, when it is decoded
            return (PageInfo(index=0, width=_A4[0], height=_A4[1]),)

    def _source(self, number: int) -> PageSource:
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, self._opening(cast("BinaryIO", PartFile(self._file, self._parts[number])))
        return self._open[1]

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each requested page, all if None."""
        sizes = [info for infos in self._infos for info in infos]
        chosen = [replace(sizes[index], index=index) for index in self._limits.choose(len(sizes), pages)]
        self._limits.check_total(sum(page.width * page.height for page in chosen))
        return tuple(chosen)

    def page(self, index: int) -> tuple[PageSource, int]:
        """Return the file with a page, and the page's index in it. Raises `MediaError`."""
        number = bisect_right(self._ends, index)
        if number == len(self._parts):
            raise MediaError(FailureCode.NO_SUCH_PAGE, f"There is no page {index + 1}.")
        return self._source(number), index - self._ends[number] + len(self._infos[number])

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one page."""
        source, own = self.page(index)
        return source.pixels(own)

    def close(self) -> None:
        """Close the file that is open."""
        if self._open:
            self._open[1].close()
            self._open = None


_OFFICE: Final = "an Office document: export it as PDF"
_ARCHIVE: Final = "an archive: unpack it and send the files in it"
_POSTSCRIPT: Final = "PostScript: convert it to PDF"
_PICTURE: Final = "a picture of a kind that is not read: save it as PNG or JPEG"
_SOUND: Final = "a sound recording, without text or pictures"
_PROGRAM: Final = "a program"
_HTML: Final = "a web page, perhaps a server's error message instead of a document: print it as PDF"
_SVG: Final = "an SVG drawing: export it as PDF or PNG"
_XML: Final = "XML: it is text already, or has to be exported as PDF by its program"
_MAIL: Final = "an e-mail: send its attachments"
_TEXT: Final = "plain text, which needs no recognition"

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
    """Return a file's kind and what to do, from its first bytes, to follow `The file is`; None if unknown."""
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
