"""What the processes of a worker hold, a worker being a session: all that it starts is in it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_SESSION = 3  # of /proc/PID/stat, counted from 0 behind the program's name


def processes_of(session: int) -> set[int]:
    running = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {process for process in running if _session_of(process) == session}


def memory_of(*sessions: int) -> int:
    """Return the bytes that the processes of these sessions hold, shared ones counted once."""
    return sum(_proportional_bytes(process) for session in sessions for process in processes_of(session))


def _session_of(process: int) -> int | None:
    with suppress(OSError):  # it has ended meanwhile, as below
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[_SESSION])
    return None


def _proportional_bytes(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
