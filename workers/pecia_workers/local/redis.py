"""Embedded Redis: a server of our own on a unix socket, started from a wheel or the machine's package."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.process import spawn
from pecia_workers.local.wheels import EmbeddedServer, redis_program, refuse_shared_data

_SOCKET = "redis.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRedis(EmbeddedServer):
    """A running Redis that only this account can reach."""

    socket: Path

    @property
    def url(self) -> str:
        """Where it is, as redis-py and `PECIA_REDIS_URL` write it."""
        return f"unix://{self.socket}?db=0"


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
    refuse_shared_data(data, "Redis (process {})")
    own = None if socket_dir else ScratchDirectory.create()
    socket = (own.path if own else socket_dir or data) / _SOCKET
    log = log or data / "server.log"
    child = spawn(
        [redis_program(), *_options(data, socket, durable=durable, maxmemory=maxmemory)],
        log=log,
        environment={"LC_ALL": "C", "TZ": "UTC"},
        orphan_signal=signal.SIGTERM,
    )
    server = EmbeddedRedis(popen=child.popen, socket=socket, data=data, own_directory=own)
    with Redis(unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
        server.await_ready("Redis", lambda: _answers(client), log)
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


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisConnectionError:  # not there yet, or still loading its data
        return False
