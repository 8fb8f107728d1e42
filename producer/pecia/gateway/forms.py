"""Forms whose documents share one temporary file, so that a thousand small documents need one descriptor, no memory."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from typing import IO, Any, Final, cast

from starlette.formparsers import MultiPartParser


class DocumentForm(MultiPartParser):
    """Parses a form. What its files hold is gone when this is closed; threads read several of them at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spool: Final[IO[bytes]] = tempfile.TemporaryFile(prefix="pecia-form-")  # noqa: SIM115  see close()
        self.lock: Final = threading.Lock()
        self.spooled = 0

    def on_headers_finished(self) -> None:
        """Store a file in the form's shared file, in place of a temporary file of its own."""
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file.close()
            upload.file = cast("Any", _Piece(self))

    def close(self) -> None:
        """Delete the form's temporary file."""
        self.spool.close()


class _Piece(io.RawIOBase):
    """One document of a form. It is written completely before the next one."""

    def __init__(self, form: DocumentForm) -> None:
        self._form = form
        self._start = self._at = self._size = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def write(self, data: Any, /) -> int:
        with self._form.lock:
            if not self._size:
                self._start = self._form.spooled
            self._form.spool.seek(self._start + self._size)
            self._form.spool.write(data)
            self._size += len(data)
            self._at = self._size
            self._form.spooled = self._start + self._size
        return len(data)

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._at)]
        with self._form.lock:
            self._form.spool.seek(self._start + self._at)
            count = cast("Any", self._form.spool).readinto(view)
        self._at += count
        return int(count)
