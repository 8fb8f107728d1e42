"""Postgres and Redis of a benchmark's own, or a whole fleet, gone when it ends."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pecia_migrations
from pecia import Client
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet
from pecia_workers.local.servers import EmbeddedPostgres, start_postgres, start_redis

READY_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where they are. Both keep what they are told as in production: synced commits, a log of commands."""

    database_url: str
    template: str
    """A database with the tables of this version, without connections: others are copied from it."""
    redis_url: str
    payload_url: str
    directory: Path
    """For whatever else a benchmark writes."""
    postgres: EmbeddedPostgres

    def url_of(self, database: str) -> str:
        """Return where a database is."""
        return self.postgres.url_of(database)


@contextmanager
def servers(*, redis_memory: str = "512mb") -> Iterator[Servers]:
    """Start both, with the tables of this version in Postgres.

    With BENCH_CARELESS in the environment neither syncs its disk: to see that a benchmark runs, not for figures.
    """
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        home = Path(scratch)
        home.chmod(0o711)  # Postgres has an account of its own
        durable = "BENCH_CARELESS" not in os.environ
        postgres = start_postgres(home / "postgres", durable=durable)
        redis = start_redis(home / "redis", maxmemory=redis_memory, durable=durable)
        try:
            pecia_migrations.upgrade(postgres.url)  # ends with every connection closed
            pecia_migrations.upgrade(postgres.url_of("postgres"))
            yield Servers(
                database_url=postgres.url_of("postgres"),
                template="pecia",
                redis_url=redis.url,
                payload_url=str(home / "payloads"),
                directory=home,
                postgres=postgres,
            )
        finally:
            redis.stop()
            postgres.stop()


@contextmanager
def fleet(settings: WorkerSettings, *, gateway: bool = False) -> Iterator[tuple[LocalFleet, Client, Path]]:
    """Start a fleet; yield it once it is ready, a client of it, and a directory for whatever else is written."""
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        directory = Path(scratch)
        directory.chmod(0o711)  # Postgres has an account of its own
        with LocalFleet(directory / "fleet", settings=settings, announce=False, gateway=gateway) as started:
            started.wait_ready(READY_S)
            of = started.settings
            url, redis_url = of.database_url.get_secret_value(), of.redis_url.get_secret_value()
            with Client(url, redis_url, of.payload_url) as client:
                yield started, client, directory
