"""Programs forked from a process that has imported the fleet, and what a process has had forked."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from pecia_workers.local.fleet import MODULES
from pecia_workers.local.process import ChildProcess, fork, wait_until
from pecia_workers.media.processes import public_environment
from pecia_workers.processes.template import Template

_ENDS_S = 60
_OWN_MODULE = b"pecia.cli"  # no process of the product has this one imported


def own_template() -> Template:
    return Template(_OWN_MODULE.decode(), *MODULES)


class LastingTemplate(Template):
    """One that outlives those who fork from it: what one of them has had imported, the next need not wait for."""

    def __init__(self) -> None:
        super().__init__(environment=public_environment())

    def stop(self) -> None:
        """Go on."""

    def end(self) -> None:
        """End it, and its processes."""
        super().stop()

    @property
    def pid(self) -> int:
        return self._process.pid


def fork_from(template: LastingTemplate, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("pecia_workers.media.processes.Template", lambda **_: template)


class Program:
    """A Python program that was forked, with what tests use of `subprocess.Popen`."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self.pid = child.pid

    @property
    def returncode(self) -> int | None:
        return None if self._child.alive else self._child.popen.wait()

    def wait(self, timeout: float = _ENDS_S) -> int:
        assert wait_until(lambda: not self._child.alive, timeout), f"{self.pid} does not end"
        return self._child.popen.wait()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """End it at once, even if it is stopped."""
        self.send_signal(signal.SIGKILL)
        self.wait()


class Programs:
    """Starts Python programs in milliseconds: `-m MODULE` or a script, and its arguments."""

    def __init__(self, template: Template) -> None:
        self._template = template

    def start(self, *command: str, environment: Mapping[str, str], log: Path) -> Program:
        return Program(fork(self._template, ["python", *command], environment=environment, log=log))


class Started:
    """Programs that one test starts, each with a log of its own."""

    def __init__(self, programs: Programs, directory: Path, environment: Mapping[str, str]) -> None:
        self._programs = programs
        self._directory = directory
        self._environment = os.environ | environment
        self.programs: list[Program] = []

    def start(self, *command: str, **environment: str) -> Program:
        own, log = self._environment | environment, self._directory / f"log{len(self.programs)}"
        self.programs.append(self._programs.start(*command, environment=own, log=log))
        return self.programs[-1]

    def worker(self, role: str, *options: str, **environment: str) -> Program:
        return self.start("-m", "pecia", "worker", role, *options, **environment)

    def log(self, program: Program) -> str:
        return (self._directory / f"log{self.programs.index(program)}").read_text()

    def end(self) -> None:
        for program in self.programs:
            program.end()


_former: set[int] = set()


def forget_templates(*, but: LastingTemplate | None = None) -> None:
    """Count no template that runs by now, but for that one: what other tests of this process have left."""
    _former.update(_children("self"))
    if but:
        _former.discard(but.pid)


def templates_of(pid: int | str = "self") -> list[int]:
    """Return the templates that a process has started, but for those forgotten and the one of `own_template`."""
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in _children(pid)}
    return [
        child
        for child, command in commands.items()
        if b"pecia_workers.processes.template" in command
        and _OWN_MODULE not in command
        and child not in _former
    ]


def forked_for(pid: int | str = "self") -> list[int]:
    return [child for template in templates_of(pid) for child in _children(template)]


def _children(pid: int | str) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]
