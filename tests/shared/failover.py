"""Two servers of a kind, of which one replicates the other, and what makes the second one the master."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from redis import Redis
from tests.soak.surroundings import Proxy

from limits import WAIT_S
from pecia_workers.local.process import Account, ChildProcess, spawn, tail, wait_until
from pecia_workers.local.servers import ENVIRONMENT, EmbeddedPostgres, postgres_programs, start_redis

__all__ = ["RedisPair", "Standby", "redis_pair"]

_PORT = 5432
_NAME = "standby"


class RedisPair:
    """Two running servers, by their unix sockets; they replicate each other through proxies, for that takes TCP."""

    def __init__(self, first: Path, second: Path, clients: Proxy) -> None:
        """Take the proxy through which clients come: it forwards to the master."""
        self._stack = ExitStack()
        self._sockets = first, second
        self._clients = clients
        self._links = [Proxy(socket) for socket in self._sockets]
        self.servers = [Redis(unix_socket_path=str(socket), socket_timeout=5) for socket in self._sockets]
        self.url = f"redis://127.0.0.1:{clients.port}/0"
        self.master = 0

    def __enter__(self) -> Self:
        for proxy in self._links:
            self._stack.enter_context(proxy)
        for server in self.servers:
            self._stack.callback(server.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def follow(self) -> bool:
        """Have the other server replicate the master; return whether it has all of its data by now."""
        follower = self.servers[1 - self.master]
        port = self._links[self.master].port
        about: Any = follower.info("replication")
        if about.get("master_port") != port:
            follower.execute_command("REPLICAOF", "127.0.0.1", port)
        of_master: Any = self.servers[self.master].info("replication")
        return (
            about.get("master_port") == port
            and about["master_link_status"] == "up"
            and of_master.get("slave0", {}).get("offset") == of_master["master_repl_offset"]
        )

    def fail_over(self) -> None:
        """Make the other server the master, with what it holds, and the master its replica.

        Clients that connect reach the new one; the connections there are stay with the former.
        """
        former, self.master = self.master, 1 - self.master
        self.servers[self.master].execute_command("REPLICAOF", "NO", "ONE")
        self._clients.redirect(self._sockets[self.master])
        self.servers[former].execute_command("REPLICAOF", "127.0.0.1", self._links[self.master].port)

    def left_behind(self) -> list[str]:
        """Return the last command of each client's connection that is still at the replica."""
        clients: Any = self.servers[1 - self.master].client_list()
        own = self.servers[1 - self.master].client_id()
        return [
            client["cmd"] for client in clients if client["id"] != str(own) and "M" not in client["flags"]
        ]


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
