"""What an error of Postgres means, by its SQLSTATE. Client, ledger, upkeep, webhooks and commands judge by this alone.

The class of an exception says nothing: psycopg and SQLAlchemy raise `OperationalError` for a server that restarts and
for a row that is too long for an index, and `InternalError` for a server that is read-only for a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

import psycopg
from pydantic_core import PydanticSerializationError


class Verdict(Enum):
    """What becomes of a statement that failed."""

    TRANSIENT = auto()
    """The same statement succeeds later: it is tried again, with backoff."""
    REFUSED = auto()
    """This statement with these values never succeeds; others do."""
    FAULT = auto()
    """Schema or rights are not those that this version needs: nothing succeeds until a person mends it."""


_BY_PREFIX: Final = {
    "08": Verdict.TRANSIENT,  # connection lost
    "25006": Verdict.TRANSIENT,  # read-only: a standby, or a primary that was demoted or is full
    "25P03": Verdict.TRANSIENT,  # idle in a transaction for too long: this process stood still
    "25P04": Verdict.TRANSIENT,  # transaction timeout
    "28": Verdict.TRANSIENT,  # the account was refused: its password is being changed
    "3D": Verdict.TRANSIENT,  # no such database: it is being restored
    "3F": Verdict.FAULT,  # no such schema
    "40": Verdict.TRANSIENT,  # rolled back for another's sake: deadlock, serialization failure
    "42501": Verdict.FAULT,  # insufficient privilege
    "42703": Verdict.FAULT,  # no such column
    "42704": Verdict.FAULT,  # no such type, constraint or index
    "42883": Verdict.FAULT,  # no such function
    "42P01": Verdict.FAULT,  # no such table
    "53": Verdict.TRANSIENT,  # disk full, out of memory, too many connections
    "55006": Verdict.TRANSIENT,  # object in use
    "55P03": Verdict.TRANSIENT,  # lock not available
    "57": Verdict.TRANSIENT,  # statement timeout, shutdown, start
    "58": Verdict.TRANSIENT,  # the server's own disk or files
    "72": Verdict.TRANSIENT,  # snapshot too old
}
"""The longest prefix counts. What is not listed is refused: 21, 22, 23, the rest of 42, 54, P0, XX …"""

_IN_DOUBT: Final = ("08", "40003", "57P")
_NOT_THIS_SERVER: Final = ("25006", "25P03", "57P")


def verdict_on(error: BaseException) -> Verdict | None:
    """Return what an error means; None if it does not come from Postgres, the driver or the connection pool."""
    state = sqlstate_of(error)
    if state is not None:
        lengths = range(len(state), 1, -1)
        return next((_BY_PREFIX[state[:n]] for n in lengths if state[:n] in _BY_PREFIX), Verdict.REFUSED)
    match _cause_of(error):
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return Verdict.TRANSIENT  # lost, refused, silent, or every connection is taken
        case psycopg.Error() | UnicodeError() | PydanticSerializationError():
            return Verdict.REFUSED  # such a value cannot be written, so nothing was sent
    return (
        Verdict.TRANSIENT if _is_of_sqlalchemy(error, "TimeoutError") else None
    )  # every connection is taken


def is_transient(error: BaseException) -> bool:
    """Return whether the same statement may succeed later."""
    return verdict_on(error) is Verdict.TRANSIENT


def may_be_committed(error: BaseException) -> bool:
    """Return whether the transaction of a transient error may have been committed: the answer got lost."""
    state = sqlstate_of(error)
    return state is None or state.startswith(_IN_DOUBT)


def ends_connection(error: BaseException) -> bool:
    """Return whether another connection may reach a server that does better."""
    return (sqlstate_of(error) or "").startswith(_NOT_THIS_SERVER)


def sqlstate_of(error: BaseException) -> str | None:
    """Return Postgres's code; None if the error is the driver's own, or none of Postgres."""
    cause = _cause_of(error)
    return cause.sqlstate if isinstance(cause, psycopg.Error) else None


def name_of(error: BaseException) -> str:
    """Return what went wrong in one word: the SQLSTATE, or the name of the error. Never its text, which quotes data."""
    return sqlstate_of(error) or type(_cause_of(error)).__name__


@contextmanager
def outage_suppressed() -> Iterator[None]:
    """End the block early if Postgres is unavailable."""
    try:
        yield
    except Exception as error:
        if not is_transient(error):
            raise


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the driver's error without what SQLAlchemy puts around it."""
    cause: BaseException | None = getattr(error, "orig", None)
    return cause if _is_of_sqlalchemy(error, "DBAPIError") else error


def _is_of_sqlalchemy(error: BaseException, name: str) -> bool:
    """Return whether SQLAlchemy raised it, which is slow to load: who has not loaded it gets no error of it."""
    known = sys.modules.get("sqlalchemy.exc")
    return known is not None and isinstance(error, getattr(known, name))
