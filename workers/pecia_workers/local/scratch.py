"""Directories for sockets and throw-away data: short of path, and gone in the end though their owner is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pecia_workers.local.errors import EmbeddedError

_PREFIX = "pecia-tmp-"
_LOCK = "lock"
_LONGEST_PATH = 107 - len("/pecia-tmp-12345678/.s.PGSQL.5432")  # what the kernel allows a socket's path
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")  # needs no escape in a URL; Alembic would interpolate a percent sign
_HALF_MADE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDirectory:
    """A fresh directory with a short and plain path, held by a lock as long as this process lives."""

    path: Path
    lock: int
    """Descriptor of the lock, so that a later process can tell a dead owner's directory."""

    @classmethod
    def create(cls, parent: Path | None = None) -> ScratchDirectory:
        """Make one, mode 0700, in `parent` or the temporary directory; remove those whose owners were killed."""
        parent = parent or _parent()
        _remove_abandoned(parent)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unheld = path / "unheld"
        lock = os.open(unheld, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unheld.rename(
            path / _LOCK
        )  # held before another process can find it and take the directory for abandoned
        return cls(path=path, lock=lock)

    def remove(self) -> None:
        """Remove it with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)


def _parent() -> Path:
    for candidate in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")):  # noqa: S108  fallbacks, made 0700  # nosec B108
        if _suits(candidate):
            return candidate
    raise EmbeddedError("No short and open temporary directory: set TMPDIR to one, such as /tmp.")


def _suits(directory: Path) -> bool:
    return (
        len(str(directory)) <= _LONGEST_PATH
        and _PLAIN.fullmatch(str(directory)) is not None
        and os.access(directory, os.W_OK | os.X_OK)
        and (os.geteuid() != 0 or bool(directory.stat().st_mode & 0o001))
    )


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}????????"):
        with contextlib.suppress(OSError):
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return not any(path.iterdir()) and time.time() - path.stat().st_mtime > _HALF_MADE_S
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
