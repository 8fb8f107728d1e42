"""The processes of a worker, which is a session, and what they hold; and those that have to do with a directory."""

import os
from contextlib import suppress
from pathlib import Path

_SESSION = 3  # of /proc/PID/stat, counted from 0 behind the program's name


def processes_of(session: int) -> set[int]:
    running = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {process for process in running if _session_of(process) == session}


def processes_with(directory: Path) -> dict[int, str]:
    """Return the commands of processes that were told of a directory, or work in it; a zombie tells nothing."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command, working_in = (process / "cmdline").read_bytes(), (process / "cwd").readlink()
            told = os.fsencode(directory) in (process / "environ").read_bytes() + command
            if told or working_in.is_relative_to(directory):
                found[int(process.name)] = command.replace(b"\0", b" ").decode().strip()
    return found


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
