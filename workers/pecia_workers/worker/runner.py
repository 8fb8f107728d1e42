"""What the pool needs of the runner of parts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from celery.exceptions import Ignore, Retry

from pecia_workers.engines.base import Budget
from pecia_workers.worker.attempts import PartCancelledError, PartFailedError
from pecia_workers.worker.jobs import Ending, Interruption, Job


class RuntimeLostError(RuntimeError):
    """What runs the parts is gone for good: the worker gives all it holds back and exits."""


class PartRuntime(Protocol):
    """Runs parts on the loop that `start` runs on."""

    async def start(self, priced: Callable[[UUID, int], None]) -> Budget:
        """Make ready and return how much may be claimed; nothing is claimed before.

        `priced` is told, on this loop, what a part really takes of that, in tokens.
        """
        ...

    @property
    def room(self) -> float:
        """Share of that which may be claimed at this time, from 0 to 1. Read on any thread."""
        ...

    @property
    def figures(self) -> Mapping[str, Any]:
        """What it does, for those who watch: numbers by their names. Read on any thread."""
        ...

    @property
    def name(self) -> str:
        """The worker's name in Postgres and Redis, once it has started."""
        ...

    async def lost(self) -> None:
        """Return once what runs the parts is gone for good, though no part runs that could find out."""

    async def run(
        self, part: UUID, *, deaths: int, begun: Callable[[Mapping[str, Any]], None]
    ) -> Mapping[str, Any] | None:
        """Run one part to its commit, and return what is told of its result. It is not run if more workers died on it.

        `begun` is called once Postgres has handed the part out, with what is told of it: ids, enumerations, numbers.
        Raises `celery.exceptions.Ignore` if there is nothing to do, `PartCancelledError` if it was cancelled, `Retry`
        if it failed and will be tried again, `PartFailedError` if it failed for good. After any other exception the
        part is given back.
        """

    async def give_back(self, parts: Collection[UUID]) -> None:
        """Note that these stay unfinished here; awaited before their messages go back to the lists.

        Messages of those that what runs the parts died on are stale then: a claim of one finds nothing to do.
        """

    async def overdue(self, part: UUID) -> None:
        """Give a part up that has been held for too long: it goes on elsewhere, as if a worker had died on it."""

    async def revoked(self, part: UUID) -> None:
        """End a part that an operator revoked through Celery, before or after it began."""

    async def stop(self) -> None:
        """Free everything."""


