"""The fleet under test, with a handle on everything that can break: servers, connections, processes, disk, clocks."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from pydantic import SecretStr
from redis import Redis

from pecia import Client
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet, WorkerCommand
from pecia_workers.local.home import ScratchDirectory
from pecia_workers.local.servers import start_redis
from tests.soak.observer import Observer
from tests.soak.receiver import Receiver
from tests.soak.replication import RedisPair
from tests.soak.surroundings import Clock, Proxy, SmallDisk

_SECRET = "whsec_" + "dGhlIHNlY3JldCBvZiB0aGUgc29hayB0ZXN0LCAyNA=="
_DISK_MEGABYTES = 96
_PAGES_PER_MEGABYTE = 100
"""At most: what is read stays on the disk."""
_SLOTS = 16
_PART_TIMEOUT = timedelta(seconds=60)
ENGINES = ("engine-1", "engine-2")


class Server(StrEnum):
    """A server behind a proxy."""

    REDIS = "redis"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A whole fleet: servers under one supervisor, workers under another, proxies between the two."""

    servers: LocalFleet
    workers: LocalFleet
    proxies: dict[Server, Proxy]
    redis_pair: RedisPair
    """The Redis of `servers`, and one more that may take its place."""
    clocks: dict[str, Clock]
    disk: SmallDisk | None
    """None where this machine does not let us have one."""
    receiver: Receiver
    client: Client
    observer: Observer
    home: Path

    @property
    def lease(self) -> timedelta:
        """How long a silent worker keeps its parts."""
        return self.workers.settings.lease

    @property
    def part_timeout(self) -> timedelta:
        return self.workers.settings.part_timeout

    def pid(self, service: str) -> int | None:
        """Return the process of a service; None while its supervisor starts it again."""
        services = (*self.servers.services(), *self.workers.services())
        return next((one.pid for one in services if one.name == service and one.pid), None)

    def signal(self, service: str, number: signal.Signals) -> bool:
        """Send a service a signal; return False if there is no such process now."""
        pid = self.pid(service)
        if pid is None:
            return False
        os.kill(pid, number)
        return True

    def redis(self) -> Redis:
        """Return a client of the Redis that is the master, past the proxy."""
        return Redis(unix_socket_path=str(self.redis_pair.socket), socket_timeout=5)

    def postgres(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection to Postgres, past the proxy. Raises `psycopg.Error`."""
        url = self.servers.settings.database_url.get_secret_value()
        return psycopg.connect(url, autocommit=True, connect_timeout=5)

    @property
    def logs(self) -> Path:
        return self.workers.home.path / "logs"

    @property
    def redis_data(self) -> Path:
        return self.servers.home.path / "redis"


@contextmanager
def running(*, engine: str, lease: timedelta, seed: int, pages: int) -> Iterator[Rig]:
    """Run a whole fleet in a directory that goes with it. Call it before any thread starts: see `SmallDisk`."""
    with ExitStack() as stack:
        scratch = ScratchDirectory.create()
        stack.callback(scratch.remove)
        scratch.path.chmod(0o711)  # root's Postgres runs as another account
        disk = SmallDisk.mount(
            scratch.path / "documents", megabytes=_DISK_MEGABYTES + pages // _PAGES_PER_MEGABYTE
        )
        receiver = stack.enter_context(Receiver(secret=_SECRET, seed=seed))
        settings = _settings(engine, lease, scratch.path / "documents")
        servers = LocalFleet(scratch.path / "servers", settings=settings, workers=(), announce=False)
        stack.enter_context(servers)
        proxies = {server: stack.enter_context(Proxy(_socket(servers, server))) for server in Server}
        standby = start_redis(scratch.path / "standby", durable=False)
        stack.callback(standby.stop)
        pair = RedisPair(_socket(servers, Server.REDIS), standby.socket, proxies[Server.REDIS])
        stack.enter_context(pair)
        clocks = {name: Clock.right(scratch.path / f"{name}.clock") for name in _ROLES}
        workers = LocalFleet(
            scratch.path / "workers",
            settings=_through(proxies, settings),
            workers=[
                WorkerCommand(
                    name=name,
                    command=(sys.executable, "-m", "pecia_workers", "worker", _ROLES[name], "--name", name),
                    registers=True,
                    environment=clocks[name].environment,
                )
                for name in _ROLES
            ],
            announce=False,
        )
        stack.enter_context(workers)
        workers.wait_ready()
        observer = Observer(servers.settings.database_url.get_secret_value())
        stack.callback(observer.close)
        yield Rig(
            servers=servers,
            workers=workers,
            proxies=proxies,
            redis_pair=pair,
            clocks=clocks,
            disk=disk,
            receiver=receiver,
            client=stack.enter_context(
                Client(
                    workers.settings.database_url.get_secret_value(),
                    workers.settings.redis_url.get_secret_value(),
                    workers.settings.payload_url,
                )
            ),
            observer=observer,
            home=scratch.path,
        )


_ROLES = {"ingest": "ingest", **dict.fromkeys(ENGINES, "engine"), "webhooks": "webhooks", "upkeep": "upkeep"}


def _settings(engine: str, lease: timedelta, documents: Path) -> WorkerSettings:
    given: dict[str, Any] = {
        "engine": engine,
        "engine_processes": 1,
        "decode_processes": 1,
        "max_in_flight": _SLOTS,
        "lease": lease,
        "part_timeout": _PART_TIMEOUT,
        "max_deaths": 100,  # who is struck by several of our kills is no poison
        "payload_url": str(documents),
        "webhook_secret": SecretStr(_SECRET),
        "webhook_allow": ("127.0.0.0/8",),
        "webhook_ports": (),
        "webhook_timeout": timedelta(seconds=5),
        # The end waits for callbacks that our faults cut several times.
        "webhook_retry_longest": timedelta(seconds=15),
        "flower_port": 0,
    }
    # Not the user's own settings: a seed means the same everywhere.
    return WorkerSettings.model_construct(**given)


def _through(proxies: dict[Server, Proxy], settings: WorkerSettings) -> WorkerSettings:
    redis, postgres = proxies[Server.REDIS].port, proxies[Server.POSTGRES].port
    return settings.with_stores(
        redis_url=f"redis://127.0.0.1:{redis}/0",
        database_url=f"postgresql://postgres@127.0.0.1:{postgres}/pecia?sslmode=disable&gssencmode=disable",
        payload_url=settings.payload_url,
    )


def _socket(servers: LocalFleet, server: Server) -> Path:
    """Return the unix socket of an embedded server."""
    if server is Server.REDIS:
        return Path(urlsplit(servers.settings.redis_url.get_secret_value()).path)
    query = parse_qs(urlsplit(servers.settings.database_url.get_secret_value()).query)
    return Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}"
