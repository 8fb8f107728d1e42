"""A document on its way in: written as it comes, and cut off where the fleet takes no more."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from pecia_schemas import FailureCode
from pecia_schemas.threads import finish_in_thread
from pecia_workers.media.errors import MediaError

if TYPE_CHECKING:
    from pecia_workers.media.limits import Limits


class Arriving:
    """A file that grows while it is fetched."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._size = 0

    def announced(self, size: int) -> None:
        """Raise `MediaError` if a file of so many bytes is not worth fetching."""
        self._limits.check_bytes(size)

    async def write(self, chunk: bytes) -> None:
        """Add what has come. Raises `MediaError` before the file is longer than the fleet takes."""
        self._size += len(chunk)
        self._limits.check_bytes(self._size)
        await finish_in_thread(self._file.write, chunk)

    def arrived(self) -> None:
        """Make the file ready to be read. Raises `MediaError` if nothing has come."""
        self._limits.check_bytes(self._size)
        self._file.seek(0)


def refused(found: str) -> MediaError:
    """Return the error for what is not fetched, now or later; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_REFUSED, found)


def unreachable(found: str) -> MediaError:
    """Return the error for what may be fetched at another time; `found` quotes nothing of a URL."""
    return MediaError(FailureCode.SOURCE_UNREACHABLE, found)
