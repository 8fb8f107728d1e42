"""Pictures, through Pillow."""

from __future__ import annotations

import io
import struct
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MediaType
from pecia_workers.media.errors import MediaError
from pecia_workers.media.pages import PageInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pecia_schemas.media import PageRanges
    from pecia_workers.media.limits import Limits

_FORMATS: Final = {
    MediaType.PNG: "PNG",
    MediaType.JPEG: "JPEG",
    MediaType.WEBP: "WEBP",
    MediaType.BMP: "BMP",
    MediaType.GIF: "GIF",
    MediaType.AVIF: "AVIF",
    MediaType.HEIC: "HEIF",
    MediaType.JPEG2000: "JPEG2000",
    MediaType.PPM: "PPM",
    MediaType.PCX: "PCX",
}
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG markers that begin a picture
_ORIENTATION_TAG = 0x0112
_SIDEWAYS = frozenset({5, 6, 7, 8})  # EXIF orientations that swap width and height
_EIGHT_BITS, _SIXTEEN_BITS = 0xFF, 0xFFFF


class ImagePages:
    """The one page of a picture file; an animation shows its first picture."""

    def __init__(self, file: BinaryIO, media: MediaType, limits: Limits) -> None:
        """Open it in a file that stays open."""
        self._limits = limits
        self._media = media
        if media is MediaType.HEIC:
            from pecia_workers.media.heif import register  # noqa: PLC0415  loads libheif, which few files need

            register()
        if media is MediaType.JPEG:
            _refuse_deep_jpeg(file)
        with translated_errors():
            self._image = Image.open(file, formats=[_FORMATS[media]])

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the picture's size; reads the header only."""
        self._limits.choose(1, pages)
        with translated_errors():
            width, height = self._oriented_size()
        self._limits.check_page(width, height)
        return (PageInfo(index=0, width=width, height=height),)

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode the picture."""
        if index != 0:
            raise MediaError(FailureCode.NO_SUCH_PAGE, f"There is no page {index + 1}.")
        with translated_errors():
            self._limits.check_page(*self._image.size)
            return to_rgb(ImageOps.exif_transpose(self._image))

    def close(self) -> None:
        """Close the file."""
        self._image.close()

    def _oriented_size(self) -> tuple[int, int]:
        width, height = self._image.size
        return (height, width) if self._lies_on_its_side() else (width, height)

    def _lies_on_its_side(self) -> bool:
        if self._media is MediaType.PNG and "exif" not in self._image.info:
            return False  # asking would decode the picture in search of a late chunk
        return self._image.getexif().get(_ORIENTATION_TAG) in _SIDEWAYS


def _refuse_deep_jpeg(file: BinaryIO) -> None:
    """Raise `MediaError` for samples of 12 or 16 bits: Pillow would say no more than that it is no JPEG."""
    file.seek(2)
    while len(head := file.read(5)) == 5 and head[0] == 0xFF:  # noqa: PLR2004  marker, length, what comes first
        if head[1] in _FRAMES and head[4] > 8:  # noqa: PLR2004  bits
            raise MediaError(
                FailureCode.UNSUPPORTED_TYPE,
                f"The JPEG has {head[4]} bits a sample, and only 8 can be decoded: save it with 8 or as PNG.",
            )
        file.seek(int.from_bytes(head[2:4], "big") - 3, io.SEEK_CUR)
    file.seek(0)


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return 8-bit RGB of a picture in any mode: deep greys scaled instead of clipped, transparency on white."""
    if image.mode[0] in "IF":
        grey = _eight_bits(np.asarray(image))
        return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return np.array(image.convert("RGB"))


def _eight_bits(deep: NDArray[np.generic]) -> NDArray[np.uint8]:
    values = np.nan_to_num(deep.astype(np.float32))
    low, high = float(values.min()), float(values.max())
    if low >= 0 and 1 < high <= _SIXTEEN_BITS:
        low, high = 0.0, float(_SIXTEEN_BITS if high > _EIGHT_BITS else _EIGHT_BITS)
    scaled = (values - low) * (_EIGHT_BITS / max(high - low, 1e-9))
    return scaled.round().astype(np.uint8)


@contextmanager
def translated_errors(what: str = "The picture") -> Iterator[None]:
    """Turn whatever a decoder says about a hostile file into one `MediaError`."""
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
        raise MediaError(FailureCode.DAMAGED, f"{what} cannot be decoded: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    """Return what is wrong with a file, as far as the kind of error tells. Its text may quote the file."""
    if isinstance(error, EOFError | struct.error | IndexError) or "truncated" in str(error).lower():
        return "it ends early"
    if isinstance(error, SyntaxError | UnidentifiedImageError):
        return "its header is broken"
    return "its data is broken" if isinstance(error, OSError) else "its content contradicts itself"
