"""Transactions of an asynchronous client, by the rules of `pecia.database`. No statement runs in a thread."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from pecia.aio.waiting import attentive
from pecia.database import STATEMENT_TIMEOUT, Tries, connect_options, translated
from pecia.store import Connection, Rows
from pecia_schemas.connecting import close_after

T = TypeVar("T")


class _Bridged(Connection):
    """Connection of a transaction; SQLAlchemy awaits the driver on the loop."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def execute_as_is(self, statement: str, parameters: Mapping[str, object]) -> Rows:
        """Run SQL with parameters in the form `%(name)s`."""
        found = self._connection.exec_driver_sql(statement, dict(parameters))
        return Rows(found.all() if found.returns_rows else [])


class AsyncDatabase:
    """A pool of connections to Postgres, for the loop of its first use."""

    def __init__(self, locate: Callable[[], str], *, connect_timeout: timedelta) -> None:
        """`locate` returns the URL, once for each new connection. Raises `InvalidSettingError` for an invalid URL."""
        self._timeout = connect_timeout.total_seconds()
        connect_options(locate(), self._timeout)
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            pool_pre_ping=True,
            pool_timeout=STATEMENT_TIMEOUT.total_seconds(),
            hide_parameters=True,
        )
        event.listen(self._engine.sync_engine, "do_connect", self._name_server)
        close_after(self._engine.sync_engine, STATEMENT_TIMEOUT)
        self._locate = locate
        self._named: dict[str, object] = {}

    async def transaction(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return its result, as `Database.transaction` does.

        Cancelling the caller cancels the statement, and the connection returns to the pool.
        """
        tries = Tries(self._timeout, repeatable=repeatable)
        while True:
            with translated(self._locate):
                try:
                    return await attentive(self._run(work))
                except Exception as error:
                    if (pause := tries.pause(error)) is None:
                        raise
            await asyncio.sleep(pause)

    async def alone(self, work: Callable[[Connection], T | None]) -> T | None:  # noqa: ARG002  the signature of `Database`
        """Return None: SQLAlchemy begins every transaction explicitly, so a single statement would save nothing."""
        return None

    def _name_server(
        self, _dialect: object, _record: object, _arguments: object, parameters: dict[str, object]
    ) -> None:
        """Replace the parameters of the former connection, in SQLAlchemy's shared mapping, by those of the new one."""
        for name in self._named:
            parameters.pop(name, None)
        self._named = connect_options(self._locate(), self._timeout)
        parameters.update(self._named)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(lambda bridged: work(_Bridged(bridged)))

    async def dispose(self, *, close: bool = True) -> None:
        """Release all connections. A forked child passes `close=False`, because they belong to its parent."""
        await self._engine.dispose(close=close)
