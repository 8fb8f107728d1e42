"""Transactions of a client: bounded in time, repeated where that is safe, with errors that say what to do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from pecia.errors import (
    ConfigurationError,
    DatabaseRefusedError,
    DatabaseUnavailableError,
    InvalidSettingError,
)
from pecia.pool import Pool
from pecia.statements import Connection
from pecia_schemas import refusals
from pecia_schemas.connecting import (
    CONNECT_ARGS,
    Verdict,
    is_transient,
    may_be_committed,
    name_of,
    parameters_of,
    verdict_on,
)

P = ParamSpec("P")
T = TypeVar("T")

STATEMENT_TIMEOUT = timedelta(seconds=30)
_PAUSES: Final = (0.05, 0.3)  # seconds before the second and the third try


class Database:
    """A pool of connections to Postgres. Not to be used across a fork."""

    def __init__(self, database_url: str, *, connect_timeout: timedelta) -> None:
        self._patience = connect_timeout.total_seconds()
        self._pool = Pool(connecting(database_url, self._patience), STATEMENT_TIMEOUT)
        self._answers = Answers(database_url)

    def transaction(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return what it returns.

        After a lost connection it is unknown whether it was committed: then it runs again only if it is `repeatable`.
        """
        tries = Tries(self._patience, repeatable=repeatable)
        while True:
            with self._answers.translated():
                try:
                    with self._pool.transaction() as connection:
                        return work(connection)
                except Exception as error:
                    if (pause := tries.pause(error)) is None:
                        raise
            time.sleep(pause)

    def dispose(self, *, close: bool = True) -> None:
        """Let go of all connections; in a forked child with `close=False`, for they are the parent's."""
        self._pool.dispose(close=close)


def within_work(call: Callable[P, T]) -> Callable[P, T]:
    """Return a function as the work of a transaction can call it: as it is."""
    return call


class Tries:
    """How often one transaction is run."""

    def __init__(self, patience: float, *, repeatable: bool) -> None:
        self._until = time.monotonic() + patience
        self._repeatable = repeatable
        self._pauses = iter(_PAUSES)

    def pause(self, error: Exception) -> float | None:
        """Return the seconds to wait before it runs again; None: it does not."""
        may_repeat = is_transient(error) and (self._repeatable or not may_be_committed(error))
        if time.monotonic() > self._until or not may_repeat:
            return None
        return next(self._pauses, None)


class Answers:
    """What the answers of one Postgres mean to those who use a client."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise what the driver and the pool raise as errors of this client that say what to do."""
        try:
            yield
        except Exception as error:
            if (verdict := verdict_on(error)) is None:
                raise
            said = refusals.explain(error, self._url)
            if verdict is Verdict.TRANSIENT:
                raise DatabaseUnavailableError(said) from error
            # The original quotes what was to be written.
            refused = (
                ConfigurationError(said)
                if verdict is Verdict.FAULT
                else DatabaseRefusedError(said, name_of(error))
            )
            raise refused from None


def connecting(database_url: str, patience: float) -> dict[str, Any]:
    """Return what libpq is given to connect for a client. Raises `InvalidSettingError` for what is no URL."""
    try:
        named = parameters_of(database_url)
        make_conninfo(**named)
    except (ValueError, psycopg.Error):
        raise InvalidSettingError(
            "PECIA_DATABASE_URL is no URL of a database: it reads postgresql://user:password@host/database."
        ) from None
    return {**CONNECT_ARGS, "connect_timeout": max(2, math.ceil(patience)), **named}
