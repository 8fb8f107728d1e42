"""Embedded Redis: a server of our own on a unix socket, started from a wheel or the machine's package."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.process import EmbeddedError, processes_in, spawn, tail, wait_until
from pecia_workers.local.wheels import redis_program

if TYPE_CHECKING:
    from pecia_workers.local.process import ChildProcess

_READY_S = 60
_LEAVING_S = 5
_SOCKET = "redis.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRedis:
    """A running Redis that only this account can reach."""

    process: ChildProcess
    socket: Path
    data: Path
    own_directory: ScratchDirectory | None = None

    @property
    def url(self) -> str:
        """Where it is, as redis-py and `PECIA_REDIS_URL` write it."""
        return f"unix://{self.socket}?db=0"

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
        """Shut it down; its data are on disk if it is durable."""
        self.process.stop(timeout)
        if self.own_directory:
            self.own_directory.remove()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()


def start_redis(
    data: Path,
    *,
    socket_dir: Path | None = None,
    durable: bool = True,
    maxmemory: str = "512mb",
    log: Path | None = None,
) -> EmbeddedRedis:
    """Start a Redis on `data`; returns when it answers.

    A server started with the `socket_dir` of one that died takes its place: same URL. Without one, a directory is
    made and goes with `stop`. Not durable means no file at all. The calling thread must outlive the server.
    """
    data.mkdir(parents=True, exist_ok=True)
    data = data.resolve()
    data.chmod(0o700)
    _refuse_shared_data(data)
    own = None if socket_dir else ScratchDirectory.create()
    socket = (socket_dir or own.path if own else socket_dir or data) / _SOCKET
    log = log or data / "server.log"
    process = spawn(
        [redis_program(), *_options(data, socket, durable=durable, maxmemory=maxmemory)],
        log=log,
        environment={"LC_ALL": "C", "TZ": "UTC"},
        orphan_signal=signal.SIGTERM,
    )
    server = EmbeddedRedis(process=process, socket=socket, data=data, own_directory=own)
    _await_answer(server, log)
    return server


def _options(data: Path, socket: Path, *, durable: bool, maxmemory: str) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "daemonize": "no",
        "save": "",
        "appendonly": "yes" if durable else "no",
        "appendfsync": "everysec",
        "maxmemory": maxmemory,
        "maxmemory-policy": "noeviction",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    # Celery's events are published in bursts; the default limit cuts Flower off in the middle of one.
    return [*words, "--client-output-buffer-limit", "pubsub", "256mb", "64mb", "60"]


def _refuse_shared_data(data: Path) -> None:
    if not wait_until(lambda: not processes_in(data), _LEAVING_S):
        raise EmbeddedError(
            f"Another Redis (process {processes_in(data)}) works in {data}: stop it, or choose another directory."
        )


def _await_answer(server: EmbeddedRedis, log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    with Redis(unix_socket_path=str(server.socket), socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
        while not _answers(client):
            if not server.alive or time.monotonic() > deadline:
                server.stop()
                raise EmbeddedError(f"Redis did not start in {server.data}. The end of {log}:\n{tail(log)}")
            time.sleep(0.005)


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisConnectionError:  # not there yet, or still loading its data
        return False
