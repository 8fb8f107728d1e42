"""What differs by nature between a thread and a loop; `pecia.aio.concurrency` has the same names for the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from threading import Lock, Semaphore
from time import sleep
from typing import Generic, ParamSpec, Protocol, TypeVar, cast

__all__ = ["Opening", "Semaphore", "attentive", "closing", "run_blocking", "sleep"]

P = ParamSpec("P")
T = TypeVar("T")


class Inheritable(Protocol):
    """What a process may have from the one that it was forked from, and is to close then."""

    @property
    def are_inherited(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Inheritable)


class Opening(Generic[C]):
    """What a client has open, for all threads of a process."""

    _connections: C | None = None

    def __init__(self) -> None:
        self._opening = Lock()

    def _connect(self) -> C:
        raise NotImplementedError

    def _open(self) -> C:
        """Return it, opened if it is not, or was by the process from which this one was forked."""
        with self._opening:
            if self._connections is not None and self._connections.are_inherited:
                self._connections.close()
                self._connections = None
            if self._connections is None:
                self._connections = self._connect()
            return self._connections

    def _take(self) -> C | None:
        """Return what is open, to be closed."""
        with self._opening:
            taken, self._connections = self._connections, None
        return taken


def closing(items: Iterator[T]) -> contextlib.AbstractContextManager[Iterator[T]]:
    """Close a generator at the end of the block, also where an exception keeps it alive."""
    return contextlib.closing(cast("Generator[T]", items))


def attentive(answer: T) -> T:
    """Return what a call of a driver returned: a thread that waits cannot be cancelled."""
    return answer


def run_blocking(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run it and return what it returns."""
    return work(*args, **kwargs)
