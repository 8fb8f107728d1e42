"""Child processes that die with their parent and leave no children of their own behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pecia_workers.local import launcher
from pecia_workers.template import Forked, Template, run_program

_TAIL_BYTES = 2000


class EmbeddedError(RuntimeError):
    """A server or process of the local fleet cannot do its work. The text says what to do."""


class FleetRunningError(EmbeddedError):
    """Another supervisor already keeps this home."""


def tail(log: Path) -> str:
    """Return the last lines of a server's log, or nothing if there are none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


_POLL_S = 0.01
_LARGEST_LOG_BYTES = 10 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whom a process runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A process of ours, leader of its own session. The thread that started it must outlive it."""

    popen: subprocess.Popen[bytes] | Forked
    stop_signal: signal.Signals = signal.SIGTERM

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs. Does not reap, so that its group keeps its id until `kill`."""
        return self.popen.returncode is None and _state_of(self.pid) not in (None, "Z")

    def ask_to_stop(self) -> None:
        """Tell it to end in its own orderly way; returns at once."""
        if self.alive:
            os.kill(self.pid, self.stop_signal)

    def stop(self, timeout: float = 10) -> None:
        """End it in its own orderly way, by force after `timeout` seconds, with what it left behind."""
        self.ask_to_stop()
        wait_until(lambda: not self.alive, timeout)
        self.kill()

    def kill(self) -> None:
        """End it and every process of its group at once."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    account: Account | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
    orphan_signal: signal.Signals = signal.SIGKILL,
) -> ChildProcess:
    """Start a program that gets `orphan_signal` when the calling thread ends, however it ends.

    The program is named by its whole path. `environment` replaces ours; output is appended to `log`, readable by us
    alone.
    """
    refuse_other_systems()
    guarded = [
        *(sys.executable, "-I", "-S", launcher.__file__),
        *(str(os.getpid()), str(int(orphan_signal))),
        *((str(account.uid), str(account.gid)) if account else ("-1", "-1")),
        *(str(word) for word in command),
    ]
    with contextlib.closing(_LogFile(log)) as output:
        popen = subprocess.Popen(
            guarded,
            stdin=subprocess.DEVNULL,
            stdout=output.descriptor,
            stderr=output.descriptor,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    return ChildProcess(popen=popen, stop_signal=stop_signal)


def fork(
    template: Template, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> ChildProcess:
    """Start a Python program by `template` as `spawn` would, with its whole path, and `-m MODULE` or a script.

    Raises `TemplateDiedError`.
    """
    with contextlib.closing(_LogFile(log)) as output:
        forked = template.fork(run_program, command[1:], dict(environment), descriptors=[output.descriptor])
    return ChildProcess(popen=forked)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Return whether `condition` came true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return met


def processes_in(directory: Path) -> list[int]:
    """Return the processes that work in a directory, as servers do in that of their data."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _directory_of(pid) == directory]


def refuse_other_systems() -> None:
    """Raise `EmbeddedError` where the kernel cannot tie a process to its parent."""
    if not sys.platform.startswith("linux"):
        raise EmbeddedError(
            "The servers and workers of a local fleet need Linux: use the containers of compose/, or set"
            " PECIA_DATABASE_URL and PECIA_REDIS_URL to servers that run elsewhere."
        )


class _LogFile:
    """A log open for appending; one that has grown large is set aside first."""

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _LARGEST_LOG_BYTES:
                path.replace(path.with_name(path.name + ".1"))
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        os.close(self.descriptor)


def _state_of(pid: int) -> str | None:
    """Return the letter for what a process does; None if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return status.rpartition(") ")[2][:1]


def _directory_of(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None
