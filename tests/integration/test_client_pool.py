"""The connections of a blocking client: kept, replaced and counted; `test_half_open` has silent ones."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from pecia import DatabaseUnavailableError, InvalidSettingError
from pecia.database import _KEPT, _MOST, Pool, Pooled, connect_options
from pecia.store import Connection
from pecia_schemas.connecting import parameters_of, sqlalchemy_url


@pytest.fixture
def pool(database_url: str) -> Iterator[Pool]:
    pool = Pool(lambda: connect_options(database_url, 5), timedelta(seconds=30))
    yield pool
    pool.dispose(close=True)


def backend(connection: Connection) -> int:
    return int(connection.execute("SELECT pg_backend_pid()", {}).scalar())


def at_once(pool: Pool, number: int) -> set[int]:
    """Return the backends of so many transactions at a time."""
    together = Barrier(number)

    def ask(_: int) -> int:
        with pool.transaction() as connection:
            together.wait()
            return backend(connection)

    with ThreadPoolExecutor(number) as threads:
        return set(threads.map(ask, range(number)))


def end(database_url: str, *backends: int) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s) AS pid", [list(backends)])


def test_a_connection_is_used_again_after_an_error_too(pool: Pool) -> None:
    with pool.transaction() as connection:
        first = backend(connection)
    with pytest.raises(psycopg.errors.DivisionByZero), pool.transaction() as connection:
        connection.execute("SELECT 1 / :zero", {"zero": 0})
    with pool.transaction() as connection:
        assert backend(connection) == first


def test_what_fails_is_rolled_back_and_what_does_not_is_committed(pool: Pool) -> None:
    noted = "INSERT INTO discarded_payloads (payload) VALUES (:payload) RETURNING 1 / :divisor"
    with pool.transaction() as connection:
        connection.execute(noted, {"payload": "committed", "divisor": 1})
    with pytest.raises(psycopg.errors.DivisionByZero), pool.transaction() as connection:
        connection.execute(noted, {"payload": "rolled back", "divisor": 0})
    with pool.transaction() as connection:
        assert connection.execute("SELECT payload FROM discarded_payloads", {}).scalars() == ["committed"]


def test_idle_connections_that_the_server_ended_are_replaced_unseen(pool: Pool, database_url: str) -> None:
    ended = at_once(pool, _KEPT)
    assert len(ended) == _KEPT
    end(database_url, *ended)
    with pool.transaction() as connection:
        assert backend(connection) not in ended
    assert [connection.info.backend_pid in ended for connection in pool._idle] == [False]


def test_a_connection_that_is_lost_at_work_takes_the_idle_ones_with_it(pool: Pool) -> None:
    known = at_once(pool, 2)
    ending = "SELECT pg_terminate_backend(pg_backend_pid())"
    with pytest.raises(psycopg.OperationalError), pool.transaction() as connection:
        connection.execute(ending, {})
    assert pool._idle == []
    assert not known & at_once(pool, 2)


def test_more_threads_than_connections_wait_and_few_are_kept(pool: Pool) -> None:
    assert len(at_once(pool, _MOST)) == _MOST
    assert len(pool._idle) == _KEPT


def test_a_statement_alone_is_the_transaction_on_a_connection_that_has_just_answered(pool: Pool) -> None:
    status = []
    for _ in range(2):
        with pool.transaction(alone=True) as connection:
            status.append(connection._driver.info.transaction_status)
            for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
                assert connection.execute(f"SHOW {limit}", {}).scalar() == "30s"
    assert status == [TransactionStatus.INTRANS, TransactionStatus.IDLE]


def test_who_waits_for_a_connection_in_vain_is_told(database_url: str) -> None:
    pool = Pool(lambda: connect_options(database_url, 5), timedelta(seconds=0.1))
    for _ in range(_MOST):
        pool._free.acquire()
    with pytest.raises(DatabaseUnavailableError, match="15 connections"):
        pool.transaction().__enter__()


def test_a_connection_that_comes_back_to_a_disposed_pool_is_closed(pool: Pool) -> None:
    with pool.transaction() as connection:
        pool.dispose(close=True)
    assert isinstance(connection, Pooled)
    assert connection._driver.closed


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://host/db", {"host": "host", "dbname": "db"}),
        (
            "postgresql+psycopg://me:p%40ss/w?rd@[::1]:5433/db",
            {"user": "me", "password": "p@ss/w?rd", "host": "::1", "port": "5433", "dbname": "db"},
        ),
        (
            "postgresql://me@/db?host=/run/pg&port=5432",
            {"user": "me", "dbname": "db", "host": "/run/pg", "port": "5432"},
        ),
        ("postgresql:///db?host=a:1&host=b:2", {"dbname": "db", "host": "a,b", "port": "1,2"}),
        ("postgresql:///db?host=a,b&port=1,2", {"dbname": "db", "host": "a,b", "port": "1,2"}),
    ],
)
def test_a_url_is_read_as_sqlalchemy_reads_it(url: str, named: dict[str, str]) -> None:
    asked = sqlalchemy_url(url)
    _, known = asked.get_dialect()().create_connect_args(asked)
    assert parameters_of(url) == named
    assert {name: str(value) for name, value in known.items() if name != "context"} == named


@pytest.mark.parametrize("url", ["", "host/db", "postgresql://host/db?nonsense=1"])
def test_what_is_no_url_of_a_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettingError, match="PECIA_DATABASE_URL is not a Postgres URL"):
        connect_options(url, 5)
