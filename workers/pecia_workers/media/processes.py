"""A bounded number of processes for work that may hang, crash or eat memory, awaited from one loop."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_START_TIMEOUT = 120.0
_GRACE = 10.0  # seconds after a call's timeout in which pebble should have ended it


class ProcessDiedError(Exception):
    """The process ended in the middle of this call; calls in other processes go on."""


class BoundedProcesses:
    """At most so many calls at a time, each in a process that stays for the next call.

    A call that times out or is cancelled costs its process, which is started again; no other call notices. Use it
    from one loop, on a thread that lives as long as the processes should: they die with it.
    """

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., None],
        *initargs: Any,
        memory_bytes: int | None = None,
    ) -> None:
        """`memory_bytes`: address space of each process above what it has once initialized."""
        self.processes = processes
        self._initargs = (os.getpid(), memory_bytes, initializer, initargs)
        self._free = asyncio.Semaphore(processes)
        self._pool: ProcessPool | None = None

    async def start(self) -> None:
        """Start the processes; returns when they answer. Raises `ProcessDiedError` if they cannot be initialized."""
        await asyncio.gather(*(self.call(os.getpid, timeout=_START_TIMEOUT) for _ in range(self.processes)))

    async def stop(self) -> None:
        """End every call and process; callers get `asyncio.CancelledError`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(_end, pool)

    async def call(self, function: Callable[..., T], *args: Any, timeout: float) -> T:  # noqa: ASYNC109  ends a process
        """Return `function(*args)`, run in a process.

        Raises what it raises, `TimeoutError` after `timeout` seconds of running, `ProcessDiedError` if the process
        ended.
        """
        # The wait for a process is here and not inside pebble, where a cancelled call would still cost a process.
        async with self._free:
            try:
                return await self._call_once(function, args, timeout)
            except BrokenProcessPool:
                # An idle process was killed, which pebble takes for the end of the pool. The call never ran.
                try:
                    return await self._call_once(function, args, timeout)
                except BrokenProcessPool:
                    raise ProcessDiedError("The processes end as soon as they start.") from None

    async def _call_once(self, function: Callable[..., T], args: tuple[Any, ...], seconds: float) -> T:
        pool = self._running_pool()
        guard = asyncio.timeout(seconds + _GRACE)
        try:
            async with guard:
                return await asyncio.wrap_future(_schedule(pool, function, args, seconds))
        except ProcessExpired as error:
            raise ProcessDiedError(f"The process ended with code {error.exitcode}.") from None
        except BrokenProcessPool:
            await self._discard(pool)
            raise
        except TimeoutError:
            if (
                guard.expired()
            ):  # a process was killed while it held pebble's lock: nothing comes out any more
                await self._discard(pool)
            raise

    def _running_pool(self) -> ProcessPool:
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self.processes,
                initializer=_initialize,
                initargs=self._initargs,
                context=multiprocessing.get_context("spawn"),
            )
        return self._pool

    async def _discard(self, pool: ProcessPool) -> None:
        if self._pool is pool:
            self._pool = None
            await asyncio.to_thread(_end, pool)


def _schedule(
    pool: ProcessPool, function: Callable[..., T], args: tuple[Any, ...], seconds: float
) -> ProcessFuture[T]:
    try:
        return pool.schedule(function, args=args, timeout=seconds)
    except RuntimeError:  # what pebble raises once the pool is broken
        raise BrokenProcessPool from None


def _end(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _initialize(
    parent: int, memory_bytes: int | None, initializer: Callable[..., None], initargs: tuple[Any, ...]
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask to die with it
        os._exit(1)
    initializer(*initargs)
    if memory_bytes is not None:
        limit = _address_space() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
