"""The fleet's connection to Postgres, and what to do while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoFreeConnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from pecia_schemas.database import CONNECT_ARGS, close_after, sqlalchemy_url
from pecia_workers.metrics.health import PULSE

log = structlog.get_logger(__name__)

R = TypeVar("R")

UNAVAILABLE = (OperationalError, InterfaceError, NoFreeConnectionError)
"""What SQLAlchemy raises when Postgres is away, restarts, does not let go of our connections, or wants a repetition."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


PATIENCE = timedelta(seconds=8)
"""How long a worker waits for an answer on a connection that does not break, so that it works again within 15 s."""

_PATIENCE_WITH_A_QUESTION = timedelta(seconds=4)

LONG_PATIENCE = timedelta(seconds=30)
"""The same for statements over whole tables."""


def open_database(database_url: str, *, connections: int = 4, patience: timedelta = PATIENCE) -> AsyncEngine:
    """Return an engine for the running loop. A dead connection is noticed before it is used.

    A statement that takes longer than `patience`, or a transaction that says nothing for so long, is given up.
    """
    engine = create_async_engine(
        sqlalchemy_url(database_url),
        connect_args=CONNECT_ARGS,
        pool_size=connections,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=30,
        hide_parameters=True,  # they hold text of documents
    )
    close_after(engine.sync_engine, patience)
    return engine


def open_for_questions(database_url: str, *, patience: timedelta = _PATIENCE_WITH_A_QUESTION) -> Engine:
    """Return an engine for those without a loop: each question is asked on a connection of its own."""
    engine = create_engine(sqlalchemy_url(database_url), connect_args=CONNECT_ARGS, poolclass=NullPool)
    close_after(engine, patience)
    return engine


def answers(database_url: str) -> bool:
    """Return whether Postgres does."""
    try:
        with open_for_questions(database_url).connect() as connection:
            connection.execute(text("SELECT 1"))
    except UNAVAILABLE:
        return False
    return True


async def outlast(run: Callable[[], Awaitable[R]]) -> R:
    """Run it, and again for as long as Postgres is away.

    Finished work waits here instead of being thrown away. What is run must be safe to repeat after it has been
    committed but not acknowledged: the fence sees to that.
    """
    pause = 0.0
    while True:
        try:
            return await run()
        except UNAVAILABLE as error:
            if not pause:
                log.warning("database_unavailable", error=name_of(error))
            PULSE.beat()  # who waits for Postgres does not stand still
            pause = min(max(pause * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            await asyncio.sleep(pause)


def name_of(error: Exception) -> str:
    """Return what went wrong in one word, the driver's if it has one; never the error's text."""
    return type(getattr(error, "orig", None) or error).__name__
