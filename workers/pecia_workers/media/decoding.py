"""From a path to its pages: what runs inside a decoding process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from PIL import Image

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, MediaType, sniff
from pecia_workers.media.classifier import line_classifier
from pecia_workers.media.errors import MediaError
from pecia_workers.media.images import ImagePages
from pecia_workers.media.pdf import PdfPages
from pecia_workers.media.preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pecia_workers.media.limits import Limits
    from pecia_workers.media.pages import PageImage, PageInfo, PageSource


def initialize_process(limits: Limits) -> None:
    """Make a fresh process ready to decode: one thread, everything loaded."""
    Image.MAX_IMAGE_PIXELS = limits.page_pixels
    if line_classifier() is not None:
        import cv2  # noqa: PLC0415  comes with pecia[local]

        cv2.setNumThreads(1)


def inspect_file(path: Path, limits: Limits) -> tuple[PageInfo, ...]:
    """Return the pages of a file and the size each will be decoded at, judged by its content.

    Reads headers only, so damage inside a page shows when that page is loaded. Raises `MediaError`.
    """
    with _bounded_memory():
        return _open_files.get(path, limits).infos()


def load_page(path: Path, index: int, limits: Limits) -> PageImage:
    """Decode one page (counted from 0), tell whether it is blank, and turn it upright. Raises `MediaError`.

    The last file stays open in this process, so that a long document is not parsed again for every page.
    """
    with _bounded_memory():
        return prepare(_open_files.get(path, limits).pixels(index))


class _OpenFiles:
    """The one file this process has open."""

    def __init__(self) -> None:
        self._key: tuple[Path, int, int, Limits] | None = None
        self._source: PageSource | None = None

    def get(self, path: Path, limits: Limits) -> PageSource:
        """Return the file, opened once as long as nobody replaces it or asks for another."""
        stat = path.stat()
        key = (path, stat.st_mtime_ns, stat.st_ino, limits)
        if self._source is None or key != self._key:
            self.close()
            self._source = _open_source(path, limits)
            self._key = key
        return self._source

    def close(self) -> None:
        """Forget the file."""
        source, self._source, self._key = self._source, None, None
        if source is not None:
            source.close()


_open_files = _OpenFiles()


def _open_source(path: Path, limits: Limits) -> PageSource:
    limits.check_bytes(path.stat().st_size)
    with path.open("rb") as file:
        media = sniff(file.read(HEAD_BYTES))
    if media is None:
        raise MediaError(FailureCode.UNSUPPORTED_TYPE, "The content is none of the types that Pecia reads.")
    return PdfPages(path, limits) if media is MediaType.PDF else ImagePages(path, media, limits)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        _open_files.close()
        raise MediaError(FailureCode.TOO_LARGE, "Decoding needs more memory than is allowed.") from None
