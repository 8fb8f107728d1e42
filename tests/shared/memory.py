"""The processes of a worker, which is a session, and what they hold."""

import os
from contextlib import suppress

import psutil


def processes_of(session: int) -> set[int]:
    return {process for process in psutil.pids() if _session_of(process) == session}


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
