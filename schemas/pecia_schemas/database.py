"""How to reach Postgres: one place that turns a setting into what SQLAlchemy wants, and bounds every wait."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import event, make_url
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext

from pecia_schemas.sqlstates import ends_connection

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")

_INTERVAL_S = 0.1
"""How often psycopg looks up from waiting."""
_BEYOND_S = 0.5
"""What the server has beyond its own limit to say that it was reached."""
_ALIVE_S = 4.0
"""What a connection that comes out of the pool has to answer the pool's ping; its work may have longer."""
_PREPARED_AFTER = 5
"""How often a statement runs on one connection before it is prepared there: half of what Postgres does is planning."""


def sqlalchemy_url(database_url: str) -> URL:
    """Return the URL with our driver, psycopg 3, which serves the synchronous and the asynchronous engine alike."""
    url = make_url(database_url)
    return url.set(drivername="postgresql+psycopg")


CONNECT_ARGS = {
    "connect_timeout": 5,
    # A half-open connection is noticed within 15 s.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    # Behind a pooler each transaction may run on another server connection, which does not know them.
    "prepare_threshold": None,
}
"""Passed to psycopg and libpq on every connection."""


def close_after(engine: Engine, patience: timedelta) -> None:
    """Close each of the engine's connections on which a statement got no answer in time, or a transaction no statement.

    The pool then replaces what is as old; so it does after an error that another server may not have, such as that of
    a primary which was demoted. A connection that comes back after the engine was disposed of is closed: its pool is
    no longer in use. Keepalives notice a peer that is gone; this notices a proxy or firewall between that has
    forgotten the connection, and on the server's side frees the locks of a client that fell silent.

    The server's limits come with the BEGIN of each transaction: that costs no round trip, and leaves nothing on a
    server connection that a pooler gives to others next. That BEGIN is also what a pool that pings sends to see whether
    a connection lives, for one that comes out of the pool is about to begin a transaction.
    """
    limit_ms = int(patience.total_seconds() * 1000)
    begin_bounded = (
        f"BEGIN; SET LOCAL statement_timeout = {limit_ms};"
        f" SET LOCAL idle_in_transaction_session_timeout = {limit_ms}"
    )

    def begin(connection: Connection) -> None:
        if _driver(connection.connection).info.transaction_status == TransactionStatus.INTRANS:
            return  # by the pool's ping
        # Whatever the transaction streams: its BEGIN is read by no cursor of the server's.
        connection.exec_driver_sql(
            begin_bounded, execution_options={"stream_results": False, "yield_per": None}
        )

    def be_patient(connection: Any, *_: object) -> None:
        _driver(connection).patience_s = limit_ms / 1000 + _BEYOND_S

    def remember_pool(_connection: object, record: Any) -> None:
        record.info["pool"] = engine.pool

    def come_back(connection: Any, record: Any) -> None:
        if connection is None:  # it was closed instead
            return
        if record.info["pool"] is not engine.pool:
            record.invalidate()
        else:
            _driver(connection).patience_s = min(_ALIVE_S, limit_ms / 1000 + _BEYOND_S)

    def leave(context: ExceptionContext) -> None:
        if ends_connection(context.original_exception):
            context.is_disconnect = True

    dialect: Any = engine.dialect
    dialect.do_ping = partial(_ping, begin_bounded)
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "handle_error", leave)
    event.listen(engine, "connect", remember_pool)
    event.listen(engine, "connect", _prepare_if_direct)
    event.listen(engine, "begin", begin)
    event.listen(engine, "checkout", be_patient)
    event.listen(engine, "checkin", come_back)


def _connect(dialect: Any, _record: object, arguments: list[Any], parameters: dict[str, Any]) -> Any:
    parameters["autocommit"] = True  # psycopg sends no BEGIN of its own
    if dialect.is_async:
        parameters["async_creator_fn"] = _PatientAsyncConnection.connect
        return None
    return _PatientConnection.connect(*arguments, **parameters)


def _ping(begin: str, connection: Any) -> bool:
    cursor = connection.cursor()
    cursor.execute(begin)
    cursor.close()
    return True


def _prepare_if_direct(connection: Any, *_: object) -> None:
    driver, cursor = _driver(connection), connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    if cursor.fetchone() == (driver.info.backend_pid,):  # a pooler tells a number of its own
        driver.prepare_threshold = _PREPARED_AFTER
    cursor.close()


def _driver(connection: Any) -> Any:
    """Return psycopg's connection, without what SQLAlchemy puts around an asynchronous one."""
    return getattr(connection, "driver_connection", connection)


class _PatientConnection(psycopg.Connection[Any]):
    """Waits for an answer no longer than `patience_s`."""

    patience_s = _ALIVE_S

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or self.patience_s)
        except psycopg.OperationalError:
            _close_unanswered(self)
            raise


class _PatientAsyncConnection(psycopg.AsyncConnection[Any]):
    """Its twin for a loop."""

    patience_s = _ALIVE_S

    async def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:  # noqa: ASYNC109
        try:
            return await super().wait(gen, interval, timeout or self.patience_s)
        except psycopg.OperationalError:
            _close_unanswered(self)
            raise


def _close_unanswered(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Close a connection on which a statement is still under way after an error: it was given up."""
    if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
        connection.pgconn.finish()
