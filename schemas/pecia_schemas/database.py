"""How to reach Postgres by SQLAlchemy: one place that turns a setting into what it wants, and bounds every wait."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from psycopg.pq import TransactionStatus
from sqlalchemy import event, make_url
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext

from pecia_schemas.connecting import (
    BACKEND,
    PREPARED_AFTER,
    PatientAsyncConnection,
    PatientConnection,
    begin_within,
    ends_connection,
)


def sqlalchemy_url(database_url: str) -> URL:
    """Return the URL with our driver, psycopg 3, which serves the synchronous and the asynchronous engine alike."""
    url = make_url(database_url)
    return url.set(drivername="postgresql+psycopg")


def close_after(engine: Engine, patience: timedelta, *, ping: timedelta | None = None) -> None:
    """Close each of the engine's connections on which a statement got no answer in time, or a transaction no statement.

    The pool then replaces what is as old; so it does after an error that another server may not have, such as that of
    a primary which was demoted. A connection that comes back after the engine was disposed of is closed: its pool is
    no longer in use. Keepalives notice a peer that is gone; this notices a proxy or firewall between that has
    forgotten the connection, and on the server's side frees the locks of a client that fell silent.

    The server's limits come with the BEGIN of each transaction. That BEGIN is also what a pool that pings sends to see
    whether a connection lives, for one that comes out of the pool is about to begin a transaction. The pool waits for
    it four seconds, or half a second longer than `ping` (without it `patience`) if that is less.
    """
    begin_bounded = begin_within(patience)

    def begin(connection: Connection) -> None:
        if _driver(connection.connection).info.transaction_status == TransactionStatus.INTRANS:
            return  # by the pool's ping
        # Whatever the transaction streams: its BEGIN is read by no cursor of the server's.
        connection.exec_driver_sql(
            begin_bounded, execution_options={"stream_results": False, "yield_per": None}
        )

    def be_patient(connection: Any, *_: object) -> None:
        _driver(connection).be_patient(patience)

    def remember_pool(_connection: object, record: Any) -> None:
        record.info["pool"] = engine.pool

    def come_back(connection: Any, record: Any) -> None:
        if connection is None:  # it was closed instead
            return
        if record.info["pool"] is not engine.pool:
            record.invalidate()
        else:
            _driver(connection).be_pinged(ping or patience)

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
        parameters["async_creator_fn"] = PatientAsyncConnection.connect
        return None
    return PatientConnection.connect(*arguments, **parameters)


def _ping(begin: str, connection: Any) -> bool:
    cursor = connection.cursor()
    cursor.execute(begin)
    cursor.close()
    return True


def _prepare_if_direct(connection: Any, *_: object) -> None:
    driver, cursor = _driver(connection), connection.cursor()
    cursor.execute(BACKEND)
    if cursor.fetchone() == (driver.info.backend_pid,):
        driver.prepare_threshold = PREPARED_AFTER
    cursor.close()


def _driver(connection: Any) -> Any:
    """Return psycopg's connection, without what SQLAlchemy puts around an asynchronous one."""
    return getattr(connection, "driver_connection", connection)
