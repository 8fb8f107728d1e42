"""Waiting primitives for tasks of an event loop. `pecia.waiting` has the same names for threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar

from pecia import request, sources
from pecia.errors import SubmitError, WrongLoopError
from pecia.request import Item, Options, Steps, Submission
from pecia.sources import StoredSource
from pecia.submission import NewJob, Prepared, new_job
from pecia_schemas import tracing
from pecia_schemas.encryption import Keyring
from pecia_schemas.media import PayloadRef, UrlRef
from pecia_schemas.threads import finish_in_thread

if TYPE_CHECKING:
    from pecia_schemas.payloads import PayloadStore
    from pecia_schemas.tasks import Task

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

sleep = asyncio.sleep
Semaphore = asyncio.Semaphore
aclosing = contextlib.aclosing
run_blocking = finish_in_thread

_AT_ONCE: Final = 4
"""Documents that are stored at a time."""


class AsyncOpening(Generic[C]):
    """Holder of a client's connections, for one loop."""

    _connections: C | None = None
    _loop: asyncio.AbstractEventLoop

    def _connect(self) -> C:
        raise NotImplementedError

    def _open(self) -> C:
        """Return the connections, opened if necessary. Raises `WrongLoopError` in a loop other than the opening one."""
        if self._connections is None:
            self._loop = asyncio.get_running_loop()
            self._connections = self._connect()
        elif self._loop is not asyncio.get_running_loop():
            raise WrongLoopError
        return self._connections

    def _take(self) -> C | None:
        """Return the open connections for closing, and forget them. Raises `WrongLoopError`."""
        if self._connections is None:
            return None
        taken, self._connections = self._open(), None
        return taken


class AsyncBackground(Generic[T]):
    """One background step that runs while its caller prepares the next; results are taken in order."""

    def __init__(self, take: Callable[[T], object]) -> None:
        self._take = take
        self._under_way: tuple[asyncio.Future[T], Callable[[T], T], ExitStack] | None = None

    def start(self, work: Callable[[], Awaitable[T]], passed: Callable[[T], T], held: ExitStack) -> None:
        """Start the step. When it is settled, its result passes through `passed`, and `held` is closed."""
        self._under_way = asyncio.ensure_future(work()), passed, held

    async def settle(self) -> None:
        """Wait for the step in flight. Raises its error."""
        if self._under_way is not None:
            (future, passed, held), self._under_way = self._under_way, None
            with held:
                self._take(passed(await future))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with suppress(Exception) if error else nullcontext():
            await self.settle()


async def attentive(call: Awaitable[T]) -> T:
    """Await a driver's call. Raise `CancelledError` if the task was cancelled meanwhile.

    Both drivers wait by `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives at the moment
    of its result.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


def within_work(call: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Wrap an asynchronous function so that code inside a transaction can call it."""
    from sqlalchemy.util import await_  # noqa: PLC0415  slow to load

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await_(call(*args, **kwargs))

    return run


async def steps(
    tasks: Iterable[Task[Any] | Submission[Any]] | AsyncIterable[Task[Any] | Submission[Any]], waiting: Steps
) -> AsyncGenerator[list[Item], None]:
    """Yield the tasks in steps."""
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            if waiting.add(task):
                yield waiting.take()
    else:
        for task in tasks:
            if waiting.add(task):
                yield waiting.take()
    if step := waiting.take():
        yield step


async def prepare(items: Sequence[Item], payloads: PayloadStore, options: Options, keys: Keyring) -> Prepared:
    """Check the tasks, store their documents, a few at a time, and build their rows.

    Raises `PayloadStoreUnavailableError` if the store does not answer.
    """
    made: dict[int, NewJob | SubmitError] = dict(await run_blocking(_refused, items, options))
    waiting = iter([item for item in items if item.number not in made])

    async def work() -> None:
        for item in waiting:
            try:
                with tracing.under(item.traceparent, "store"):
                    source = await _stored(payloads, item.own.task.source)
                made[item.number] = new_job(item, source, options, keys)
            except SubmitError as error:
                made[item.number] = error

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(items))):
                group.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # the store is unavailable: all errors are the same
    return [(item.number, made[item.number]) for item in items]


def _refused(items: Sequence[Item], options: Options) -> list[tuple[int, SubmitError]]:
    refused: list[tuple[int, SubmitError]] = []
    for item in items:
        try:
            request.check(item, options)
        except SubmitError as error:
            refused.append((item.number, error))
    return refused


async def _stored(payloads: PayloadStore, source: object) -> StoredSource:
    """Store a task's source; the counterpart of `sources.store`."""
    if isinstance(source, (PayloadRef, UrlRef)):
        return StoredSource(payload=source)
    with ExitStack() as stack:
        file = await run_blocking(stack.enter_context, sources.opened(source))
        start = file.tell()
        with sources.depositing():
            deposit = await payloads.deposit_async(file)
        return await run_blocking(sources.measured, file, start, deposit)
