"""What a fleet stands on and cannot see: the disk under the documents and the clocks of its machines."""

import ctypes
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_FILLING_BYTES = 256 * 1024


class CannotInjectError(Exception):
    """This machine does not permit the fault."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A directory on a disk so small that it can be filled."""

    path: Path

    @classmethod
    def mount(cls, path: Path, *, megabytes: int) -> Self | None:
        """Make `path` a file system of its own for this process and those it starts; it goes with the last of them.

        Returns None where that is not permitted: it takes root. Call it before any thread starts.
        """
        path.mkdir(mode=0o700)
        libc = ctypes.CDLL(None)
        if os.geteuid() or libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC_PRIVATE, None):
            return None
        options = f"size={megabytes}m,mode=0700".encode()
        return None if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options) else cls(path)

    def fill(self) -> None:
        """Leave no room for another byte."""
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(_FILLING_BYTES)):
                pass

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.path / "filler"


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock of one worker's machine, as its Python sees it."""

    file: Path

    @classmethod
    def right(cls, file: Path) -> Self:
        clock = cls(file)
        file.write_bytes(struct.pack("d", 0.0))
        return clock

    def jump(self, seconds: float) -> None:
        """Set it so far ahead of the true time, or behind it."""
        with self.file.open("r+b") as stream:
            stream.write(struct.pack("d", seconds))

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process live by it."""
        here = str(Path(__file__).parent / "clock")
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        return {"SOAK_CLOCK": str(self.file), "PYTHONPATH": path}
