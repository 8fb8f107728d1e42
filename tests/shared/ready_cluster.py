"""A Postgres data directory with the current tables: made once for all sessions of a checkout, copied by each."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import psycopg

import pecia_migrations
from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.servers import postgres_programs, start_postgres

__all__ = ["TEMPLATE", "copy_ready_cluster"]

TEMPLATE = "migrated"
"""A second database, equal to `pecia` and without a session in it, to be copied."""


def copy_ready_cluster(cache: Path, target: Path) -> None:
    """Make `target`, a server's data directory whose database `pecia` has the current tables."""
    with _alone(cache / f"cluster-{os.geteuid()}.lock"):
        ready = cache / f"cluster-{os.geteuid()}-{_version()}"
        if not ready.exists():
            for former in cache.glob(f"cluster-{os.geteuid()}-*"):
                shutil.rmtree(former)
            _make(ready)
        _copy(ready, target)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep the other processes and sessions out."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _version() -> str:
    """Return a digest of what decides on the data: the server's version and every migration."""
    digest = sha256(subprocess.check_output([postgres_programs() / "postgres", "--version"]))
    for file in sorted(Path(pecia_migrations.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _make(ready: Path) -> None:
    """Make it where Postgres's account may enter, and move it to its place whole."""
    scratch = ScratchDirectory.create()
    scratch.path.chmod(0o711)
    server = start_postgres(scratch.path / "data", durable=False, log=scratch.path / "server.log")
    pecia_migrations.upgrade(server.url)
    with psycopg.connect(server.url_of("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE pecia".encode())
    server.stop()
    unfinished = ready.with_name(f"{ready.name}.unfinished")
    _copy(server.data, unfinished)
    unfinished.rename(ready)
    scratch.remove()


def _copy(source: Path, target: Path) -> None:
    """Copy with owners and modes: root's Postgres runs as the owner of its data."""
    subprocess.run(["cp", "-a", source, target], check=True)
