"""Transactions of an asynchronous client, by the rules of the other: no statement runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_

from pecia.aio.cancellation import attentive
from pecia.database import STATEMENT_TIMEOUT, Answers, Tries, open_engine
from pecia_schemas.database import close_after

P = ParamSpec("P")
T = TypeVar("T")


class AsyncDatabase:
    """A pool of connections to Postgres, for the loop in which it is first used."""

    def __init__(self, database_url: str, *, connect_timeout: timedelta) -> None:
        self._patience = connect_timeout.total_seconds()
        self._engine = open_engine(create_async_engine, database_url, self._patience)
        close_after(self._engine.sync_engine, STATEMENT_TIMEOUT)
        self._answers = Answers(database_url)

    async def transaction(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return what it returns, as `Database.transaction` does.

        A caller's cancellation cancels the statement, and the connection goes back to the pool.
        """
        tries = Tries(self._patience, repeatable=repeatable)
        while True:
            with self._answers.translated():
                try:
                    return await attentive(self._run(work))
                except Exception as error:
                    if (pause := tries.pause(error)) is None:
                        raise
            await asyncio.sleep(pause)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def dispose(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


def within_work(call: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Return the asynchronous function as the work of a transaction can call it."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await_(call(*args, **kwargs))

    return run
