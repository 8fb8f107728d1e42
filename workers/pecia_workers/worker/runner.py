"""Parts on the loop thread: a task for each part from Celery, its run to the end, and its events for Flower.

Celery and Flower get ids, enumerations and numbers of a part, never text.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from billiard.exceptions import Terminated
from celery.exceptions import Ignore, Reject, Retry
from celery.worker.request import Request

from pecia_workers.protocol.base import Budget
from pecia_workers.protocol.parts import (
    PartCancelledError,
    PartFailedError,
    RuntimeLostError,
    StorageUnavailableError,
)

if TYPE_CHECKING:
    from pecia_workers.worker.runtime import Runtime

_log = logging.getLogger(__name__)

CANCELLED = "cancelled"
"""Signal name reported to Celery for a part that was cancelled in Postgres; Celery then shows it as revoked."""


class Interruption(Enum):
    """Why a part was cancelled before its end."""

    REVOKED = auto()
    """An operator revoked it: Celery has acknowledged it already."""
    STOPPED = auto()
    """The worker stops."""


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True, kw_only=True)
class PartInFlight:
    """A part in flight. Celery keeps it as the request's result and terminates it through that."""

    part: UUID
    cost: int
    deaths: int
    """Workers that died on it: after one, it may run beside no part on which none did."""
    begun: Callable[[Mapping[str, Any]], None]
    callback: Callable[[Any], None]
    timeout_callback: Callable[[bool, float], None]
    limit_s: float | None
    soft: bool
    """Whether that is Celery's soft limit."""
    started: float
    task: asyncio.Task[None] | None = None
    former: PartInFlight | None = None
    interruption: Interruption | None = None
    on_interrupt: Callable[[PartInFlight], object] | None = None

    def interrupt(self, why: Interruption) -> None:
        """Cancel the part, unless that was done already. Callable on any thread."""
        if self.interruption is not None:
            return
        self.interruption = why
        if self.on_interrupt:
            self.on_interrupt(self)

    def terminate(self, _signal: int | None = None) -> None:
        """Cancel the part for Celery: a cold shutdown, unless its revocation was announced before."""
        self.interrupt(Interruption.STOPPED)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception in the form that Celery's request takes, without the traceback, which may quote a document."""

    exception: Exception
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a part ended, as Celery's callback takes it: failed, result or error, seconds. None: nothing to report."""

    result: tuple[int, Any, float] | None
    timed_out: bool = False

    @classmethod
    def done(cls, result: Mapping[str, Any] | None, seconds: float) -> Ending:
        """Report that the part is committed."""
        return cls(result=(0, None if result is None else repr(result), seconds))

    @classmethod
    def failed(cls, error: Exception, seconds: float) -> Ending:
        """Report that the part ended with an exception of the runtime, of which only the code is kept."""
        bare = error
        if isinstance(error, Retry):
            bare = Retry(exc=error.exc if isinstance(error.exc, PartFailedError) else None)
        elif isinstance(error, Ignore):
            bare = Ignore()
        elif isinstance(error, PartCancelledError):
            bare = Terminated(CANCELLED)
        return cls(result=(1, ErrorInfo(bare), seconds))

    @classmethod
    def requeued(cls, seconds: float, *, timed_out: bool = False) -> Ending:
        """Report that the part did not end here: its message goes back to its list."""
        return cls(result=(1, ErrorInfo(Reject(requeue=True)), seconds), timed_out=timed_out)


class PartRequest(Request):  # type: ignore[misc]
    """Celery's request; reports the part as started only after its claim in Postgres."""

    _arguments: Mapping[str, str] | None = None

    def begun(self, about: Mapping[str, Any]) -> None:
        """Send the event of the start. All events from now on carry `about` as the task's keyword arguments."""
        self._arguments = {"kwargs": repr(about)}
        self.send_event("task-started")

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002  Celery's name
        """Send an event, except Celery's own start event, which comes with the claim, before the part runs."""
        if self._arguments is not None or type != "task-started":
            super().send_event(type, **(self._arguments or {}), **fields)


_PAUSE_S = 1.0
"""Pause before a part is requeued after an unexpected exception, so that it does not spin."""

_UNWIND_S = 5.0
_STOP_S = 10.0


