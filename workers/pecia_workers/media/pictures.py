"""Pages as pictures for a client's searchable PDFs, decoded beside its program in one confined process.

Not by `multiprocessing`'s own start, which runs the caller's script again: one that submits would submit twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from pecia_schemas.pictures import NoPictureError, Picture
from pecia_schemas.settings import WorkerSettings, read_settings
from pecia_workers.local.launcher import die_with_parent
from pecia_workers.media.decoding import initialize_process
from pecia_workers.media.drawing import draw
from pecia_workers.media.limits import Limits
from pecia_workers.media.processes import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pydantic import SecretStr

    from pecia_schemas.pictures import PagePictures

_START_S = 120.0


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
        self._limits = Limits.of(settings)
        self._draw = partial(
            draw, document.absolute(), limits=self._limits, password=password, quality=quality
        )
        self._memory_bytes = settings.decode_memory_bytes
        self._timeout = settings.decode_timeout.total_seconds()
        self._process: _Process | None = None

    def __call__(self, number: int, *, rotation: int, skew: float) -> Picture:
        """Return one page. Raises `NoPictureError`."""
        call = partial(self._draw, number - 1, rotation=rotation, skew=skew)
        try:
            succeeded, answer = self.start().ask(call, self._timeout)
        except (EOFError, OSError):  # it died, or ran out of time
            self.close()
            succeeded, answer = False, None
        if succeeded and isinstance(answer, Picture):
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
                self._process.start(self._memory_bytes, initialize_process, (self._limits,))
            except (EOFError, OSError):
                self.close()
                raise ChildProcessError("The process that decodes does not start.") from None
        return self._process


class _Process:
    """A process that answers calls over a pipe, as those of the fleet do."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(theirs.fileno())]
        nowhere = subprocess.DEVNULL  # libraries quote what they read
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        theirs.close()

    def start(self, *initargs: Any) -> None:
        """Make it ready. Raises `OSError` or `EOFError`."""
        self._pipe.send(initargs)
        self._answer(_START_S)

    def ask(self, call: Callable[[], Any], timeout: float) -> tuple[bool, Any]:
        """Return whether a call succeeded there, and what came back. Raises `OSError` or `EOFError`."""
        self._pipe.send((call, ()))
        return self._answer(timeout)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _answer(self, timeout: float) -> tuple[bool, Any]:
        if not self._pipe.poll(timeout):
            raise TimeoutError
        answer: tuple[bool, Any] = self._pipe.recv()
        return answer


if __name__ == "__main__":
    die_with_parent(parent=int(sys.argv[1]))
    pipe = Connection(int(sys.argv[2]))
    serve(pipe, *pipe.recv())
