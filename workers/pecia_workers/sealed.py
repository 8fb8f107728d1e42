"""Bytes in memory that go to another process as a descriptor, and that cannot be changed once they are sealed.

Source: memfd_create(2) and "File sealing" in fcntl(2).
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
ALIGNMENT: Final = 64
"""At a multiple of so many bytes every part begins: what reads numbers of several bytes in place wants that."""


class InvalidMemoryError(ValueError):
    """What a process sent is no sealed memory of a size that is allowed."""


def sealed(parts: Iterable[memoryview]) -> int:
    """Return the descriptor of a copy of these bytes, one part after another; it is the caller's to close."""
    descriptor = os.memfd_create("pecia", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        at = 0
        for part in parts:
            _write(descriptor, part, at)
            at = aligned(at + part.nbytes)
        os.ftruncate(descriptor, at)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def mapped(descriptor: int, most: int) -> memoryview:
    """Return the bytes of a sealed memory, `most` at most, and close its descriptor.

    Writes to it go to a private copy. Raises `InvalidMemoryError`.
    """
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise InvalidMemoryError
        size = os.fstat(descriptor).st_size
        if not 0 < size <= most:
            raise InvalidMemoryError
        return memoryview(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    except OSError:
        raise InvalidMemoryError from None  # it is no memory that can be sealed
    finally:
        os.close(descriptor)


def aligned(size: int) -> int:
    """Return where the next part begins."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _write(descriptor: int, part: memoryview, at: int) -> None:
    left = part.cast("B") if part.nbytes else memoryview(b"")
    while left:
        count = os.pwrite(descriptor, left, at)
        left, at = left[count:], at + count
