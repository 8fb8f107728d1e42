"""Names of workers, by which another process of the same machine can tell that one is gone."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from functools import cache
from pathlib import Path
from uuid import uuid4

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_NAMES = Path("/proc/self/ns/pid")


def new_name(role: str) -> str:
    """Return a name for this process that no other bears, not even a later one with its number."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{_here()}{secrets.token_hex(3)}"


def is_gone(name: str) -> bool:
    """Return whether this process had its number in the same place as ours, and no process has it any more.

    False where that is unknown: on other machines, in other containers, or if the number was given away again.
    """
    rest, _, token = name.rpartition(":")
    pid = rest.rpartition(":")[2]
    return token.startswith(_here()) and pid.isdecimal() and not _exists(int(pid))


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
        where = f"{socket.gethostname()}{_BOOT.read_text()}{_PROCESS_NAMES.stat().st_ino}"
    except OSError:
        where = uuid4().hex
    return hashlib.sha256(where.encode()).hexdigest()[:8]
