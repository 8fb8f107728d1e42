"""A connection to Postgres that nobody closes and nothing comes through is given up in time, and holds nobody up."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import DatabaseUnavailableError
from pecia.database import STATEMENT_TIMEOUT, Database, Pool, connect_options
from pecia.store import Connection
from pecia_schemas.states import Stage
from pecia_workers.ledger.database import fetch
from pecia_workers.ledger.recovery import Judge
from pecia_workers.ledger.workers import Heartbeat, WorkerIdentity, is_registered
from tests.shared.house import House, hear_nothing
from tests.shared.limits import WAIT_S, eventually
from tests.soak.surroundings import Proxy

pytestmark = pytest.mark.gate

PATIENCE = timedelta(seconds=2)


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A proxy before the test's Postgres."""
    query = parse_qs(urlsplit(database_url).query)
    with Proxy(Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}") as proxy:
        yield proxy


@pytest.fixture
def proxied(house: House, proxy: Proxy) -> House:
    """The test's database, through the proxy."""
    name = urlsplit(house.database_url).path
    options = "sslmode=disable&gssencmode=disable"
    return replace(house, database_url=f"postgresql://postgres@127.0.0.1:{proxy.port}{name}?{options}")


async def select(database: AsyncEngine, what: str = "1") -> None:
    async with database.connect() as connection:
        await connection.execute(text(f"SELECT {what}"))


def test_a_worker_gives_up_a_statement_without_an_answer(proxied: House, proxy: Proxy) -> None:
    async def ask(database: AsyncEngine) -> None:
        async with asyncio.timeout(WAIT_S), database.connect() as connection:
            await connection.execute(text("SELECT 1"))
            proxy.silence()
            with pytest.raises(OperationalError):
                await connection.execute(text("SELECT 1"))
        await select(database)

    proxied.ask(ask, timeout=PATIENCE)


def test_one_silent_connection_is_enough_to_replace_them_all(proxied: House, proxy: Proxy) -> None:
    async def ask(database: AsyncEngine) -> int:
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
            await select(database)
        return refused

    assert proxied.ask(ask, timeout=PATIENCE, connections=4) == 1


def test_a_connection_out_of_the_pool_shows_soon_that_it_lives(
    proxied: House, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pecia_schemas.connecting._ALIVE_S", 1.0)

    async def ask(database: AsyncEngine) -> None:
        await select(database)
        proxy.silence()
        async with asyncio.timeout(WAIT_S):
            await select(database, "pg_sleep(1.5)")

    proxied.ask(ask, timeout=timedelta(hours=1))


def test_a_connection_that_comes_back_to_a_disposed_engine_is_closed(house: House) -> None:
    async def ask(database: AsyncEngine) -> list[object]:
        async with database.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            await database.dispose()
        return [driver.closed if driver else None]

    assert house.ask(ask) == [True]


def test_rows_locked_by_a_silent_worker_become_free(house: House, proxied: House, proxy: Proxy) -> None:
    async def lock_and_wait(database: AsyncEngine) -> None:
        connection = await database.connect().start()
        await connection.execute(text("LOCK TABLE jobs"))
        proxy.silence()
        await asyncio.to_thread(read, house.database_url)
        await connection.invalidate()
        await connection.close()

    proxied.ask(lock_and_wait, timeout=PATIENCE)


def read(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{WAIT_S:g}s"])
        connection.execute("SELECT count(*) FROM jobs")


def test_a_statement_of_a_silent_worker_ends(house: House, proxied: House) -> None:
    async def sleep(database: AsyncEngine) -> None:
        with pytest.raises(OperationalError):
            await select(database, "pg_sleep(60)")

    proxied.ask(sleep, timeout=PATIENCE)
    running = """SELECT query FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(60)%'
                 AND pid <> pg_backend_pid()"""
    eventually(lambda: not house.query(running), what="the end of the statement")


def test_a_producer_gets_an_error_instead_of_waiting_for_ever(proxied: House, proxy: Proxy) -> None:
    database = Database(lambda: proxied.database_url, connect_timeout=timedelta(seconds=5))
    database._pool = Pool(lambda: connect_options(proxied.database_url, 5), PATIENCE)
    with pytest.raises(DatabaseUnavailableError):
        database.transaction(lambda connection: ask_in_vain(connection, proxy), repeatable=False)
    database.transaction(ask)
    database.dispose()


def test_the_server_bounds_a_transaction_on_a_connection_out_of_the_pool(database_url: str) -> None:
    database = Database(lambda: database_url, connect_timeout=timedelta(seconds=5))
    assert [database.transaction(limit) for _ in range(2)] == [STATEMENT_TIMEOUT, STATEMENT_TIMEOUT]
    database.dispose()


def test_a_supervisor_that_asks_for_its_workers_is_not_held_up(
    house: House, proxied: House, proxy: Proxy
) -> None:
    """Its connection is a new one each time, and falls silent while SQLAlchemy gets to know the server."""
    proxy.delay(0.5)
    others = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in %'
                AND pid <> pg_backend_pid()"""
    with ThreadPoolExecutor(1) as supervisor:
        asked = supervisor.submit(is_registered, proxied.database_url, os.getpid())
        eventually(lambda: house.query(others))
        proxy.silence()
        assert asked.result(timeout=WAIT_S) is False


def test_a_worker_with_a_silent_connection_is_not_dead(house: House, proxied: House, proxy: Proxy) -> None:
    """By a judge whose own connection works, until it has been heard of again twice."""
    lease = timedelta(seconds=6)

    async def watch(database: AsyncEngine) -> None:
        judge = Judge(database, house.settings(lease=lease), hear_nothing)
        identity = WorkerIdentity.new("engine", [Stage.READ])
        async with Heartbeat(proxied.database_url, identity, lease=lease), asyncio.timeout(WAIT_S):
            proxy.silence()
            beats = set[object]()
            while len(beats) < 3:
                await judge.judge()
                (worker,) = await fetch(database, text("SELECT seen_at, lost_at FROM workers"))
                beats.add(worker.seen_at)
                assert worker.lost_at is None
                await asyncio.sleep(0.2)

    house.ask(watch)


def ask(connection: Connection) -> None:
    connection.execute("SELECT 1", {})


def limit(connection: Connection) -> timedelta | None:
    allowed: timedelta | None = connection.execute(
        "SELECT CAST(current_setting('statement_timeout') AS interval)", {}
    ).scalar()
    return allowed


def ask_in_vain(connection: Connection, proxy: Proxy) -> None:
    proxy.silence()
    ask(connection)
