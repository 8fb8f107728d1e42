"""Transactions of a client: bounded in time, repeated where that is safe, with errors that name the next step."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from pecia import errors
from pecia.store import Connection, Rows
from pecia_schemas import connecting
from pecia_schemas.connecting import BoundedConnection

T = TypeVar("T")

_MOST: Final = 15
"""Maximum number of connections; further transactions wait."""
_KEPT: Final = 5
"""Maximum number of idle connections."""
_FRESH_S: Final = 1.0
"""Time after an answer in which a connection is used without a check."""


class Pooled(Connection):
    """The connection of a transaction."""

    def __init__(self, driver: BoundedConnection) -> None:
        self._driver = driver

    def execute_as_is(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Run SQL with parameters in the form `%(name)s`."""
        cursor = self._driver.execute(cast("Any", statement), parameters)
        return Rows(cursor.fetchall() if cursor.description else [])


class Pool:
    """Connections to Postgres that are opened when needed, for any number of threads.

    After a statement that was not answered in time, its connection is closed, and all idle ones, which may be dead too.
    The same happens after an error that is specific to the server, such as a primary that was demoted.
    """

    def __init__(self, locate: Callable[[], Mapping[str, Any]], timeout: timedelta) -> None:
        """`locate` returns libpq's parameters; it is called for each new connection."""
        self._locate = locate
        self._timeout = timeout
        self._begin, self._bounds = connecting.begin_within(timeout), connecting.bounds_of(timeout, "SESSION")
        self._idle: list[BoundedConnection] = []
        self._free = BoundedSemaphore(_MOST)
        self._over = False

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Pooled]:
        """Lend a connection with an open transaction; commit at the end, or roll back after an error.

        With `alone` the block is one statement, which may be its own transaction: one round trip instead of three.
        """
        if not self._free.acquire(timeout=self._timeout.total_seconds()):
            raise errors.DatabaseUnavailableError(
                f"All {_MOST} connections of this client are in use: share it between fewer threads."
            )
        try:
            with self._begun(alone=alone) as connection:
                yield Pooled(connection)
        finally:
            self._free.release()

    def dispose(self, *, close: bool) -> None:
        """Release all connections, those in use when they return. With `close`, close the idle ones."""
        self._over = True
        if close:
            self._drop_idle()
        self._idle = []

    @contextmanager
    def _begun(self, *, alone: bool) -> Iterator[BoundedConnection]:
        connection = self._living(alone=alone) or self._opened()
        try:
            connection.bound_statements(self._timeout)
            yield connection
            connection.commit()
        except BaseException as error:
            if isinstance(error, Exception) and not connecting.ends_connection(error):
                with suppress(psycopg.Error):
                    connection.rollback()
            else:
                connection.close()
            raise
        finally:
            if connection.closed:
                self._drop_idle()
            elif (
                self._over
                or len(self._idle) >= _KEPT
                or connection.info.transaction_status != TransactionStatus.IDLE
            ):
                connection.close()
            else:
                connection.bound_ping(self._timeout)
                connection.fresh_until = time.monotonic() + _FRESH_S
                self._idle.append(connection)

    def _living(self, *, alone: bool) -> BoundedConnection | None:
        """Begin a transaction on an idle connection and return it, or None. Beginning also checks the connection."""
        with suppress(IndexError):
            connection = self._idle.pop()
            if alone and connection.prepare_threshold and time.monotonic() < connection.fresh_until:
                return connection
            try:
                self._begin_on(connection)
            except psycopg.Error:
                connection.close()
                self._drop_idle()
            else:
                return connection
        return None

    def _opened(self) -> BoundedConnection:
        connection = BoundedConnection.connect(**self._locate(), autocommit=True, row_factory=namedtuple_row)
        try:
            if connection.execute(connecting.BACKEND).fetchone() == (connection.info.backend_pid,):
                connection.prepare_threshold = connecting.PREPARED_AFTER
                connection.execute(cast("Any", self._bounds))
            self._begin_on(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_on(self, connection: BoundedConnection) -> None:
        """Begin a transaction. A direct connection to the server has its limits set already."""
        begin = "BEGIN" if connection.prepare_threshold else self._begin
        connection.execute(cast("Any", begin), prepare=False)

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


STATEMENT_TIMEOUT = timedelta(seconds=30)
_PAUSES: Final = (0.05, 0.3)  # seconds before the second and the third try


class Database:
    """A pool of connections to Postgres. A forked child must not use it."""

    def __init__(self, locate: Callable[[], str], *, connect_timeout: timedelta) -> None:
        """`locate` returns the URL, once for each new connection. Raises `InvalidSettingError` for an invalid URL."""
        self._timeout = connect_timeout.total_seconds()
        connect_options(locate(), self._timeout)
        self._pool = Pool(lambda: connect_options(locate(), self._timeout), STATEMENT_TIMEOUT)
        self._locate = locate

    def transaction(
        self, work: Callable[[Connection], T], *, repeatable: bool = True, alone: bool = False
    ) -> T:
        """Run `work` in one transaction, `alone` if it is one statement, and return its result.

        After a lost connection it is unknown whether the transaction was committed: only `repeatable` work runs again.
        """
        tries = Tries(self._timeout, repeatable=repeatable)
        while True:
            with translated(self._locate):
                try:
                    with self._pool.transaction(alone=alone) as connection:
                        return work(connection)
                except Exception as error:
                    if (pause := tries.pause(error)) is None:
                        raise
            time.sleep(pause)

    def alone(self, work: Callable[[Connection], T | None]) -> T | None:
        """Run one statement as its own transaction, and return its result."""
        return self.transaction(work, alone=True)

    def dispose(self, *, close: bool = True) -> None:
        """Release all connections. A forked child passes `close=False`, because they belong to its parent."""
        self._pool.dispose(close=close)


class Tries:
    """Decides how often one transaction is tried."""

    def __init__(self, timeout: float, *, repeatable: bool) -> None:
        self._until = time.monotonic() + timeout
        self._repeatable = repeatable
        self._pauses = iter(_PAUSES)

    def pause(self, error: Exception) -> float | None:
        """Return the seconds before the next try, or None if there is no further try."""
        may_repeat = connecting.is_transient(error) and (
            self._repeatable or not connecting.may_be_committed(error)
        )
        if time.monotonic() > self._until or not may_repeat:
            return None
        return next(self._pauses, None)


@contextmanager
def translated(locate: Callable[[], str]) -> Iterator[None]:
    """Convert errors of the driver and the pool to errors of this client that name the next step."""
    try:
        yield
    except Exception as error:
        if (verdict := connecting.verdict_on(error)) is None:
            raise
        said = connecting.explain(error, locate())
        if verdict is connecting.Verdict.TRANSIENT:
            raise errors.DatabaseUnavailableError(said) from error
        # The driver's error quotes values.
        if verdict is connecting.Verdict.FAULT:
            raise errors.ConfigurationError(said) from None
        raise errors.DatabaseRefusedError(said, connecting.name_of(error)) from None


def connect_options(database_url: str, timeout: float) -> dict[str, Any]:
    """Return libpq's parameters for a client's connection. Raises `InvalidSettingError` for an invalid URL."""
    try:
        named = connecting.parameters_of(database_url)
        make_conninfo(**named)
    except (ValueError, psycopg.Error):
        raise errors.InvalidSettingError(
            "PECIA_DATABASE_URL is not a Postgres URL: write postgresql://user:password@host/database."
        ) from None
    return {**connecting.CONNECT_ARGS, "connect_timeout": max(2, math.ceil(timeout)), **named}
