"""TIFF documents, through Pillow: each frame is opened by itself, so that the last costs no more than the first."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, BinaryIO, Final, Self, cast

import numpy as np
from PIL import ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from pecia_schemas.failures import FailureCode
from pecia_workers.media.errors import MediaError
from pecia_workers.media.images import to_rgb, translated_errors
from pecia_workers.media.pages import PageInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pecia_schemas.media import PageRanges
    from pecia_workers.media.limits import Limits

_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0
_A4: Final = (1240, 1754)  # pixels, at 150 dpi


class TiffPages:
    """The frames of a TIFF. One that is described badly counts as large as the one before, so that it fails alone."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        """Open it in a file that stays open."""
        self._limits = limits
        self._file = file
        with translated_errors():
            self._layout = _Layout.of(self._file)
        self._frames: list[int] = []
        self._further = self._layout.directories(self._file)

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each frame asked for; reads headers only."""
        count = min(self._count(self._limits.enough(pages)), self._limits.enough(pages))
        found: list[PageInfo] = []
        total, size = 0, _A4
        for index in self._limits.choose(count, pages):
            size = self._size(index) or size
            self._limits.check_page(*size)
            total += size[0] * size[1]
            self._limits.check_total(total)
            found.append(PageInfo(index=index, width=size[0], height=size[1]))
        return tuple(found)

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one frame."""
        if not 0 <= index < self._count(index + 1):
            raise MediaError(FailureCode.NO_SUCH_PAGE, f"There is no page {index + 1}.")
        with translated_errors():
            image = self._open(index)
            self._limits.check_page(*image.size)
            inverted = image.mode[0] == "I" and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
            pixels = to_rgb(ImageOps.exif_transpose(image))
            return np.invert(pixels) if inverted else pixels  # Pillow does it itself up to 8 bits

    def close(self) -> None:
        """Free what was read; the file is its opener's."""

    def _count(self, enough: int) -> int:
        """Return how many frames there are, or a number that is enough."""
        with translated_errors():
            self._frames += islice(self._further, max(0, enough - len(self._frames)))
        return len(self._frames)

    def _open(self, index: int) -> TiffImageFile:
        file = _StartingElsewhere(self._file, self._layout.header(self._frames[index]))
        try:
            return TiffImageFile(cast("IO[bytes]", file))
        except SyntaxError as error:
            if "unknown pixel mode" not in str(error):
                raise
            raise MediaError(
                FailureCode.UNSUPPORTED_TYPE,
                "The TIFF stores its colours in a way that is not decoded here: save it with 8 bits a sample.",
            ) from None

    def _size(self, index: int) -> tuple[int, int] | None:
        try:
            with translated_errors():
                return self._open(index).size  # Pillow has turned it as the file says
        except MediaError:
            return None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a TIFF file, or a BigTIFF one, writes its directories (TIFF 6.0, section 2)."""

    order: str
    big: bool

    @classmethod
    def of(cls, file: BinaryIO) -> Self:
        file.seek(0)
        head = file.read(4)
        return cls(order="<" if head[:2] == b"II" else ">", big=43 in head)  # noqa: PLR2004  BigTIFF's version

    def header(self, first: int) -> bytes:
        """Return a file's first bytes if its first directory stands there."""
        mark = b"II" if self.order == "<" else b"MM"
        return mark + (
            struct.pack(f"{self.order}HHHQ", 43, 8, 0, first)
            if self.big
            else struct.pack(f"{self.order}HI", 42, first)
        )

    def directories(self, file: BinaryIO) -> Iterator[int]:
        """Yield where each directory stands. If one lies outside of the file, which was cut then, it is the last.

        Raises `struct.error` if the first does.
        """
        seen: set[int] = set()
        offset = self._number(file, 8 if self.big else 4)
        while offset and offset not in seen:
            seen.add(offset)
            following = self._following(file, offset, needed=len(seen) == 1)
            yield offset
            offset = following

    def _following(self, file: BinaryIO, offset: int, *, needed: bool) -> int:
        entry, length, form = (20, 8, "Q") if self.big else (12, 2, "H")
        try:
            entries = self._number(file, offset, form)
            return self._number(file, offset + length + entries * entry)
        except (struct.error, OverflowError, OSError):
            if needed:
                raise
            return 0

    def _number(self, file: BinaryIO, at: int, form: str = "") -> int:
        layout = struct.Struct(self.order + (form or ("Q" if self.big else "I")))
        file.seek(at)
        (number,) = layout.unpack(file.read(layout.size))
        return int(number)


class _StartingElsewhere(io.RawIOBase):
    """A file whose first bytes are others."""

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        self._file, self._head = file, head
        file.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        at = self._file.tell()
        content = self._file.read(len(buffer))
        content = self._head[at : at + len(content)] + content[max(0, len(self._head) - at) :]
        buffer[: len(content)] = content
        return len(content)
