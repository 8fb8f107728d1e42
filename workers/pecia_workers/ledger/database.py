"""The fleet's connection to Postgres, and retries while Postgres is unavailable."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import structlog
from sqlalchemy import Engine, NullPool, Row, TextClause, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from pecia_schemas import connecting
from pecia_workers.observability.metrics import LIVENESS
from pecia_workers.protocol.parts import Backoff, waiting

log = structlog.get_logger(__name__)

R = TypeVar("R")

_BACKOFF = Backoff(first_s=0.1, longest_s=2.0)


STATEMENT_TIMEOUT = timedelta(seconds=8)
"""How long a worker waits for an answer on a connection that hangs; short enough that it works again within 15 s."""

_QUESTION_TIMEOUT = timedelta(seconds=4)

LONG_STATEMENT_TIMEOUT = timedelta(seconds=30)
"""The same for statements over entire tables."""


def open_database(
    database_url: str,
    *,
    connections: int = 4,
    timeout: timedelta = STATEMENT_TIMEOUT,
    ping: timedelta | None = None,
) -> AsyncEngine:
    """Return an engine for the running loop. A dead connection is noticed before it is used.

    A statement that takes longer than `timeout`, or a transaction that is idle for so long, is aborted. The pool
    replaces a connection that does not answer within `ping`, at most four seconds.
    """
    engine = create_async_engine(
        connecting.sqlalchemy_url(database_url),
        connect_args=connecting.CONNECT_ARGS,
        pool_size=connections,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=30,
        hide_parameters=True,  # they hold text of documents
    )
    connecting.close_after(engine.sync_engine, timeout, ping=ping)
    return engine


def open_for_questions(database_url: str, *, timeout: timedelta = _QUESTION_TIMEOUT) -> Engine:
    """Return an engine for callers without an event loop: each statement gets a connection of its own."""
    engine = create_engine(
        connecting.sqlalchemy_url(database_url),
        connect_args=connecting.CONNECT_ARGS,
        poolclass=NullPool,
        hide_parameters=True,
    )
    connecting.close_after(engine, timeout)
    return engine


def answers(database_url: str) -> bool:
    """Return whether Postgres answers."""
    with connecting.outage_suppressed(), open_for_questions(database_url).connect() as connection:
        connection.execute(text("SELECT 1"))
        return True
    return False


async def fetch(database: AsyncEngine, statement: TextClause, **values: Any) -> Sequence[Row[Any]]:
    """Return the rows of one statement. Nothing is committed, so a lost reply loses nothing."""
    async with database.connect() as connection:
        return (await connection.execute(statement, values)).all()


async def fetch_changed(database: AsyncEngine, statement: TextClause, **values: Any) -> Sequence[Row[Any]]:
    """Run one statement as a transaction; return the changed rows, by its RETURNING clause."""
    async with database.begin() as connection:
        return (await connection.execute(statement, values)).all()


async def change(database: AsyncEngine, statement: TextClause, **values: Any) -> int:
    """Run one statement as a transaction; return how many rows it changed."""
    async with database.begin() as connection:
        return (await connection.execute(statement, values)).rowcount


class Outage:
    """Whether this process waits for Postgres: meanwhile it claims nothing, and does not count as hung."""

    def __init__(self) -> None:
        self._waiting = 0

    @property
    def is_on(self) -> bool:
        """Whether anything waits for Postgres now."""
        return self._waiting > 0

    @contextmanager
    def noted(self, error: Exception) -> Iterator[None]:
        """Count the block as part of an outage; the first block logs the reason."""
        if not self.is_on:
            if connecting.is_transient(error):
                log.warning("database_unavailable", error=connecting.name_of(error))
            else:
                log.error("database_unfit", error=connecting.name_of(error))
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1


OUTAGE = Outage()
"""The outage as this process sees it. Written only on the loop, read on any thread."""


async def retry_unavailable(run: Callable[[], Awaitable[R]], *, limit_s: float | None = None) -> R:
    """Run `work`, and repeat it while Postgres is unavailable or its schema or grants do not fit.

    Finished work waits here instead of being lost. The work must be safe to repeat when its commit was not
    acknowledged: the fence ensures that. Raises an error that concerns this statement alone, and the timeout of a
    statement that has taken `limit_s` in all: that is no outage, since other statements succeed meanwhile.
    """
    failed = 0
    began = time.monotonic()
    noted = logged = False
    with waiting(), ExitStack() as outage:
        while True:
            try:
                return await run()
            except Exception as error:
                if connecting.verdict_on(error) not in (
                    connecting.Verdict.TRANSIENT,
                    connecting.Verdict.FAULT,
                ):
                    raise
                exceeds = connecting.exceeds_limit(error)
                if exceeds:
                    if not logged:
                        log.warning("statement_too_long", error=connecting.name_of(error))
                        logged = True
                    if limit_s is not None and time.monotonic() - began >= limit_s:
                        raise
                elif not noted:
                    outage.enter_context(OUTAGE.noted(error))
                    noted = True
            LIVENESS.beat()  # who waits for Postgres does not stand still
            failed += 1
            await asyncio.sleep(_BACKOFF.wait_s(failed))