_log = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""Before a part goes back that a fault in Pecia itself threw out, so that it does not spin."""

_UNWIND_S = 5.0
_STOP_S = 10.0


class _TimeLimitError(Exception):
    """Celery's time limit is over; a runtime's own timeout is not."""


class PartRunner:
    """Runs parts on a loop of its own.

    All on the loop's thread: `submitted` is called for every group that was submitted, `begun` for every part that
    Postgres hands out, with what is told of it, `tell` for every end but those that `abandon` made, `priced` with what
    a part really costs.
    """

    def __init__(
        self,
        runtime: PartRuntime,
        *,
        submitted: Callable[[], None],
        begun: Callable[[Job, Mapping[str, Any]], None],
        tell: Callable[[Job, Ending], None],
        fatal: Callable[[Exception], None],
        priced: Callable[[UUID, int], None],
    ) -> None:
        self._runtime = runtime
        self._submitted = submitted
        self._begun = begun
        self._tell = tell
        self._fatal = fatal
        self._priced = priced
        self._background: set[asyncio.Task[bool]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="parts", daemon=True)

    def start(self) -> Future[Budget]:
        """Begin to start the runtime; the future holds its budget, or its error."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start_runtime(), self._loop)

    def submit(self, jobs: Collection[Job]) -> None:
        """Begin all of them together, so that the runtime can group what it asks the database."""
        for job in jobs:
            job.on_interrupt = lambda job: self._loop.call_soon_threadsafe(self._cancel, job)
        self._loop.call_soon_threadsafe(self._spawn, jobs)

    def revoke(self, part: UUID) -> None:
        """Tell the runtime that an operator revoked a part."""
        self._loop.call_soon_threadsafe(self._in_background, self._runtime.revoked(part))

    def overdue(self, part: UUID) -> None:
        """Have the runtime give a part up that does not end, not even cancelled."""
        self._loop.call_soon_threadsafe(self._in_background, self._runtime.overdue(part))

    def abandon(self, jobs: Collection[Job]) -> None:
        """Wait until interrupted jobs have unwound, seconds at most; then have the runtime give their parts back."""
        asyncio.run_coroutine_threadsafe(self._abandon(jobs), self._loop).result()

    def stop(self) -> None:
        """Stop the runtime and the loop."""
        asyncio.run_coroutine_threadsafe(self._stop_runtime(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _spawn(self, jobs: Collection[Job]) -> None:
        for job in jobs:
            job.task = self._loop.create_task(self._run(job))
        self._submitted()

    def _cancel(self, job: Job) -> None:
        if job.task:  # one turn later: a task cancelled before its first step would never tell its end
            self._loop.call_soon(job.task.cancel)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[bool] = self._loop.create_task(_quietly(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run(self, job: Job) -> None:
        try:
            ending = await self._run_to_end(job)
        except asyncio.CancelledError:
            ending = await self._unfinished(job)
        if ending:
            self._tell(job, ending)

    async def _run_to_end(self, job: Job) -> Ending | None:
        timed_out = False
        try:
            result = await self._work(job)
        except (Ignore, Retry, PartFailedError, PartCancelledError) as error:
            return Ending.failed(error, _age(job))
        except _TimeLimitError:
            timed_out = True
        except asyncio.CancelledError:
            pass  # `_unfinished` asks why
        except RuntimeLostError as error:
            self._fatal(error)
        except Exception as error:  # noqa: BLE001  a fault of ours: the part must not suffer for it
            # The type alone: an exception's text may hold the document's.
            found = type(error).__name__
            _log.error("part %s thrown out: %s", job.part, found, extra={"part": str(job.part)})
        else:
            return Ending.done(result, _age(job))
        return await self._unfinished(job, timed_out=timed_out)

    async def _work(self, job: Job) -> Mapping[str, Any] | None:
        while job.former and job.former.task:
            await asyncio.wait([job.former.task])
            job.former = job.former.former  # which it did not wait for itself, if it was lost meanwhile
        if job.interruption:
            raise asyncio.CancelledError
        limit = asyncio.timeout(job.limit_s)
        try:
            async with limit:
                return await self._runtime.run(job.part, deaths=job.deaths, begun=partial(self._begun, job))
        except TimeoutError:
            if limit.expired():
                raise _TimeLimitError from None
            raise

    async def _unfinished(self, job: Job, *, timed_out: bool = False) -> Ending | None:
        """Return the end of a part that did not end by itself; None if `abandon` takes care of it."""
        if job.interruption is Interruption.STOPPED:
            return None
        if job.interruption is Interruption.REVOKED:
            return Ending(result=None)
        if job.interruption is None and not timed_out:
            await asyncio.sleep(_PAUSE_S)
        # What Postgres takes for running must not lie in Redis: a worker that claimed it there would find it taken.
        while not await self._give_back([job]):  # noqa: ASYNC110  the other side is a database
            await asyncio.sleep(_PAUSE_S)
        return Ending.given_back(_age(job), timed_out=timed_out)

    async def _abandon(self, jobs: Collection[Job]) -> None:
        if tasks := [job.task for job in jobs if job.task]:
            await asyncio.wait(tasks, timeout=_UNWIND_S)
        await self._give_back(jobs, limit_s=_STOP_S)

    async def _give_back(self, jobs: Collection[Job], *, limit_s: float | None = None) -> bool:
        return await _quietly(self._runtime.give_back([job.part for job in jobs]), limit_s=limit_s)

    async def _start_runtime(self) -> Budget:
        budget = await self._runtime.start(self._priced)
        self._watch = self._loop.create_task(self._watch_runtime())
        return budget

    async def _watch_runtime(self) -> None:
        await self._runtime.lost()
        self._fatal(RuntimeLostError())

    async def _stop_runtime(self) -> None:
        if self._watch:
            self._watch.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=_UNWIND_S)
        await _quietly(self._runtime.stop(), limit_s=_STOP_S)


def _age(job: Job) -> float:
    return time.monotonic() - job.started


async def _quietly(work: Coroutine[Any, Any, None], *, limit_s: float | None = None) -> bool:
    """Await work whose failure has no remedy; return whether it succeeded."""
    try:
        async with asyncio.timeout(limit_s):
            await work
    except Exception as error:  # noqa: BLE001
        _log.error("%s failed: %s", getattr(work, "__qualname__", "work"), type(error).__name__)
        return False
    return True
