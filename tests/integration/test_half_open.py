"""A connection to Postgres that nobody closes and nothing comes through is given up in time, and holds nobody up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError
from tests.soak.proxy import Proxy

from limits import WAIT_S
from pecia import DatabaseUnavailableError
from pecia.database import STATEMENT_TIMEOUT, Database
from pecia_schemas.database import close_after
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.workers import is_registered

pytestmark = pytest.mark.gate

PATIENCE = timedelta(seconds=1)


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A proxy before the test's Postgres."""
    query = parse_qs(urlsplit(database_url).query)
    with Proxy(Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}") as proxy:
        yield proxy


@pytest.fixture
def proxied_url(database_url: str, proxy: Proxy) -> str:
    """The test's database, through the proxy."""
    name = urlsplit(database_url).path
    return f"postgresql://postgres@127.0.0.1:{proxy.port}{name}?sslmode=disable&gssencmode=disable"


def test_a_worker_gives_up_a_statement_without_an_answer(proxied_url: str, proxy: Proxy) -> None:
    async def ask() -> None:
        database = open_database(proxied_url, patience=PATIENCE)
        async with asyncio.timeout(WAIT_S), database.connect() as connection:
            await connection.execute(text("SELECT 1"))
            proxy.silence()
            with pytest.raises(OperationalError):
                await connection.execute(text("SELECT 1"))
        async with database.connect() as connection:
            await connection.execute(text("SELECT 1"))
        await database.dispose()

    asyncio.run(ask())


def test_one_silent_connection_is_enough_to_replace_them_all(proxied_url: str, proxy: Proxy) -> None:
    async def ask() -> int:
        database = open_database(proxied_url, patience=PATIENCE, connections=4)
        connections = [database.connect() for _ in range(4)]
        await asyncio.gather(*(connection.start() for connection in connections))
        await asyncio.gather(*(connection.close() for connection in connections))
        silent = proxy.silence()
        refused = 0

        @event.listens_for(database.sync_engine, "invalidate")
        def count(*_: object) -> None:
            nonlocal refused
            refused += 1

        for _ in range(silent):
            async with database.connect() as connection:
                await connection.execute(text("SELECT 1"))
        await database.dispose()
        return refused

    assert asyncio.run(ask()) == 1


def test_a_connection_out_of_the_pool_shows_soon_that_it_lives(
    proxied_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pecia_schemas.database._ALIVE_S", 1.0)

    async def ask() -> None:
        database = open_database(proxied_url, patience=timedelta(hours=1))
        async with database.connect() as connection:
            await connection.execute(text("SELECT 1"))
        proxy.silence()
        async with asyncio.timeout(WAIT_S), database.connect() as connection:
            await connection.execute(text("SELECT pg_sleep(1.5)"))
        await database.dispose()

    asyncio.run(ask())


def test_a_connection_that_comes_back_to_a_disposed_engine_is_closed(database_url: str) -> None:
    async def ask() -> list[object]:
        database = open_database(database_url)
        async with database.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            await database.dispose()
        return [driver.closed if driver else None]

    assert asyncio.run(ask()) == [True]


def test_rows_that_a_silent_worker_has_locked_are_free_again(
    database_url: str, proxied_url: str, proxy: Proxy
) -> None:
    async def lock_and_wait() -> None:
        database = open_database(proxied_url, patience=PATIENCE)
        connection = await database.connect().start()
        await connection.execute(text("LOCK TABLE jobs"))
        proxy.silence()
        await asyncio.to_thread(read, database_url)
        await connection.invalidate()
        await connection.close()

    asyncio.run(lock_and_wait())


def read(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SELECT count(*) FROM jobs")


def test_a_statement_of_a_worker_that_fell_silent_ends(database_url: str, proxied_url: str) -> None:
    async def sleep() -> None:
        database = open_database(proxied_url, patience=PATIENCE)
        async with database.connect() as connection:
            with pytest.raises(OperationalError):
                await connection.execute(text("SELECT pg_sleep(60)"))
        await database.dispose()

    asyncio.run(sleep())
    with psycopg.connect(database_url) as connection:
        running = connection.execute(
            "SELECT query FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(60)%'"
            " AND pid <> pg_backend_pid()"
        )
        assert running.fetchall() == []


def test_a_producer_gets_an_error_instead_of_waiting_for_ever(proxied_url: str, proxy: Proxy) -> None:
    database = Database(proxied_url, connect_timeout=timedelta(seconds=5))
    close_after(database._engine, PATIENCE)
    with pytest.raises(DatabaseUnavailableError):
        database.transaction(lambda connection: ask_in_vain(connection, proxy), repeatable=False)
    database.transaction(ask)
    database.dispose()


def test_the_server_bounds_a_transaction_on_a_connection_out_of_the_pool(database_url: str) -> None:
    database = Database(database_url, connect_timeout=timedelta(seconds=5))
    assert [database.transaction(limit) for _ in range(2)] == [STATEMENT_TIMEOUT, STATEMENT_TIMEOUT]
    database.dispose()


def test_a_supervisor_that_asks_for_its_workers_is_not_held_up(
    database_url: str, proxied_url: str, proxy: Proxy, eventually: Callable[..., None]
) -> None:
    """Its connection is a new one each time, and falls silent while SQLAlchemy gets to know the server."""
    proxy.delay(0.2)
    with ThreadPoolExecutor(1) as supervisor:
        asked = supervisor.submit(is_registered, proxied_url, os.getpid())
        eventually(lambda: is_asked(database_url))
        proxy.silence()
        assert asked.result(timeout=WAIT_S) is False


def is_asked(database_url: str) -> bool:
    with psycopg.connect(database_url) as connection:
        others = connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in %'"
            " AND pid <> pg_backend_pid()"
        )
        return others.fetchone() is not None


def ask(connection: Connection) -> None:
    connection.execute(text("SELECT 1"))


def limit(connection: Connection) -> timedelta | None:
    return connection.execute(text("SELECT CAST(current_setting('statement_timeout') AS interval)")).scalar()


def ask_in_vain(connection: Connection, proxy: Proxy) -> None:
    proxy.silence()
    ask(connection)
