"""SQL written once, as methods that each are the work of one transaction.

On a `Database` such a method runs and returns; on an `AsyncDatabase` it returns something to await. The work is given
what the database's transactions are made on, a SQLAlchemy `Connection`, before its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy import Connection

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol):
    """A database whose transactions keep their caller's thread."""

    def transaction(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return what it returns."""
        ...


class Awaitable(Protocol):
    """A database whose transactions are awaited."""

    async def transaction(self, work: Callable[[Connection], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return what it returns."""
        ...


D_co = TypeVar("D_co", bound=Blocking | Awaitable, covariant=True)


class Statements(Generic[D_co]):
    """What can be asked of a database, of either kind."""

    def __init__(self, database: D_co) -> None:
        self._database = database


class Transaction(Generic[P, T]):
    """A method of `Statements` that is written as the work of a transaction and called without its connection."""

    def __init__(self, work: Callable[Concatenate[Any, Any, P], T], *, repeatable: bool) -> None:
        self.__doc__ = work.__doc__
        self._work = work
        self._repeatable = repeatable

    @overload
    def __get__(self, owner: Statements[Blocking], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Statements[Awaitable], kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Statements[Any], kind: type) -> Callable[P, Any]:
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner._database.transaction(  # noqa: SLF001  a method of its owner
                lambda connection: self._work(owner, connection, *args, **kwargs), repeatable=self._repeatable
            )

        return run


def transaction(work: Callable[Concatenate[Any, Any, P], T]) -> Transaction[P, T]:
    """Make a method of a transaction that may run again after a lost connection, committed or not."""
    return Transaction(work, repeatable=True)


def unrepeatable(work: Callable[Concatenate[Any, Any, P], T]) -> Transaction[P, T]:
    """Make a method of a transaction that must not run twice."""
    return Transaction(work, repeatable=False)
