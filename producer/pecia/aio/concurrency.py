"""What differs by nature between a loop and a thread; `pecia.concurrency` has the same names for the other."""

from __future__ import annotations

import asyncio
from asyncio import Semaphore, sleep
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing, nullcontext, suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from pecia.errors import WrongLoopError
from pecia_schemas.threads import finish_in_thread as run_blocking

__all__ = ["AsyncBehind", "AsyncOpening", "Semaphore", "aclosing", "attentive", "run_blocking", "sleep"]

T = TypeVar("T")
C = TypeVar("C")


class AsyncOpening(Generic[C]):
    """What a client has open, for one loop."""

    _connections: C | None = None
    _loop: asyncio.AbstractEventLoop

    def _connect(self) -> C:
        raise NotImplementedError

    def _open(self) -> C:
        """Return it, opened if it is not. Raises `WrongLoopError` in another loop than the one that opened it."""
        if self._connections is None:
            self._loop = asyncio.get_running_loop()
            self._connections = self._connect()
        elif self._loop is not asyncio.get_running_loop():
            raise WrongLoopError
        return self._connections

    def _take(self) -> C | None:
        """Return what is open, to be closed. Raises `WrongLoopError`."""
        if self._connections is None:
            return None
        taken, self._connections = self._open(), None
        return taken


class AsyncBehind(Generic[T]):
    """One piece of work that is done while its caller prepares the next; the results are taken in order."""

    def __init__(self, take: Callable[[T], object]) -> None:
        self._take = take
        self._under_way: tuple[asyncio.Future[T], Callable[[T], T], ExitStack] | None = None

    def start(self, work: Callable[[], Awaitable[T]], passed: Callable[[T], T], held: ExitStack) -> None:
        """Begin it; its result is `passed` on, and what is `held` for it let go of, once it is settled."""
        self._under_way = asyncio.ensure_future(work()), passed, held

    async def settle(self) -> None:
        """Wait for what is under way. Raises what it raised."""
        if self._under_way is not None:
            (future, passed, held), self._under_way = self._under_way, None
            with held:
                self._take(passed(await future))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception) if error else nullcontext():
            await self.settle()


async def attentive(call: Awaitable[T]) -> T:
    """Await a call of a driver; raise `CancelledError` if the task was cancelled meanwhile.

    Before Python 3.12 `asyncio.wait_for`, by which both drivers wait, loses a cancellation that comes at the moment at
    which what it waits for is there.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
