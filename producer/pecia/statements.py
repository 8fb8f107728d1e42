"""SQL written once, as methods that each are the work of one transaction.

On a `Database` such a method runs and returns; on an `AsyncDatabase` it returns something to await. The work is given
what the database's transactions are made on, a `Connection`, before its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

if TYPE_CHECKING:
    from sqlalchemy import TextClause

P = ParamSpec("P")
T = TypeVar("T")

_NAMED: Final = re.compile(r"(?<![:\w]):(\w+)(?!:)")


@lru_cache(maxsize=256)
def for_driver(statement: str) -> str:
    """Return SQL with `:name` as psycopg takes it."""
    return _NAMED.sub(r"%(\1)s", statement.replace("%", "%%"))


class Rows:
    """What a statement returned: rows that are tuples with names."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        """Return all of them."""
        return list(self._rows)

    def first(self) -> Any:
        """Return the first; None if there is none."""
        return next(iter(self._rows), None)

    def mappings(self) -> Self:
        """Return the rows as mappings."""
        return type(self)([row._asdict() for row in self._rows])

    def scalars(self) -> list[Any]:
        """Return the first column."""
        return [row[0] for row in self._rows]

    def scalar(self) -> Any:
        """Return the first column of the first row; None if there is none."""
        return next(iter(self.scalars()), None)


class Connection(Protocol):
    """What a transaction is made on."""

    def execute(self, statement: str | TextClause, parameters: Mapping[str, Any], /) -> Rows:
        """Run SQL in which `:name` stands for a parameter."""
        ...

    def execute_as_is(self, statement: str, parameters: Mapping[str, Any], /) -> Rows:
        """Run SQL in which `%(name)s` stands for a parameter."""
        ...


class Blocking(Protocol):
    """A database whose transactions keep their caller's thread."""

    def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:
        """Run `work` in one transaction and return what it returns."""
        ...


class Awaitable(Protocol):
    """A database whose transactions are awaited."""

    async def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:
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
