"""Names of processes that hold leases, by which another process of the same machine can tell that one is gone."""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path
from uuid import uuid4

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_NAMES = Path("/proc/self/ns/pid")


def new_owner() -> str:
    """Return a name for this process that no other bears, not even a later one with its number."""
    return f"{_here()}:{os.getpid()}:{uuid4().hex[:8]}"


def is_gone(owner: str) -> bool:
    """Return whether this process had its number in the same place as ours, and no process has it any more.

    False where nobody can tell: on other machines, in other containers, or if the number was given away again.
    """
    place, _, rest = owner.rpartition(":")[0].rpartition(":")
    return place == _here() and rest.isdecimal() and not _exists(int(rest))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


@cache
def _here() -> str:
    """Name where a process number means one process: this boot of this machine, this container."""
    try:
        where = f"{_BOOT.read_text()}{_PROCESS_NAMES.stat().st_ino}"
    except OSError:
        where = uuid4().hex
    return f"{socket.gethostname()}:{hashlib.sha256(where.encode()).hexdigest()[:8]}"
