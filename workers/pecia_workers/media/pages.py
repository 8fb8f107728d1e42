"""What media hands on: the pages of a file, first by size, then by pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pecia_schemas.blocks import Block, Doubt
    from pecia_schemas.media import PageRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInfo:
    """A page that is not decoded yet, by the size at which it will be."""

    index: int
    """Counted from 0."""
    width: int
    """Pixels, after EXIF orientation and a PDF's /Rotate; a page that turns out to lie on its side swaps both."""
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageImage:
    """A page ready for an engine: upright, as far as could be told."""

    pixels: NDArray[np.uint8]
    """RGB, height x width x 3, contiguous."""
    rotation: int = 0
    """Degrees, clockwise, by which the page was turned *after* EXIF orientation and /Rotate: 0, 90, 180 or 270."""
    skew: float = 0.0
    """Degrees, clockwise, by which it was then turned about its middle to make its lines level; 0 in doubt."""
    scale: float = 1.0
    """By how much its sides were then scaled down."""
    blocks: tuple[Block, ...] = ()
    """What the file itself says is on it, if that is to be its text; empty: the page is read from its pixels."""
    doubts: tuple[Doubt, ...] = ()
    """About the blocks."""
    witness: tuple[Block, ...] = ()
    """What the file itself says is on it, where the page is read from its pixels all the same."""
    blank: bool = False
    """Nothing is printed or written on it, so no engine need look; a blank page is never turned."""


class PageSource(Protocol):
    """An open file whose pages can be decoded one by one, in any order."""

    def infos(self, pages: PageRanges | None = None) -> tuple[PageInfo, ...]:
        """Return the size of each page asked for, of all if None, without decoding any. Raises `MediaError`."""
        ...

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Decode one page: RGB, oriented as the file says. Raises `MediaError`."""
        ...

    def close(self) -> None:
        """Free the file and everything decoded from it."""
        ...
