"""Template processes: fork Python processes with their imports in milliseconds, where a fresh Python takes seconds.

A template runs as `python -P -m pecia_workers.processes.template PARENT DESCRIPTOR MODULE...`. It has one thread, opens
no connection and reads no settings: forking a threaded process may deadlock, and processes must not share a connection.
It is trusted, so requests are pickles over a socket that only its owner holds.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pecia_workers.processes.launcher import die_with_parent

_MOST_DESCRIPTORS = 4

Program = Callable[[], object]


class TemplateDiedError(ChildProcessError):
    """The template has ended, and with it every process that it forked."""


class Template:
    """Forks processes. They end with the template, and the template with the thread that made it."""

    def __init__(
        self, *modules: str, environment: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> None:
        """Start it with this environment, ours by default; returns immediately. It imports `modules`.

        A template that takes longer than `timeout` seconds to fork, or wait for, a process is killed.
        """
        self.timeout = timeout
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("rb")
        command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(theirs.fileno()), *modules]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, and its processes."""
        self._process.kill()
        self._process.wait()
        with self._lock:  # by now every answer has come or will not come
            self._answers.close()
            self._socket.close()

    def run(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run `function(*args)` in the template itself and return its result. Raises `TemplateDiedError`.

        A template that does not answer within `timeout` seconds is killed.
        """
        return self._ask(function, args, (), forks=False, timeout=timeout)

    def fork(self, program: Callable[..., object], *args: Any, descriptors: Sequence[int] = ()) -> Forked:
        """Start a process that runs `program(*descriptors, *args)` with copies of these descriptors.

        Raises `TemplateDiedError`.
        """
        return Forked(self, self._ask(program, args, descriptors, forks=True, timeout=self.timeout))

    def _ask(
        self,
        function: Callable[..., object],
        args: Sequence[Any],
        descriptors: Sequence[int],
        *,
        forks: bool,
        timeout: float | None,
    ) -> Any:
        with self._lock:
            if not self.alive:
                raise TemplateDiedError
            call = pickle.dumps((forks, function, args))
            self._socket.settimeout(timeout)
            try:
                socket.send_fds(self._socket, [b"."], descriptors)
                self._socket.sendall(call)
                succeeded, answer = pickle.load(self._answers)  # noqa: S301  of a process of ours that runs our code  # nosec B301
            except (EOFError, OSError, pickle.UnpicklingError):  # or it does not answer, perhaps stopped
                self._process.kill()
                self._process.wait()  # who asks next finds it dead
                raise TemplateDiedError from None
        if not succeeded:
            raise answer
        return answer


class Forked:
    """A process of a template, with the interface of `subprocess.Popen`. Its id is not reused before `wait`."""

    def __init__(self, template: Template, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Its exit status once `wait` has returned, negative if a signal ended it."""
        self._template = template

    def wait(self) -> int:
        """Wait for its end and return its exit status; meanwhile the template forks nothing."""
        if self.returncode is None:
            try:
                _, status = self._template.run(os.waitpid, self.pid, 0, timeout=self._template.timeout)
            except TemplateDiedError:
                status = signal.SIGKILL
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has certainly ended."""
        if self.returncode is None and self._template.alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def imported(*_things: object) -> None:
    """Do nothing; calling it in a template imports this module there."""


def run_program(output: int, words: Sequence[str], environment: dict[str, str]) -> None:
    """Run as `python WORDS...`, with `-m MODULE` or a script, in a session and environment of its own."""
    os.setsid()
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    show_as(*words)
    import runpy  # noqa: PLC0415  no other process needs it

    if words[0] == "-m":
        sys.argv[:] = words[1:]
        # The template has imported it: runpy would warn.
        sys.modules.pop(f"{words[1]}.__main__", None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def show_as(*words: str) -> None:
    """Make `ps` show this process as `python WORDS...`, as far as the template's argument space allows.

    Source: arg_start and arg_end in proc_pid_stat(5).
    """
    import ctypes  # noqa: PLC0415  as above

    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(map(os.fsencode, (sys.executable, *words)))[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _serve(channel: socket.socket) -> Program:
    """Serve requests until the owner has ended. Returns only in forked processes, with the function to run there."""
    template = os.getpid()
    with channel, channel.makefile("rwb") as stream:
        while True:
            _, descriptors, _, _ = socket.recv_fds(channel, 1, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            try:
                forks, function, args = pickle.load(stream)  # noqa: S301  of our owner  # nosec B301
            except EOFError:
                return sys.exit
            gc.freeze()  # objects that are never touched again stay shared
            pid = os.fork() if forks else None
            if pid == 0:
                die_with_parent(parent=template)
                return partial(function, *descriptors, *args)
            for descriptor in descriptors:
                os.close(descriptor)
            answered: tuple[bool, object] = True, pid
            if not forks:
                try:
                    answered = True, function(*args)
                except Exception as error:  # noqa: BLE001  raised again where the call came from
                    answered = False, error
            pickle.dump(answered, stream)
            stream.flush()


if __name__ == "__main__":
    owner, given, *named = sys.argv[1:]
    die_with_parent(parent=int(owner))
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the group; our owner decides
    for name in named:
        importlib.import_module(name)
    program = _serve(socket.socket(fileno=int(given)))
    signal.signal(signal.SIGINT, heard)
    program()