@dataclass(eq=False, kw_only=True)
class PartRunner:
    """Runs parts on a loop of its own, on whose thread it calls back."""

    runtime: Runtime
    submitted: Callable[[], None]
    """Called for every group that was submitted."""
    begun: Callable[[PartInFlight, Mapping[str, Any]], None]
    """Called for every part that Postgres hands out, with its event."""
    notify: Callable[[PartInFlight, Ending], None]
    """Called for every end but those that `abandon` made."""
    fatal: Callable[[Exception], None]
    priced: Callable[[UUID, int], None]
    """Called with what a part really costs."""

    def __post_init__(self) -> None:
        self._background: set[asyncio.Task[bool]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="parts", daemon=True)

    def start(self) -> Future[Budget]:
        """Begin to start the runtime; the future holds its budget, or its error."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start_runtime(), self._loop)

    def submit(self, jobs: Collection[PartInFlight]) -> None:
        """Start all parts together, so that the runtime can group their statements."""
        for job in jobs:
            job.on_interrupt = lambda job: self._loop.call_soon_threadsafe(self._cancel, job)
        self._loop.call_soon_threadsafe(self._spawn, jobs)

    def revoke(self, part: UUID) -> None:
        """Notify the runtime that an operator revoked a part."""
        self._loop.call_soon_threadsafe(self._in_background, self.runtime.revoked(part))

    def abandon(self, jobs: Collection[PartInFlight]) -> None:
        """Wait until interrupted parts have unwound, some seconds at most; then have the runtime requeue them."""
        asyncio.run_coroutine_threadsafe(self._abandon(jobs), self._loop).result()

    def stop(self) -> None:
        """Stop the runtime and the loop."""
        asyncio.run_coroutine_threadsafe(self._stop_runtime(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _spawn(self, jobs: Collection[PartInFlight]) -> None:
        for job in jobs:
            job.task = self._loop.create_task(self._run(job))
        self.submitted()

    def _cancel(self, job: PartInFlight) -> None:
        if job.task:  # one turn later: a task cancelled before its first step would never report its end
            self._loop.call_soon(job.task.cancel)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[bool] = self._loop.create_task(_quietly(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run(self, job: PartInFlight) -> None:
        try:
            ending = await self._run_to_end(job)
        except asyncio.CancelledError:
            ending = await self._unfinished(job)
        if ending:
            self.notify(job, ending)

    async def _run_to_end(self, job: PartInFlight) -> Ending | None:
        while job.former and job.former.task:
            await asyncio.wait([job.former.task])
            job.former = job.former.former  # which it did not wait for itself, if it was lost meanwhile
        if job.interruption:
            return await self._unfinished(job)
        timed_out, limit = False, asyncio.timeout(job.limit_s)
        try:
            async with limit:
                result = await self.runtime.run(job.part, deaths=job.deaths, begun=partial(self.begun, job))
        except (Ignore, Retry, PartFailedError, PartCancelledError) as error:
            return Ending.failed(error, _age(job))
        except asyncio.CancelledError:
            pass  # `_unfinished` asks why
        except StorageUnavailableError:
            pass  # the runtime has said so, and rests
        except RuntimeLostError as error:
            self.fatal(error)
        except Exception as error:  # noqa: BLE001  a fault of ours: the part must not suffer for it
            # A timeout of the runtime's own is a fault too.
            timed_out = isinstance(error, TimeoutError) and limit.expired()
            if not timed_out:
                # The type alone: an exception's text may hold the document's.
                found = type(error).__name__
                _log.error("part %s thrown out: %s", job.part, found, extra={"part": str(job.part)})
        else:
            return Ending.done(result, _age(job))
        return await self._unfinished(job, timed_out=timed_out)

    async def _unfinished(self, job: PartInFlight, *, timed_out: bool = False) -> Ending | None:
        """Return the end of a part that was interrupted, or None if `abandon` reports it."""
        if job.interruption is Interruption.STOPPED:
            return None
        if job.interruption is Interruption.REVOKED:
            return Ending(result=None)
        if job.interruption is None and not timed_out:
            await asyncio.sleep(_PAUSE_S)
        # What Postgres takes for running must not lie in Redis: a worker that claimed it there would find it taken.
        while not await self._requeue([job]):  # noqa: ASYNC110  the other side is a database
            await asyncio.sleep(_PAUSE_S)
        return Ending.requeued(_age(job), timed_out=timed_out)

    async def _abandon(self, jobs: Collection[PartInFlight]) -> None:
        if tasks := [job.task for job in jobs if job.task]:
            await asyncio.wait(tasks, timeout=_UNWIND_S)
        await self._requeue(jobs, limit_s=_STOP_S)

    async def _requeue(self, jobs: Collection[PartInFlight], *, limit_s: float | None = None) -> bool:
        return await _quietly(self.runtime.requeue([job.part for job in jobs]), limit_s=limit_s)

    async def _start_runtime(self) -> Budget:
        budget = await self.runtime.start(self.priced)
        self._watch = self._loop.create_task(self._watch_runtime())
        return budget

    async def _watch_runtime(self) -> None:
        await self.runtime.lost()
        self.fatal(RuntimeLostError())

    async def _stop_runtime(self) -> None:
        if self._watch:
            self._watch.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=_UNWIND_S)
        await _quietly(self.runtime.stop(), limit_s=_STOP_S)


def _age(job: PartInFlight) -> float:
    return time.monotonic() - job.started


async def _quietly(work: Coroutine[Any, Any, None], *, limit_s: float | None = None) -> bool:
    """Await work and log its failure; return whether it succeeded."""
    try:
        async with asyncio.timeout(limit_s):
            await work
    except Exception as error:  # noqa: BLE001
        _log.error("%s failed: %s", getattr(work, "__qualname__", "work"), type(error).__name__)
        return False
    return True
