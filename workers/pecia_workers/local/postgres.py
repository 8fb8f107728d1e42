"""Embedded Postgres: a server of our own on a unix socket, started from a wheel or the machine's package."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pecia_workers.local import cluster
from pecia_workers.local.errors import EmbeddedError, tail
from pecia_workers.local.process import processes_in, spawn, wait_until
from pecia_workers.local.scratch import ScratchDirectory

if TYPE_CHECKING:
    from pecia_workers.local.cluster import Cluster
    from pecia_workers.local.process import ChildProcess

_READY_S = 60
_LEAVING_S = 5
_PORT = 5432
_STATUS_LINE = 7  # of postmaster.pid, counted from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres:
    """A running Postgres that only this account can reach."""

    process: ChildProcess
    sockets: Path
    data: Path
    database: str
    own_directory: ScratchDirectory | None = None

    @property
    def url(self) -> str:
        """Where the database is, as libpq and `PECIA_DATABASE_URL` write it."""
        return self.url_of(self.database)

    def url_of(self, database: str) -> str:
        """Return where another database of this server is."""
        return f"postgresql://postgres@/{database}?host={self.sockets}&port={_PORT}"

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.alive

    def ask_to_stop(self) -> None:
        """Tell it to shut down; returns at once."""
        self.process.ask_to_stop()

    def stop(self, timeout: float = 10) -> None:
        """Shut it down, ending its clients' sessions."""
        self.process.stop(timeout)
        if self.own_directory:
            self.own_directory.remove()

    def kill(self) -> None:
        """End it as a crash would; returns when its sessions are gone too."""
        self.process.kill()
        wait_until(lambda: not processes_in(self.data), _LEAVING_S)


def start_postgres(
    data: Path,
    *,
    socket_dir: Path | None = None,
    durable: bool = True,
    database: str = "pecia",
    log: Path | None = None,
) -> EmbeddedPostgres:
    """Start a Postgres on `data`, which it makes if there is none, with `database` in it; returns when it is ready.

    A server started with the `socket_dir` of one that died takes its place: same URL. Without one, a directory is
    made and goes with `stop`. Not durable: a commit survives kill -9, but not a power cut. As root, the server runs
    as the owner of its data, or as postgres or nobody. The calling thread must outlive the server.
    """
    home = cluster.prepare(data, durable=durable)
    _clear_leftovers(home.data)
    own = None if socket_dir else ScratchDirectory.create()
    sockets = own.path if own else socket_dir or home.data
    home.give(sockets)
    log = log or home.data / "server.log"
    server = EmbeddedPostgres(
        process=_launch(home, sockets, log, durable=durable),
        sockets=sockets,
        data=home.data,
        database=database,
        own_directory=own,
    )
    _await_ready(server, log)
    _ensure_database(server)
    return server


def _clear_leftovers(data: Path) -> None:
    """Wait for a killed server's last processes, then remove its lock file: its number may be another's by now."""
    if not wait_until(lambda: not processes_in(data), _LEAVING_S):
        raise EmbeddedError(
            f"Another Postgres (processes {processes_in(data)}) works in {data}: stop it, or choose another directory."
        )
    (data / "postmaster.pid").unlink(missing_ok=True)


def _launch(home: Cluster, sockets: Path, log: Path, *, durable: bool) -> ChildProcess:
    for leftover in sockets.glob(f".s.PGSQL.{_PORT}*"):
        leftover.unlink()
    options = _options(sockets, durable=durable)
    return spawn(
        [home.programs / "postgres", "-D", home.data, *options],
        log=log,
        environment=cluster.ENVIRONMENT,
        directory=Path("/"),
        account=home.account,
        stop_signal=signal.SIGINT,  # fast: does not wait for clients to leave
        orphan_signal=signal.SIGINT,
    )


def _options(sockets: Path, *, durable: bool) -> list[str]:
    options = {
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "port": str(_PORT),
        "listen_addresses": "",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        # Errors of statements quote the rows they are about: documents' text. The clients see them, the log does not.
        "log_min_messages": "log",
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }
    if not durable:
        options |= {"fsync": "off", "full_page_writes": "off"}
    return [word for name, value in options.items() for word in ("-c", f"{name}={value}")]


def _await_ready(server: EmbeddedPostgres, log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while not _is_ready(server):
        if not server.alive or time.monotonic() > deadline:
            server.stop()
            raise EmbeddedError(f"Postgres did not start in {server.data}. The end of {log}:\n{tail(log)}")
        time.sleep(0.01)


def _is_ready(server: EmbeddedPostgres) -> bool:
    with contextlib.suppress(FileNotFoundError):
        lines = (server.data / "postmaster.pid").read_text().splitlines()
        return (
            len(lines) > _STATUS_LINE
            and int(lines[0]) == server.pid
            and lines[_STATUS_LINE].strip() == "ready"
        )
    return False


def _ensure_database(server: EmbeddedPostgres) -> None:
    try:
        with psycopg.connect(server.url_of("postgres"), autocommit=True) as connection:
            known = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [server.database]
            ).fetchone()
            if not known:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(server.database)))
    except psycopg.Error as error:
        server.stop()
        raise EmbeddedError(f"Postgres started in {server.data}, but cannot be used: {error}") from error
