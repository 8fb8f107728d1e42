"""Two servers of Redis, one of them the master, and what a failover does to them and to their clients."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from redis import Redis

from tests.soak.surroundings import Proxy


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

    @property
    def socket(self) -> Path:
        """Where the master is."""
        return self._sockets[self.master]

    def follow(self) -> bool:
        """Have the other server replicate the master; return whether it has all of its data by now."""
        follower = self.servers[1 - self.master]
        port = self._links[self.master].port
        about: Any = follower.info("replication")
        if about.get("master_port") != port:
            follower.execute_command("REPLICAOF", "127.0.0.1", port)  # type: ignore[no-untyped-call]
        of_master: Any = self.servers[self.master].info("replication")
        is_up = about.get("master_port") == port and about["master_link_status"] == "up"
        offset = of_master.get("slave0", {}).get("offset")
        return is_up and bool(offset == of_master["master_repl_offset"])

    def empty(self) -> None:
        """Have the other server hold nothing, and replicate nothing."""
        follower = self.servers[1 - self.master]
        follower.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
        follower.flushall()

    def fail_over(self) -> None:
        """Make the other server the master, with what it holds, and the master its replica.

        Clients that connect reach the new one; the connections there are stay with the former.
        """
        former, self.master = self.master, 1 - self.master
        self.servers[self.master].execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
        self._clients.redirect(self._sockets[self.master])
        self.servers[former].execute_command("REPLICAOF", "127.0.0.1", self._links[self.master].port)  # type: ignore[no-untyped-call]

    def left_behind(self) -> list[str]:
        """Return the last command of each client's connection that is still at the replica."""
        clients: Any = self.servers[1 - self.master].client_list()
        own = self.servers[1 - self.master].client_id()
        return [
            client["cmd"] for client in clients if client["id"] != str(own) and "M" not in client["flags"]
        ]
