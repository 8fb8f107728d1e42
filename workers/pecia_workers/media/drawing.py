"""A page drawn for a searchable PDF: decoded, turned as it was when it was read, compressed. Runs in the decoder."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from pecia_schemas.media import HEAD_BYTES, MediaType, sniff
from pecia_schemas.pictures import Encoding, Picture
from pecia_workers.media.decoding import page_pixels
from pecia_workers.media.ink import View
from pecia_workers.media.skew import growth_for, levelled

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pydantic import SecretStr

    from pecia_workers.media.decoding import Document
    from pecia_workers.media.limits import Limits

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
