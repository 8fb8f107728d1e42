"""Pictures, through Pillow: HEIC by libheif, and TIFF frame by frame, each at the same cost."""

import io
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import IO, Any, BinaryIO, Final, Self, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageOps, ImagePalette, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MediaType, PageRanges
from pecia_workers.media.damage import has_lost_rows, is_fax_broken, is_jpeg_broken, is_zeroed
from pecia_workers.media.files import Part, PartFile
from pecia_workers.media.pages import Limits, MediaError, PageInfo, PageSource

_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0
_COMPRESSION, _GROUP_3, _GROUP_4, _JPEG, _FILL_ORDER = 259, 3, 4, 7, 266
_COLOUR_MAP, _JPEG_TABLES = 320, 347
_PLANES, _APART = 284, 2
_TILE_WIDTH, _TILE_HEIGHT, _TILES = 322, 323, 324
_STRIPS, _ROWS_A_STRIP, _STRIP_LENGTHS = 273, 278, 279
_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_X_RESOLUTION, _Y_RESOLUTION = 282, 283
_KIND, _REDUCED, _MASK = 254, 1, 4  # NewSubfileType, two bits of it
_OLD_KIND, _OLD_REDUCED = 255, 2  # SubfileType
_WIDTH, _HEIGHT = 256, 257
_FIRST_ENTRIES: Final = 4  # entries are sorted by tag, and these have the lowest
_SHORT: Final = 3
_A4: Final = (1240, 1754)  # pixels, at 150 dpi


@cache
def _register_heif() -> None:
    """Register HEIC in Pillow as `HEIF`, oriented as stated: one thread, no thumbnails, no further pictures."""
    import pillow_heif  # noqa: PLC0415  loads libheif, which few files need

    pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)


class TiffPages(PageSource):
    """The frames of a TIFF. A frame with a bad header counts as large as the previous one, so that only it fails."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        """Open it in a file that stays open."""
        self._limits = limits
        self._file = file
        with translated_errors():
            self._layout = _Layout.of(self._file)
        self._frames: list[int] = []
        self._further = self._layout.pages(self._file)

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each requested frame; reads headers only."""
        count = min(self._count(self._limits.enough(pages)), self._limits.enough(pages))
        found: list[PageInfo] = []
        total, size = 0, _A4
        for index in self._limits.choose(count, pages):
            with suppress(MediaError), translated_errors():
                size = self._size(self._open(index))
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
            turn, size = image.tag_v2.get(_ORIENTATION_TAG), self._size(image)  # gone once it is decoded
            is_broken = _lacks_strips(image) or self._is_broken(image, turn)
            pixels = resized(to_rgb(ImageOps.exif_transpose(image)), *size)
            self.damage = ((0, 0, pixels.shape[1], pixels.shape[0]),) if is_broken else ()
            return np.invert(pixels) if inverted else pixels  # Pillow does it itself up to 8 bits

    def _is_broken(self, image: TiffImageFile, turn: int | None) -> bool:
        """Return whether rows of a fax frame, or bytes of a JPEG one, are lost, which Pillow does not report."""
        compression, is_jpeg = image.tag_v2.get(_COMPRESSION), image.tag_v2.get(_COMPRESSION) == _JPEG
        is_fax = compression in (_GROUP_3, _GROUP_4) and image.mode == "1"
        if not (is_fax or is_jpeg) or not image.tag_v2.get(_STRIPS):
            return False
        pixels, is_reversed = np.asarray(_as_stored(image, turn)), image.tag_v2.get(_FILL_ORDER, 1) != 1
        tables = image.tag_v2.get(_JPEG_TABLES, b"\xff\xd8\xff\xd9")
        rows = min(len(pixels), image.tag_v2.get(_ROWS_A_STRIP, len(pixels)))
        for number, (at, length) in enumerate(
            zip(image.tag_v2[_STRIPS], image.tag_v2[_STRIP_LENGTHS], strict=False)
        ):
            self._file.seek(at)
            content = self._file.read(length)
            if is_jpeg:
                if is_jpeg_broken(tables[:-2] + content[2:]):
                    return True
                continue
            if is_reversed:
                content = content.translate(_REVERSED)
            strip = pixels[number * rows : (number + 1) * rows]
            if (
                has_lost_rows(content, len(strip))
                if compression == _GROUP_3
                else is_fax_broken(content, strip)
            ):
                return True
        return False

    def close(self) -> None:
        """Keep the file open: it belongs to its opener."""

    def _count(self, enough: int) -> int:
        """Return the number of frames, counted up to `enough`."""
        with translated_errors():
            self._frames += islice(self._further, max(0, enough - len(self._frames)))
        return len(self._frames)

    def _size(self, image: TiffImageFile) -> tuple[int, int]:
        across, down = (image.tag_v2.get(tag) for tag in (_X_RESOLUTION, _Y_RESOLUTION))
        aspect = _aspect(across, down)
        # Pillow has turned the size as the file says, but not its resolution.
        is_sideways = image.tag_v2.get(_ORIENTATION_TAG) in _SIDEWAYS
        return self._limits.square(*image.size, 1 / aspect if is_sideways else aspect)

    def _open(self, index: int) -> TiffImageFile:
        file = _StartingElsewhere(self._file, self._layout.header(self._frames[index]))
        try:
            image = TiffImageFile(cast("IO[bytes]", file))
        except SyntaxError as error:
            if "unknown pixel mode" not in str(error):
                raise
            found = (
                "The TIFF stores its colours in a way that is not decoded here: save it with 8 bits a sample."
            )
            raise MediaError(FailureCode.UNSUPPORTED_TYPE, found) from None
        colours = image.tag_v2.get(_COLOUR_MAP) if image.mode == "P" else None
        if colours and max(colours) <= _EIGHT_BITS:  # of 16 bits; some programs write 8
            image.palette = ImagePalette.raw("RGB;L", bytes(colours))
        return image


