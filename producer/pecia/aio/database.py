"""Transactions of an asynchronous client, by the rules of the other: no statement runs in a thread."""

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
    """What a transaction is made on: SQLAlchemy waits for the driver on the loop."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def execute_as_is(self, statement: str, parameters: Mapping[str, object]) -> Rows:
        """Run SQL in which `%(name)s` stands for a parameter."""
        found = self._connection.exec_driver_sql(statement, dict(parameters))
        return Rows(found.all() if found.returns_rows else [])


class AsyncDatabase:
    """A pool of connections to Postgres, for the loop in which it is first used."""

    def __init__(self, locate: Callable[[], str], *, connect_timeout: timedelta) -> None:
        """`locate` returns the URL, for each connection anew. Raises `InvalidSettingError` if it is none."""
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
        """Run `work` in one transaction and return what it returns, as `Database.transaction` does.

        A caller's cancellation cancels the statement, and the connection goes back to the pool.
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

    async def alone(self, work: Callable[[Connection], T | None]) -> T | None:  # noqa: ARG002  that of `Database`
        """Return None: SQLAlchemy begins every transaction, so that one statement alone would save nothing."""
        return None

    def _name_server(
        self, _dialect: object, _record: object, _arguments: object, parameters: dict[str, object]
    ) -> None:
        """Put into SQLAlchemy's parameters, of which it has one mapping, those of the connection that is opened."""
        for name in self._named:
            parameters.pop(name, None)
        self._named = connect_options(self._locate(), self._timeout)
        parameters.update(self._named)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(lambda bridged: work(_Bridged(bridged)))

    async def dispose(self, *, close: bool = True) -> None:
        """Let go of all connections; in a forked child with `close=False`, for they are the parent's."""
        await self._engine.dispose(close=close)
