"""A document on its way in: written as it comes, and cut off where the fleet takes no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from pecia_schemas import FailureCode
from pecia_schemas.threads import finish_in_thread
from pecia_workers.media.errors import MediaError

if TYPE_CHECKING:
    from pecia_workers.media.limits import Limits

_BLOCK = 64 * 1024
"""Written at a time: a thread for every byte that a server sends alone would keep the loop busy."""


class Arriving:
    """A file that grows while it is fetched."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._size = 0
        self._waiting = bytearray()

    def announced(self, size: int) -> None:
        """Raise `MediaError` if a file of so many bytes is not worth fetching."""
        self._limits.check_bytes(size)

    async def write(self, chunk: bytes) -> None:
        """Add what has come.

        Raises `MediaError` before the file is longer than the fleet takes, or if it cannot be written.
        """
        self._size += len(chunk)
        self._limits.check_bytes(self._size)
        self._waiting += chunk
        if len(self._waiting) >= _BLOCK:
            await finish_in_thread(self._write)

    async def arrived(self) -> None:
        """Make the file ready to be read. Raises `MediaError` if nothing has come, or not all can be written."""
        self._limits.check_bytes(self._size)
        await finish_in_thread(self._rewind)

    def _write(self) -> None:
        with spooling():
            self._file.write(self._waiting)
        self._waiting.clear()

    def _rewind(self) -> None:
        self._write()
        with spooling():
            self._file.seek(0)  # writes what is left in the buffer


@contextmanager
def spooling() -> Iterator[None]:
    """Raise what the worker's own directory refuses as `MediaError`: it is no fault of the document's server."""
    try:
        yield
    except OSError as error:
        raise unreachable(
            f"The worker cannot write what it fetches ({error.strerror}): see that PECIA_SPOOL_DIR has room."
        ) from None


def refused(found: str) -> MediaError:
    """Return the error for what is not fetched, now or later; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_REFUSED, found)


def unreachable(found: str) -> MediaError:
    """Return the error for what may be fetched at another time; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_UNREACHABLE, found)
