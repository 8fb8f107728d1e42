"""Pages as pictures for a client's searchable PDFs, decoded beside its program in one confined process.

Not by `multiprocessing`'s own start, which runs the caller's script again: one that submits would submit twice.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile
from pydantic import Field, SecretStr, TypeAdapter
from typing_extensions import TypedDict

from pecia_schemas.media import (
    HEAD_BYTES,
    MAX_SIDE,
    Encoding,
    MediaType,
    NoPictureError,
    PagePictures,
    Picture,
    sniff,
)
from pecia_schemas.settings import WorkerSettings, read_settings
from pecia_workers.local.launcher import die_with_parent
from pecia_workers.media import frames
from pecia_workers.media.decoding import Document, initialize_process, page_pixels
from pecia_workers.media.ink import View, growth_for, levelled
from pecia_workers.media.limits import Limits, MediaError
from pecia_workers.media.processes import READY, public_environment, serve

T = TypeVar("T")

_START_S = 120.0
_Side = Annotated[int, Field(ge=1, le=4 * MAX_SIDE)]


@frames.STRICT
class _Drawn(TypedDict):
    encoding: Encoding
    data: tuple[Annotated[int, Field(ge=0)]]
    width: _Side
    height: _Side
    dpi: Annotated[float, Field(gt=0)] | None


_DRAWN = TypeAdapter(_Drawn)


_COLOURED: Final = 16
"""Steps of 255 between the channels of a pixel above which it is no grey: scanners and JPEG tint what is grey."""
_STRIP_OFFSETS, _STRIP_SIZES = 273, 279  # TIFF tags
_ONE_STRIP: Final = 2**30


@contextmanager
def open_pictures(document: Path, *, password: SecretStr | None, quality: int) -> Iterator[PagePictures]:
    """Yield what draws the pages of a document, by the limits that `PECIA_*` set here.

    Raises `SettingsError`, or `ChildProcessError` if the process does not start.
    """
    pictures = _Pictures(document, password, read_settings(WorkerSettings), quality)
    try:
        pictures.start()
        yield pictures
    finally:
        pictures.close()


class _Pictures:
    """A document's pages. A page that takes longer than it may, or kills its process, costs itself alone."""

    def __init__(
        self, document: Path, password: SecretStr | None, settings: WorkerSettings, quality: int
    ) -> None:
        self._document = document
        self._limits = Limits.of(settings)
        self._draw = partial(draw, limits=self._limits, password=password, quality=quality)
        self._memory_bytes = settings.decode_memory_bytes
        self._timeout = settings.decode_timeout.total_seconds()
        self._process: _Process | None = None
        self._form = frames.Form(
            header=_DRAWN,
            build=lambda page: Picture(**page | {"data": page["data"].tobytes()}),
            array="data",
            most=settings.decode_memory_bytes,
        )

    def __call__(self, number: int, *, rotation: int, skew: float) -> Picture:
        """Return one page. Raises `NoPictureError`."""
        call = partial(self._draw, rotation=rotation, skew=skew)
        try:
            process = self.start()
            with self._document.open("rb", buffering=0) as file:
                frames.send_call(process.channel, call, (number - 1,), file.fileno())
            answer = process.answer(self._form, self._timeout)
        except (EOFError, OSError, frames.InvalidAnswerError):  # it died, or ran out of time
            self.close()
            raise NoPictureError from None
        if isinstance(answer, Picture):
            return answer
        raise NoPictureError from None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process:
            process.end()

    def start(self) -> _Process:
        """Return the process, started if there is none. Raises `ChildProcessError`."""
        if self._process is None:
            self._process = _Process()
            try:
                initargs = (self._memory_bytes, (), self._memory_bytes, initialize_process, (self._limits,))
                frames.send_call(self._process.channel, tuple, (initargs,))
                self._process.answer(READY, _START_S)
            except (EOFError, OSError, frames.InvalidAnswerError):
                self.close()
                raise ChildProcessError("The process that decodes does not start.") from None
        return self._process


class _Process:
    """A process that answers calls over a socket, as those of the fleet do."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(theirs.fileno())]
        nowhere = subprocess.DEVNULL  # libraries quote what they read
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                env=public_environment(),
            )

    def answer(self, form: frames.Form[T], timeout: float) -> T | MediaError | frames.CallFailedError:
        """Return what came of the call. Raises `OSError`, `EOFError` or `InvalidAnswerError`."""
        deadline = threading.Timer(timeout, self._process.kill)
        deadline.start()
        try:
            return frames.receive_answer(self.channel, form)
        finally:
            deadline.cancel()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.channel.close()


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
    same = os.dup(document) if isinstance(document, int) else document
    with open(same, "rb") as file:  # noqa: PTH123  may be a descriptor, which is given away below
        file.seek(0)
        is_pdf = sniff(file.read(HEAD_BYTES)) is MediaType.PDF
    pixels = as_read(page_pixels(document, index, limits, password), rotation, skew)
    encoding, data = compressed(pixels, quality)
    height, width = pixels.shape[:2]
    dpi = limits.render_dpi if is_pdf else None
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
    grey = pixels[:, :, 1]
    encoding, image = Encoding.GREY, Image.fromarray(pixels)
    if (np.ptp(pixels, axis=2) > _COLOURED).any():
        encoding = Encoding.RGB
    elif ((grey == 0) | (grey == 255)).all():  # noqa: PLR2004  black and white
        return Encoding.BILEVEL, _group4(grey)
    else:
        image = image.convert("L")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return encoding, buffer.getvalue()


def _group4(grey: NDArray[np.uint8]) -> bytes:
    """Return the one strip of a TIFF; a PDF takes it as it is."""
    buffer = io.BytesIO()
    bits = Image.fromarray(grey).convert("1", dither=Image.Dither.NONE)
    bits.save(buffer, "TIFF", compression="group4", strip_size=_ONE_STRIP)
    file = buffer.getvalue()
    with TiffImageFile(io.BytesIO(file)) as image:
        (start,), (size,) = image.tag_v2[_STRIP_OFFSETS], image.tag_v2[_STRIP_SIZES]
    return file[start : start + size]


if __name__ == "__main__":
    die_with_parent(parent=int(sys.argv[1]))
    channel = socket.socket(fileno=int(sys.argv[2]))
    if initargs := frames.receive_call(channel):
        serve(channel, *initargs())
