"""The connections of a blocking client: by psycopg alone, because SQLAlchemy takes half a second to load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from pecia.errors import DatabaseUnavailableError
from pecia.statements import Rows, for_driver
from pecia_schemas.connecting import BACKEND, PREPARED_AFTER, PatientConnection, begin_within, ends_connection

if TYPE_CHECKING:
    from sqlalchemy import TextClause

_MOST: Final = 15
"""Connections at a time: further transactions wait for one."""
_KEPT: Final = 5
"""Connections that are kept while nothing needs them."""


class Pooled:
    """What a transaction is made on."""

    def __init__(self, driver: PatientConnection) -> None:
        self._driver = driver

    def execute(self, statement: str | TextClause, parameters: Mapping[str, Any]) -> Rows:
        """Run SQL in which `:name` stands for a parameter."""
        written = statement if isinstance(statement, str) else statement.text
        return self.execute_as_is(for_driver(written), parameters)

    def execute_as_is(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Run SQL in which `%(name)s` stands for a parameter."""
        cursor = self._driver.execute(cast("Any", statement), parameters)
        return Rows(cursor.fetchall() if cursor.description else [])


class Pool:
    """Connections to Postgres that are opened when they are first needed, for any number of threads.

    Each is closed on which a statement got no answer in time, and with it all that are idle, which may be as dead; so
    it is after an error that another server may not have, such as that of a primary which was demoted.
    """

    def __init__(self, parameters: Mapping[str, Any], patience: timedelta) -> None:
        self._parameters = parameters
        self._patience = patience
        self._begin = begin_within(patience)
        self._idle: list[PatientConnection] = []
        self._free = BoundedSemaphore(_MOST)
        self._over = False

    @contextmanager
    def transaction(self) -> Iterator[Pooled]:
        """Lend a connection on which a transaction has begun; commit it, or roll it back after an error."""
        if not self._free.acquire(timeout=self._patience.total_seconds()):
            raise DatabaseUnavailableError(
                f"All {_MOST} connections of this client are at work: share it between fewer threads."
            )
        try:
            with self._begun() as connection:
                yield Pooled(connection)
        finally:
            self._free.release()

    def dispose(self, *, close: bool) -> None:
        """Let go of all connections, those that are at work once they come back; `close` those that are idle."""
        self._over = True
        idle, self._idle = self._idle, []
        for connection in idle if close else ():
            connection.close()

    @contextmanager
    def _begun(self) -> Iterator[PatientConnection]:
        connection = self._living() or self._opened()
        try:
            connection.be_patient(self._patience)
            yield connection
            connection.commit()
        except BaseException as error:
            if isinstance(error, Exception) and not ends_connection(error):
                with suppress(psycopg.Error):
                    connection.rollback()
            else:
                connection.close()
            raise
        finally:
            self._take_back(connection)

    def _living(self) -> PatientConnection | None:
        """Return an idle connection on which a transaction begins, if there is one: this is how it is pinged."""
        with suppress(IndexError):
            connection = self._idle.pop()
            try:
                connection.execute(cast("Any", self._begin))
            except psycopg.Error:
                connection.close()
                self._drop_idle()
            else:
                return connection
        return None

    def _opened(self) -> PatientConnection:
        connection = PatientConnection.connect(
            **self._parameters, autocommit=True, row_factory=namedtuple_row
        )
        try:
            if connection.execute(BACKEND).fetchone() == (connection.info.backend_pid,):
                connection.prepare_threshold = PREPARED_AFTER
            connection.execute(cast("Any", self._begin))
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_back(self, connection: PatientConnection) -> None:
        if connection.closed:
            self._drop_idle()
        elif self._over or len(self._idle) >= _KEPT or not _is_idle(connection):
            connection.close()
        else:
            connection.be_pinged(self._patience)
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _is_idle(connection: PatientConnection) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE
