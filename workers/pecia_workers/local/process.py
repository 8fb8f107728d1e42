"""Supervised child processes: they end with their parent, leave no children, and are restarted when they die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from pecia_workers.processes import launcher
from pecia_workers.processes.template import Forked, Template, run_program
from pecia_workers.protocol.parts import Backoff

_TAIL_BYTES = 2000
_POLL_S = 0.01
_LARGEST_LOG_BYTES = 10 * 1024**2
_BACKOFF = Backoff(first_s=0.25, longest_s=30.0)
_HEALTHY_S = 10.0  # a process that ran this long is restarted after the first pause again
_SETTLED_S = 1.0  # a process that runs this long is ready, if nothing else shows it


R = TypeVar("R", bound="ChildProcess")


class EmbeddedError(RuntimeError):
    """A server or process of the local fleet cannot work. The text says what to do."""


class FleetRunningError(EmbeddedError):
    """Another supervisor already runs on this home."""


def tail(log: Path) -> str:
    """Return the last lines of a server's log; empty without any."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Account of a process."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A child process, leader of its own session. The thread that started it must outlive it."""

    popen: subprocess.Popen[bytes] | Forked
    stop_signal: signal.Signals = signal.SIGTERM

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs. Does not reap, so that its group keeps its id until `kill`."""
        return self.popen.returncode is None and state_of(self.pid) not in ("", "Z")

    def ask_to_stop(self) -> None:
        """Send the signal for an orderly stop; returns immediately."""
        if self.alive:
            os.kill(self.pid, self.stop_signal)

    def stop(self, timeout: float = 10) -> None:
        """Stop it in order, by force after `timeout` seconds, with all remaining processes of its group."""
        self.ask_to_stop()
        wait_until(lambda: not self.alive, timeout)
        self.kill()

    def kill(self) -> None:
        """Kill it and every process of its group."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError):
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

    `environment` replaces ours; output is appended to `log`, which only this account can read. The program is given by
    its absolute path.
    """
    refuse_other_systems()
    guarded = [
        *(sys.executable, "-I", "-S", launcher.__file__),
        *(str(os.getpid()), str(int(orphan_signal))),
        *((str(account.uid), str(account.gid)) if account else ("-1", "-1")),
        *(str(word) for word in command),
    ]
    with _appended(log) as output:
        popen = subprocess.Popen(
            guarded,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    return ChildProcess(popen=popen, stop_signal=stop_signal)


def fork(
    template: Template, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> ChildProcess:
    """Start a Python program like `spawn`, but forked by `template`; by `-m MODULE` or a script.

    Raises `TemplateDiedError`.
    """
    with _appended(log) as output:
        forked = template.fork(run_program, command[1:], dict(environment), descriptors=[output])
    return ChildProcess(popen=forked)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Return whether `condition` became true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return met


def state_of(process: int | str) -> str:
    """Return the kernel's letter for what a process does, nothing if there is no such process."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(") ")[2][:1]
    return ""


def processes_in(directory: Path) -> list[int]:
    """Return the processes whose working directory is this one, as that of servers is their data directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == directory:
                found.append(int(process.name))
    return found


def refuse_other_systems() -> None:
    """Raise `EmbeddedError` where the kernel cannot tie a process to its parent."""
    if not sys.platform.startswith("linux"):
        raise EmbeddedError(
            "The servers and workers of a local fleet need Linux: use the containers of compose/, or set"
            " PECIA_DATABASE_URL and PECIA_REDIS_URL to servers that run elsewhere."
        )


@contextmanager
def _appended(log: Path) -> Iterator[int]:
    """Yield a descriptor of the log, opened for appending; a large log is rotated first."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > _LARGEST_LOG_BYTES:
            log.replace(log.with_name(log.name + ".1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Janitor:
    """A process that outlives the supervisor briefly and ends its children's remaining processes: see `launcher`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the supervisor
        )

    def watch(self, group: int) -> None:
        """Register a process group to be ended when the supervisor dies."""
        self._report(f"+{group}")

    def forget(self, group: int) -> None:
        """Unregister a group that has ended, since its id may be reused."""
        self._report(f"-{group}")

    def dismiss(self) -> None:
        """End every registered group, and the janitor."""
        with suppress(BrokenPipeError):
            self._process.communicate()

    def _report(self, line: str) -> None:
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)


class ServiceState(StrEnum):
    """State of a service."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    """Died, and waits for its next start."""
    STOPPED = "stopped"
    EXTERNAL = "external"
    """Given by URL, not started here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service, as the screen shows it."""

    name: str
    pid: int | None
    state: ServiceState
    where: str
    """Its address, or its log file if it has none."""
    restarts: int = 0
    is_unable: bool = False
    """Its last process exited with EX_CONFIG: it cannot work with these settings."""


@dataclass(slots=True, kw_only=True, eq=False)
class Supervised(Generic[R]):
    """A process or server with its restarts. Used by a single thread, except `service`."""

    name: str
    where: str
    launch: Callable[[], R]
    ready: Callable[[], bool] | None = None
    ended: Callable[[int], None] | None = None
    _running: R | None = field(default=None, init=False)
    _state: ServiceState = field(default=ServiceState.STOPPED, init=False)
    _restarts: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    """Consecutive failures; reset once the service was healthy for a while."""
    _is_unable: bool = field(default=False, init=False)
    _launched: float = field(default=0.0, init=False)
    _due: float = field(default=0.0, init=False)

    @property
    def service(self) -> Service:
        """Its present state."""
        running = self._running
        return Service(
            name=self.name,
            pid=running.pid if running else None,
            state=self._state,
            where=self.where,
            restarts=self._restarts,
            is_unable=self._is_unable,
        )

    def start(self) -> R:
        """Start it. Raises `EmbeddedError`."""
        self._running = launched = self.launch()
        self._launched = time.monotonic()
        self._state = ServiceState.STARTING
        return launched

    def tend(self) -> None:
        """Restart it if due; called repeatedly, never blocks."""
        if self._running is None:
            if self._state is ServiceState.RESTARTING and time.monotonic() >= self._due:
                self._restarts += 1
                try:
                    self.start()
                except (EmbeddedError, OSError):
                    self._wait_for_next_start()
        elif not self._running.alive:
            self._running.kill()  # takes the rest of its group along
            self._let_go(self._running)
            if time.monotonic() - self._launched > _HEALTHY_S:
                self._failures = 0
            self._wait_for_next_start()
        elif self._state is ServiceState.STARTING and (
            self.ready() if self.ready else time.monotonic() - self._launched > _SETTLED_S
        ):
            self._state = ServiceState.READY

    def ask_to_stop(self) -> None:
        """Send the signal to stop; returns immediately."""
        if self._running:
            self._running.ask_to_stop()

    def stop(self, timeout: float) -> None:
        """Stop it, by force after `timeout` seconds."""
        if self._running:
            self._running.stop(timeout)
            self._let_go(self._running)
        self._state = ServiceState.STOPPED

    def _let_go(self, running: R) -> None:
        self._running = None
        self._is_unable = running.popen.returncode == os.EX_CONFIG
        if self.ended:
            self.ended(running.pid)

    def _wait_for_next_start(self) -> None:
        self._state = ServiceState.RESTARTING
        self._failures += 1
        self._due = time.monotonic() + _BACKOFF.wait_s(self._failures)
