"""Pages as pictures: what the fleet's decoders make of a document for the searchable PDFs of a client."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import SecretStr

GROUP = "pecia.pages"
"""The entry points by which the light client finds the decoders."""


class Encoding(StrEnum):
    """How a picture's pixels are compressed."""

    RGB = "rgb"
    """JPEG in colour."""
    GREY = "grey"
    """JPEG in grey."""
    BILEVEL = "bilevel"
    """Black and white, ITU-T T.6 (fax group 4), lossless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One page as it was read: upright and level."""

    encoding: Encoding
    data: bytes
    """Pixels alone: what else the file held, such as where a photo was taken, is not in it."""
    width: int
    height: int
    dpi: float | None
    """Pixels per inch of the paper; None: the document does not tell its size."""


class NoPictureError(Exception):
    """This page cannot be decoded; the others may."""


class PagePictures(Protocol):
    """The pages of one open document."""

    def __call__(self, number: int, *, rotation: int, skew: float) -> Picture:
        """Return a page (counted from 1) turned clockwise as it was when it was read. Raises `NoPictureError`."""
        ...


class OpenPictures(Protocol):
    """What an entry point of the group `pecia.pages` is."""

    def __call__(
        self, document: Path, *, password: SecretStr | None, quality: int
    ) -> AbstractContextManager[PagePictures]:
        """Open a document to draw its pages, as JPEG of that quality (1 to 95) where they are not bilevel.

        Raises `ValueError` if a setting has no meaning, `ChildProcessError` if nothing can be decoded here.
        """
        ...
