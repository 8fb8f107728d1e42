"""Pages as pictures for a client's searchable PDFs, decoded in a process confined like the fleet's decoders.

Does not use `multiprocessing`, whose start runs the caller's script again: a script that submits would submit twice.
"""

import asyncio
import io
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, SecretStr, TypeAdapter
from typing_extensions import TypedDict

from pecia_schemas import media
from pecia_schemas.settings import WorkerSettings, read_settings
from pecia_workers.layout.ink import View, growth_for, levelled, turned
from pecia_workers.media.damage import as_fax
from pecia_workers.media.decoding import Document, initialize_process, page_pixels_and_dpi
from pecia_workers.media.frames import STRICT, CallFailedError, Form
from pecia_workers.media.pages import Limits, MediaError
from pecia_workers.media.processes import BoundedProcesses, ProcessDiedError

T = TypeVar("T")

_Side = Annotated[int, Field(ge=1, le=4 * media.MAX_SIDE)]


@STRICT
class _Drawn(TypedDict):
    encoding: media.Encoding
    data: tuple[Annotated[int, Field(ge=0)]]
    width: _Side
    height: _Side
    dpi: Annotated[float, Field(gt=0)] | None


_DRAWN = TypeAdapter(_Drawn)


_COLOURED: Final = 16
"""Difference of a pixel's channels, of 255, above which it is coloured: scanners and JPEG tint grey."""


@contextmanager
def open_pictures(
    document: Path, *, password: SecretStr | None, quality: int
) -> Iterator[media.PagePictures]:
    """Yield a function that draws a document's pages, within the limits of the `PECIA_*` settings here.

    Raises `SettingsError`, or `ChildProcessError` if the process does not start.
    """
    pictures = _Pictures(document, password, read_settings(WorkerSettings), quality)
    try:
        pictures.start()
        yield pictures
    finally:
        pictures.close()


class _Pictures:
    """A document's pages. A page that times out, or kills its process, is lost alone."""

    def __init__(
        self, document: Path, password: SecretStr | None, settings: WorkerSettings, quality: int
    ) -> None:
        limits, memory_bytes = Limits.of(settings), settings.decode_memory_bytes
        self._document = document
        self._draw = partial(draw, limits=limits, password=password, quality=quality)
        self._timeout = settings.decode_timeout.total_seconds()
        self._form = Form(
            header=_DRAWN,
            build=lambda page: media.Picture(**page | {"data": page["data"].tobytes()}),
            array="data",
            most=memory_bytes,
        )
        self._processes = BoundedProcesses(
            1, initialize_process, limits, memory_bytes=memory_bytes, largest_file=memory_bytes
        )
        self._loop = asyncio.new_event_loop()  # on a thread of its own: the caller's may run one
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        """Start the process; returns when it is ready. Raises `ChildProcessError`."""
        self._thread.start()
        try:
            self._awaited(self._processes.ping())
        except (ProcessDiedError, OSError):
            raise ChildProcessError("The process that decodes does not start.") from None

    def __call__(self, number: int, *, rotation: int, skew: float) -> media.Picture:
        """Return one page. Raises `NoPictureError`."""
        drawing = partial(self._draw, rotation=rotation, skew=skew)
        call = partial(self._processes.call, self._form, drawing, number - 1)
        try:
            with self._document.open("rb", buffering=0) as file:
                return self._awaited(call(document=file.fileno(), timeout=self._timeout))
        except (MediaError, CallFailedError, ProcessDiedError, OSError):  # the last if it ran out of time
            raise media.NoPictureError from None

    def close(self) -> None:
        """Kill the process."""
        self._awaited(self._processes.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _awaited(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def draw(
    document: Document,
    index: int,
    limits: Limits,
    password: SecretStr | None = None,
    *,
    rotation: int,
    skew: float,
    quality: int,
) -> media.Picture:
    """Return a page, counted from 0, turned clockwise by `rotation` and then `skew` degrees. Raises `MediaError`."""
    decoded, dpi = page_pixels_and_dpi(document, index, limits, password)
    pixels = as_read(decoded, rotation, skew)
    encoding, data = compressed(pixels, quality)
    height, width = pixels.shape[:2]
    return media.Picture(encoding=encoding, data=data, width=width, height=height, dpi=dpi)


def as_read(pixels: NDArray[np.uint8], rotation: int, skew: float) -> NDArray[np.uint8]:
    """Return a decoded page turned like in its preparation, by the rotation in its result."""
    pixels = turned(pixels, rotation)
    if not skew:
        return pixels
    return np.asarray(levelled(Image.fromarray(pixels), skew, growth_for(View.of(pixels).ink, skew)))


def compressed(pixels: NDArray[np.uint8], quality: int) -> tuple[media.Encoding, bytes]:
    """Return a page's pixels in the smallest encoding that preserves them."""
    grey, buffer = pixels[:, :, 1], io.BytesIO()
    if (np.ptp(pixels, axis=2) > _COLOURED).any():
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, optimize=True)
        return media.Encoding.RGB, buffer.getvalue()
    is_light = grey == 255  # noqa: PLR2004  white
    if not (is_light | (grey == 0)).all():
        Image.fromarray(pixels).convert("L").save(buffer, "JPEG", quality=quality, optimize=True)
        return media.Encoding.GREY, buffer.getvalue()
    return media.Encoding.BILEVEL, as_fax(is_light)
