"""Pages as pictures for a client's searchable PDFs, decoded beside its program in one confined process.

Not by `multiprocessing`'s own start, which runs the caller's script again: one that submits would submit twice.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, SecretStr, TypeAdapter
from typing_extensions import TypedDict

from pecia_schemas.media import MAX_SIDE, Encoding, NoPictureError, PagePictures, Picture
from pecia_schemas.settings import WorkerSettings, read_settings
from pecia_workers.local.launcher import die_with_parent
from pecia_workers.media import frames
from pecia_workers.media.decoding import draw, initialize_process
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
                process.send(call, (number - 1,), file.fileno())
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
                self._process.send(tuple, (initargs,))
                self._process.answer(READY, _START_S)
            except (EOFError, OSError, frames.InvalidAnswerError):
                self.close()
                raise ChildProcessError("The process that decodes does not start.") from None
        return self._process


class _Process:
    """A process that answers calls over a socket, as those of the fleet do."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
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

    def send(
        self, function: Callable[..., object], args: tuple[object, ...], document: int | None = None
    ) -> None:
        """Make a call. Raises `OSError`."""
        frames.send_call(self._channel, function, args, document)

    def answer(self, form: frames.Form[T], timeout: float) -> T | MediaError | frames.CallFailedError:
        """Return what came of the call. Raises `OSError`, `EOFError` or `InvalidAnswerError`."""
        deadline = threading.Timer(timeout, self._process.kill)
        deadline.start()
        try:
            return frames.receive_answer(self._channel, form)
        finally:
            deadline.cancel()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()


if __name__ == "__main__":
    die_with_parent(parent=int(sys.argv[1]))
    channel = socket.socket(fileno=int(sys.argv[2]))
    if initargs := frames.receive_call(channel):
        serve(channel, *initargs())
