"""Servers of which one replicates the other, and takes its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psycopg

from pecia_workers.local.process import Account, ChildProcess, spawn, tail, wait_until
from pecia_workers.local.servers import ENVIRONMENT, EmbeddedPostgres, postgres_programs, start_redis
from tests.shared.limits import WAIT_S
from tests.soak.replication import RedisPair
from tests.soak.surroundings import Proxy

__all__ = ["RedisPair", "Standby", "redis_pair"]

_PORT = 5432
_NAME = "standby"


@contextmanager
def redis_pair(directory: Path) -> Iterator[RedisPair]:
    """Yield two new servers, of which the second holds nothing and replicates nothing yet."""
    with ExitStack() as stack:
        servers = [start_redis(directory / name, durable=False) for name in ("first", "second")]
        for server in servers:
            stack.callback(server.stop)
        first, second = (server.socket for server in servers)
        clients = stack.enter_context(Proxy(first))
        yield stack.enter_context(RedisPair(first, second, clients))


class Standby:
    """A streaming standby of an embedded Postgres that every commit waits for: its promotion loses nothing."""

    def __init__(self, primary: EmbeddedPostgres, directory: Path) -> None:
        """Take a directory that is not there yet."""
        self._primary = primary
        self._directory = directory
        self.socket = directory / f".s.PGSQL.{_PORT}"

    def __enter__(self) -> Self:
        owner, root = self._primary.data.stat(), os.geteuid() == 0
        account = Account(name="postgres", uid=owner.st_uid, gid=owner.st_gid) if root else None
        self._directory.mkdir(mode=0o700)
        os.chown(self._directory, owner.st_uid, owner.st_gid)
        programs, data, log = postgres_programs(), self._directory / "data", self._directory / "log"

        def start(*command: str | Path) -> ChildProcess:
            return spawn(command, log=log, environment=ENVIRONMENT, directory=Path("/"), account=account)

        source = f"host={self._primary.sockets} port={_PORT} user=postgres application_name={_NAME}"
        copied = start(
            programs / "pg_basebackup", "-D", data, "-d", source, "--checkpoint=fast", "--write-recovery-conf"
        )
        assert copied.popen.wait() == 0, tail(log)
        options = {"listen_addresses": "", "unix_socket_directories": self._directory, "max_connections": 200}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self._server = start(programs / "postgres", "-D", data, *words)
        with psycopg.connect(self._primary.url_of("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'".encode())
            connection.execute("SELECT pg_reload_conf()")
            in_sync = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            assert wait_until(lambda: connection.execute(in_sync).fetchone() is not None, WAIT_S), tail(log)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()

    def promote(self) -> None:
        """Make it the primary."""
        source = f"host={self._directory} port={_PORT} user=postgres dbname=postgres"
        with psycopg.connect(source, autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