@dataclass(frozen=True, slots=True)
class _Layout:
    """Encoding of the directories of a TIFF or BigTIFF file (TIFF 6.0, section 2)."""

    order: str
    big: bool

    @classmethod
    def of(cls, file: BinaryIO) -> Self:
        file.seek(0)
        head = file.read(4)
        return cls(order="<" if head[:2] == b"II" else ">", big=43 in head)  # noqa: PLR2004  BigTIFF's version

    def header(self, first: int) -> bytes:
        """Return a header that points to this first directory."""
        mark = b"II" if self.order == "<" else b"MM"
        form, numbers = ("HHHQ", (43, 8, 0, first)) if self.big else ("HI", (42, first))
        return mark + struct.pack(self.order + form, *numbers)

    def directories(self, file: BinaryIO) -> Iterator[int]:
        """Yield the offset of each directory; one outside of the file, which is truncated then, is the last.

        Raises `struct.error` if the first does.
        """
        entry, length, form = (20, 8, "Q") if self.big else (12, 2, "H")
        seen: set[int] = set()
        offset = self._number(file, 8 if self.big else 4)
        while offset and offset not in seen:
            seen.add(offset)
            try:
                entries = self._number(file, offset, form)
                following = self._number(file, offset + length + entries * entry)
            except (struct.error, OverflowError, OSError):
                if len(seen) == 1:
                    raise
                following = 0
            yield offset
            offset = following

    def pages(self, file: BinaryIO) -> Iterator[int]:
        """Yield the offset of each page's directory, without reduced copies of pages and their masks.

        Unless the file has nothing else.
        """
        others, largest = [], 0
        for offset in self.directories(file):
            about = self._about(file, offset)
            size = about.get(_WIDTH, 0) * about.get(_HEIGHT, 0)
            is_reduced = about.get(_KIND, 0) & _REDUCED or about.get(_OLD_KIND) == _OLD_REDUCED
            if about.get(_KIND, 0) & _MASK or (is_reduced and size < (largest or math.inf)):
                others.append(offset)
            else:
                largest = max(largest, size)
                yield offset
        if not largest:
            yield from others

    def _about(self, file: BinaryIO, directory: int) -> dict[int, int]:
        """Return the tags in a directory that tell whether it is a page, without absent ones."""
        entry, length, form = (20, 8, "Q") if self.big else (12, 2, "H")
        about = {}
        with suppress(struct.error, OverflowError, OSError):
            for index in range(min(self._number(file, directory, form), _FIRST_ENTRIES)):
                at = directory + length + index * entry
                tag, kind = self._number(file, at, "H"), self._number(file, at + 2, "H")
                if tag in (_KIND, _OLD_KIND, _WIDTH, _HEIGHT):
                    about[tag] = self._number(file, at + entry // 2 + 2, "H" if kind == _SHORT else "I")
        return about

    def _number(self, file: BinaryIO, at: int, form: str = "") -> int:
        layout = struct.Struct(self.order + (form or ("Q" if self.big else "I")))
        file.seek(at)
        (number,) = layout.unpack(file.read(layout.size))
        return int(number)


class _StartingElsewhere(PartFile):
    """A file with replaced first bytes."""

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        super().__init__(file, Part(0, file.seek(0, io.SEEK_END)))
        self._file, self._head = file, head

    def fileno(self) -> int:
        return self._file.fileno()  # for libtiff, which reads a frame without the first bytes

    def readinto(self, buffer: Any) -> int:
        at = self.tell()
        count = super().readinto(buffer)
        head = self._head[at : at + count]
        buffer[: len(head)] = head
        return count


_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG markers that begin a picture
_ORIENTATION_TAG = 0x0112
_SIDEWAYS = frozenset({5, 6, 7, 8})  # EXIF orientations that swap width and height
_EIGHT_BITS, _SIXTEEN_BITS = 0xFF, 0xFFFF
_LIGHT: Final = 230
_LEAST_SEEN: Final = 6
"""Least contrast between ink and paper, in levels."""


_COMPRESSED: Final = {MediaType.JPEG2000, MediaType.HEIC, MediaType.AVIF, MediaType.WEBP}


class ImagePages(PageSource):
    """The page of a picture file; of an animation its first picture."""

    def __init__(self, file: BinaryIO, media: MediaType, limits: Limits) -> None:
        """Open it in a file that stays open."""
        self._limits = limits
        self._media = media
        self._file = file
        if media is MediaType.HEIC:
            _register_heif()
        if media is MediaType.JPEG:
            # Of one with 12 or 16 bits a sample Pillow would say no more than that it is none.
            file.seek(2)
            while len(head := file.read(5)) == 5 and head[0] == 0xFF:  # noqa: PLR2004  marker, length, what comes first
                if head[1] in _FRAMES and head[4] > 8:  # noqa: PLR2004  bits
                    found = f"The JPEG has {head[4]} bits a sample, and only 8 can be decoded"
                    raise MediaError(FailureCode.UNSUPPORTED_TYPE, f"{found}: save it with 8 or as PNG.")
                file.seek(int.from_bytes(head[2:4], "big") - 3, io.SEEK_CUR)
            file.seek(0)
        with translated_errors():
            self._image = Image.open(file, formats=["HEIF" if media is MediaType.HEIC else media.name])

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the picture's size; reads the header only."""
        self._limits.choose(1, pages)
        with translated_errors():
            width, height = self._image.size
            aspect = self._aspect()
            # asking a PNG without it would decode the picture in search of a late chunk
            has_exif = self._media is not MediaType.PNG or "exif" in self._image.info
            if has_exif and self._image.getexif().get(_ORIENTATION_TAG) in _SIDEWAYS:
                width, height = height, width
                aspect = 1 / aspect
        self._limits.check_page(width, height)
        width, height = self._limits.square(width, height, aspect)
        return (PageInfo(index=0, width=width, height=height),)

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode the picture."""
        if index != 0:
            raise MediaError(FailureCode.NO_SUCH_PAGE, f"There is no page {index + 1}.")
        with translated_errors():
            self._limits.check_page(*self._image.size)
            (info,) = self.infos()
            pixels = resized(to_rgb(ImageOps.exif_transpose(self._image)), info.width, info.height)
        if self._media is MediaType.JPEG or self._media in _COMPRESSED:
            is_broken = is_jpeg_broken if self._media is MediaType.JPEG else is_zeroed
            self._file.seek(0)
            self.damage = ((0, 0, info.width, info.height),) if is_broken(self._file.read()) else ()
        return pixels

    def _aspect(self) -> float:
        about = self._image.info
        if self._media is MediaType.JPEG:
            return _aspect(*about.get("jfif_density", (1, 1)))
        if self._media is MediaType.PNG:
            return _aspect(*(about.get("dpi") or about.get("aspect") or (1, 1)))
        return 1.0

    def close(self) -> None:
        """Close the file."""
        self._image.close()


def _lacks_strips(image: TiffImageFile) -> bool:
    """Return whether a frame lists other numbers of strips or tiles than its rows need, or empty ones."""
    tags = image.tag_v2
    across = math.ceil(tags[_WIDTH] / tags[_TILE_WIDTH]) if _TILES in tags else 1
    rows = tags.get(_TILE_HEIGHT if _TILES in tags else _ROWS_A_STRIP) or tags[_HEIGHT]
    planes = len(image.getbands()) if tags.get(_PLANES) == _APART else 1
    starts = tags.get(_TILES) or tags.get(_STRIPS) or ()
    needed = across * math.ceil(tags[_HEIGHT] / rows) * planes
    return len(starts) < needed or 0 in starts or (planes == 1 and len(starts) > needed)


_STORED: Final = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
"""The `Image.Transpose` that undoes the transposition of an orientation."""


def _as_stored(image: Image.Image, orientation: int | None) -> Image.Image:
    image.load()
    turn = _STORED.get(orientation or 1)
    return image if turn is None else image.transpose(Image.Transpose(turn))


def _aspect(across: object, down: object) -> float:
    """Return the ratio of a pixel's height to its width by a file's resolutions; 1 without valid ones."""
    with suppress(TypeError, ValueError, ZeroDivisionError):
        return float(cast("float", across)) / float(cast("float", down))
    return 1.0


def resized(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Return pixels scaled to another size, for example to make them square."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return 8-bit RGB of a picture in any mode: deep greys scaled instead of clipped, transparency on white.

    Ink that is invisible on white is put on black, or made opaque. White print beside dark print is put on grey.
    """
    if image.mode[0] in "IF":
        values = np.nan_to_num(np.asarray(image).astype(np.float32))
        low, high = float(values.min()), float(values.max())
        if low >= 0 and 2 <= high <= _SIXTEEN_BITS:  # noqa: PLR2004  of floats 1 is white, or a little more
            bits = math.ceil(int(high).bit_length() / 2) * 2  # 8, 10, 12, 14 or 16: often kept in 16
            low, high = 0.0, max(_EIGHT_BITS, 2.0**bits - 1)
        grey = ((values - low) * (_EIGHT_BITS / max(high - low, 1e-9))).round().astype(np.uint8)
        return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, _ground(layer)), layer)
        if _contrast(image) < _LEAST_SEEN:  # as of white print
            on_black = Image.alpha_composite(Image.new("RGBA", layer.size, "black"), layer)
            image = max(image, on_black, key=_contrast)
        if (
            _contrast(image) < _LEAST_SEEN
        ):  # all of it is transparent, as where a program left the channel empty
            image = max(image, layer.convert("RGB"), key=_contrast)
    elif (
        image.mode == "CMYK" and _contrast(image) < _LEAST_SEEN
    ):  # some writers take 0 for all ink, some for none
        image = max(image, ImageChops.invert(image), key=_contrast)
    return np.array(image.convert("RGB"))


