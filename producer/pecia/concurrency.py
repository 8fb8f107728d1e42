"""What differs by nature between a thread and a loop; `pecia.aio.concurrency` has the same names for the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from contextvars import copy_context
from threading import Lock, Semaphore
from time import sleep
from types import TracebackType
from typing import Generic, ParamSpec, Protocol, Self, TypeVar, cast

__all__ = ["Behind", "Opening", "Semaphore", "attentive", "closing", "run_blocking", "sleep"]

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


class Behind(Generic[T]):
    """One piece of work that a thread does while its caller prepares the next; the results are taken in order."""

    def __init__(self, take: Callable[[T], object]) -> None:
        self._take = take
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pecia-submit")
        self._under_way: tuple[Future[T], Callable[[T], T], ExitStack] | None = None

    def start(self, work: Callable[[], T], passed: Callable[[T], T], held: ExitStack) -> None:
        """Begin it; its result is `passed` on, and what is `held` for it let go of, once it is settled."""
        self._under_way = self._thread.submit(copy_context().run, work), passed, held

    def settle(self) -> None:
        """Wait for what is under way. Raises what it raised."""
        if self._under_way is not None:
            (future, passed, held), self._under_way = self._under_way, None
            with held:
                self._take(passed(future.result()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._thread, suppress(Exception) if error else nullcontext():
            self.settle()


def closing(items: Iterator[T]) -> contextlib.AbstractContextManager[Iterator[T]]:
    """Close a generator at the end of the block, also where an exception keeps it alive."""
    return contextlib.closing(cast("Generator[T]", items))


def attentive(answer: T) -> T:
    """Return what a call of a driver returned: a thread that waits cannot be cancelled."""
    return answer


def run_blocking(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run it and return what it returns."""
    return work(*args, **kwargs)
