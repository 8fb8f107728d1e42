"""The processes of a worker, which is a session, and what they hold; and those that have to do with a directory."""

import os
from contextlib import suppress
from pathlib import Path

import psutil


def processes_of(session: int) -> set[int]:
    return {process for process in psutil.pids() if _session_of(process) == session}


def processes_with(directory: Path) -> dict[int, str]:
    """Return the commands of processes that were told of a directory, or work in it; a zombie tells nothing."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            told = str(directory) in f"{command} {process.environ()}"
            if told or Path(process.cwd()).is_relative_to(directory):
                found[process.pid] = command
    return found


def memory_of(*sessions: int) -> int:
    """Return the bytes that the processes of these sessions hold, shared ones counted once."""
    held = 0
    for process in (process for session in sessions for process in processes_of(session)):
        with suppress(psutil.Error):  # it has ended meanwhile
            held += psutil.Process(process).memory_full_info().pss
    return held


def _session_of(process: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(process)
    return None