def _ground(layer: Image.Image) -> str:
    """Return the colour on which all print is seen that stands on transparent paper."""
    grey, alpha = np.asarray(layer.convert("L")), np.asarray(layer)[:, :, 3]
    is_seen = alpha > _EIGHT_BITS // 2
    is_light = is_seen & (grey > _LIGHT)
    is_mixed = is_light.any() and (is_seen & ~is_light).any()
    return "grey" if is_mixed and is_light.mean() < np.mean(~is_seen) else "white"


def _contrast(image: Image.Image) -> float:
    darkest, lightest = cast("tuple[float, float]", image.convert("L").getextrema())
    return lightest - darkest


@contextmanager
def translated_errors(what: str = "The picture") -> Iterator[None]:
    """Turn any decoder's error about a file into one `MediaError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # metadata that Pillow cannot read does not matter to us
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (MediaError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        allowed = f"{Image.MAX_IMAGE_PIXELS} pixels are allowed (PECIA_MAX_PAGE_PIXELS)"
        raise MediaError(FailureCode.TOO_LARGE, f"A picture is larger: {allowed}.") from None
    except Exception as error:  # noqa: BLE001  a broken file can break a decoder in any way
        # As far as the kind of error tells: its text may quote the file.
        reason = "its content contradicts itself"
        if isinstance(error, EOFError | struct.error | IndexError) or "truncated" in str(error).lower():
            reason = "it ends early"
        elif isinstance(error, SyntaxError | UnidentifiedImageError):
            reason = "its header is broken"
        elif isinstance(error, OSError):
            reason = "its data is broken"
        raise MediaError(FailureCode.DAMAGED, f"{what} cannot be decoded: {reason}.") from None
