"""The test session's own Postgres and Redis, emptied for every test that uses them.

A plugin that levels with servers load, for its imports take a unit test's file longer than all its tests.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from redis import Redis

from pecia_workers.local.servers import EmbeddedPostgres, EmbeddedRedis, start_postgres, start_redis
from tests.shared.ready_cluster import copy_ready_cluster


@pytest.fixture(scope="session")
def ready_cluster(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Makes a server's data directory whose database `pecia` has the current tables, without initdb and migrations."""
    assert request.config.cache is not None
    cache = request.config.cache.mkdir("postgres")
    return lambda target: copy_ready_cluster(cache, target)


@pytest.fixture(scope="session")
def session_postgres(
    session_directory: Path, ready_cluster: Callable[[Path], None]
) -> Iterator[EmbeddedPostgres]:
    ready_cluster(session_directory / "postgres")
    server = start_postgres(session_directory / "postgres", durable=False)
    yield server
    server.stop()


@pytest.fixture
def database_url(session_postgres: EmbeddedPostgres) -> str:
    """The session's database with the current tables, emptied; who changes the tables takes `empty_database_url`.

    To delete every row costs a hundredth of another database. Sequences go on counting.
    """
    with psycopg.connect(session_postgres.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("SET session_replication_role = replica")  # looks at no foreign key
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
        ).fetchall()
        connection.execute(
            sql.SQL("; ").join(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)) for (name,) in tables)
        )
    return session_postgres.url


@pytest.fixture
def empty_database_url(session_postgres: EmbeddedPostgres) -> Iterator[str]:
    """A fresh database without any table."""
    name = f"test_{uuid.uuid4().hex}"
    _administer(session_postgres, "CREATE DATABASE {}", name)
    yield session_postgres.url_of(name)
    _administer(session_postgres, "DROP DATABASE {} WITH (FORCE)", name)


def _administer(server: EmbeddedPostgres, statement: LiteralString, *names: str) -> None:
    with psycopg.connect(server.url_of("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@pytest.fixture(scope="session")
def _session_redis(session_directory: Path) -> Iterator[EmbeddedRedis]:
    server = start_redis(session_directory / "redis", socket_dir=session_directory, durable=False)
    yield server
    server.stop()


@pytest.fixture
def redis_url(_session_redis: EmbeddedRedis) -> str:
    """The session's Redis, without a key, a script, a client or a count of the tests before.

    A test that stops it, or changes its settings, takes a `redis_server` of its own.
    """
    with Redis.from_url(_session_redis.url) as redis:
        redis.client_kill_filter(skipme=True)
        redis.flushall()
        redis.script_flush()
        redis.config_resetstat()
    return _session_redis.url


@pytest.fixture
def redis_server(short_path: Path) -> Iterator[Callable[..., EmbeddedRedis]]:
    """Starts Redis servers; `replaces` is a killed one whose place and data are taken."""
    with ExitStack() as stack:

        def start(*, replaces: EmbeddedRedis | None = None, durable: bool = True) -> EmbeddedRedis:
            former = (replaces.data, replaces.socket.parent) if replaces else None
            data, sockets = _place(short_path, former)
            server = start_redis(data, socket_dir=sockets, durable=durable)
            stack.callback(server.kill)
            return server

        yield start


@pytest.fixture
def postgres_server(short_path: Path) -> Iterator[Callable[..., EmbeddedPostgres]]:
    """Starts Postgres servers; `replaces` is a killed one whose place and data are taken."""
    with ExitStack() as stack:

        def start(*, replaces: EmbeddedPostgres | None = None, durable: bool = False) -> EmbeddedPostgres:
            former = (replaces.data, replaces.sockets) if replaces else None
            data, sockets = _place(short_path, former)
            server = start_postgres(data, socket_dir=sockets, durable=durable)
            stack.callback(server.kill)
            return server

        yield start


def _place(parent: Path, former: tuple[Path, Path] | None) -> tuple[Path, Path]:
    """Return the directories of a server's data and sockets."""
    if former is None:
        former = parent / f"d{uuid.uuid4().hex[:6]}", parent / f"s{uuid.uuid4().hex[:6]}"
        former[1].mkdir(mode=0o700)
    return former


@pytest.fixture
def stores(database_url: str, redis_url: str, payload_url: str) -> dict[str, str]:
    """The environment that points a child process to this test's stores."""
    return {
        "PECIA_DATABASE_URL": database_url,
        "PECIA_REDIS_URL": redis_url,
        "PECIA_PAYLOAD_URL": payload_url,
    }
