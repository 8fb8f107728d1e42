"""Job handles: the last known state of a job, waiting for it, its results, and calls that change it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import UUID

from pecia import waiting
from pecia.aio.waiting import aclosing, run_blocking, sleep
from pecia.errors import JobTimeoutError, UnavailableError
from pecia.handles import (
    PDF_QUALITY,
    GroupHandle,
    JobHandle,
    JobView,
    R_co,
    assemble,
    existing_view,
    hints_of,
)
from pecia.records import AuditAction, PartOutcome, UsageFigures
from pecia_schemas.events import JobEvent
from pecia_schemas.results import BundledDocument, Page
from pecia_schemas.states import JobState, Stage

if TYPE_CHECKING:
    from pecia.aio.connections import AsyncConnections
    from pecia.formats import Format, Result

T = TypeVar("T")

_CANCEL_AT_ONCE = 200  # jobs in one transaction
_MANY = 10
"""Number of pages from which a thread assembles a result; below, starting a thread takes longer than the assembly."""


async def finished(
    connections: AsyncConnections, job_ids: Sequence[UUID], deadline: waiting.Deadline
) -> AsyncGenerator[JobView, None]:
    """Yield the view of each job once it has ended, in the order of ending.

    Raises `JobTimeoutError` at the deadline and `JobNotFoundError` if one of the jobs does not exist.
    """
    pending = waiting.Pending(job_ids, deadline)
    async with connections.announcements(job_ids, deadline) as news:
        while pending:
            for view in await retry_unavailable(lambda: look(connections, pending.look_at), deadline):
                if pending.settle(view):
                    yield view
            if pending:
                pending.check()
                pending.hear(await news.wait())


async def retry_unavailable(look: Callable[[], Awaitable[T]], deadline: waiting.Deadline) -> T:
    """Call `look` and return its result, retrying while Postgres restarts, for `OUTAGE_S` or up to the deadline.

    Raises `UnavailableError` after that time.
    """
    outage = waiting.Deadline(waiting.OUTAGE_S)
    while True:
        try:
            return await look()
        except UnavailableError:
            if not (pause := deadline.within(outage.within(waiting.OUTAGE_PAUSE_S))):
                raise
            await sleep(pause)


async def look(connections: AsyncConnections, job_ids: Sequence[UUID]) -> list[JobView]:
    """Return the current views of the jobs. Raises `JobNotFoundError` if one of them does not exist."""
    views: dict[UUID, JobView] = {}
    for batch in waiting.batches(job_ids):
        views |= await connections.store.views(batch)
    return [existing_view(job_id, views) for job_id in job_ids]


async def parts_as_they_end(
    connections: AsyncConnections,
    job: AsyncJob[Any],
    deadline: waiting.Deadline,
    *,
    in_order: bool,
    read: waiting.ReadParts | None = None,
) -> AsyncGenerator[PartOutcome, None]:
    """Yield the parts of a job as they end, in document order or in order of ending, without those `read` before.

    Raises `JobTimeoutError` at the deadline.
    """
    store, read, job_id = connections.store, read or waiting.ReadParts(), job.id
    async with connections.announcements([job_id], deadline) as news:
        while True:
            await retry_unavailable(job.refresh, deadline)
            over = job.done  # read before the outcomes, so that these are complete
            barrier = None
            if in_order:
                barrier = await retry_unavailable(lambda: store.first_unfinished(job_id), deadline)
            fresh: Sequence[PartOutcome] = ()
            if read.wants_more(barrier):
                fresh = await retry_unavailable(
                    lambda: store.outcomes(
                        job_id, skip=read.ordinals, limit=waiting.FETCH, read_as=read.read_as
                    ),
                    deadline,
                )
            for outcome in read.ready(fresh, barrier):
                yield outcome
            if len(fresh) == waiting.FETCH:
                continue
            if over:
                return
            deadline.check(job_id)
            await news.wait()


async def events_as_written(
    connections: AsyncConnections,
    job: AsyncJob[Any],
    deadline: waiting.Deadline,
    read: waiting.ReadEvents | None = None,
) -> AsyncGenerator[JobEvent, None]:
    """Yield each event of a job once, until the job has ended. Raises `JobTimeoutError` at the deadline."""
    store, read, job_id = connections.store, read or waiting.ReadEvents(), job.id
    async with connections.announcements([job_id], deadline) as news:
        while True:
            await retry_unavailable(job.refresh, deadline)
            over = job.done  # read before the events, so that these include the last
            fresh = await retry_unavailable(
                lambda: store.events(job_id, after=read.floor, skip=read.recent), deadline
            )
            for event in fresh:
                read.add(event.sequence)
                yield event
            if over:
                return
            deadline.check(job_id)
            await news.wait()
            read.settle()


# ruff: noqa: ASYNC109  a `timeout` means the same in both kinds of client, unlike that of asyncio.timeout


class AsyncJob(JobHandle[R_co]):
    """A job. Its attributes are its last known state and cost no I/O; `refresh` updates them.

    A `timeout` is in seconds and concerns only the caller: when it passes, `JobTimeoutError` is raised and the job
    continues. 0 checks exactly once; None waits without limit. Cancelling the caller does not affect the job either.
    """

    __slots__ = ("_open",)

    def __init__(self, connect: Callable[[], AsyncConnections], view: JobView, *, created: bool) -> None:
        super().__init__(view, created=created)
        self._open = connect

    async def refresh(self) -> Self:
        """Update the job's state. Raises `JobNotFoundError` if the job has been deleted."""
        self._view = existing_view(self.id, await self._open().store.views([self.id]))
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Return once the job has ended, in whatever state."""
        async with aclosing(finished(self._open(), [self.id], waiting.Deadline(timeout))) as views:
            async for view in views:
                self._view = view
        return self

    async def result(
        self, timeout: float | None = None, *, revision: int | None = None, partial: bool = False
    ) -> R_co:
        """Wait for the job and return its result. The result of a `partial` job names the missing parts.

        The result includes corrections of reviews. `revision=0` returns the result as the fleet read it; another number
        returns that revision. `partial=True` returns the parts that are read when the timeout passes, or those of a job
        that ended without a complete result: `progress` has their number.

        Raises `JobFailedError`, `JobCancelledError` or `JobExpiredError` if the job has no result, `JobErasedError` if
        the result was erased, `InvalidOptionError` for an invalid revision.
        """
        self._check_revision(revision)
        try:
            await self.wait(timeout)
        except JobTimeoutError:
            if not partial:
                raise
            await self.refresh()
        self._check_result(partial=partial)
        store = self._open().store
        ended = await store.outcomes(self.id, read_as=AuditAction.RESULT, revision=revision)
        if len(ended) > _MANY:
            return cast("R_co", await run_blocking(assemble, self.kind, ended))
        return cast("R_co", assemble(self.kind, ended))

    async def save(
        self,
        path: str | os.PathLike[str],
        format: Format | str | None = None,  # noqa: A002  the usual name
        *,
        quality: int = PDF_QUALITY,
        timeout: float | None = None,
        revision: int | None = None,
        result: Result | None = None,
    ) -> Path:
        """Wait for the job, write its result to a file and return the file's path. An existing file is replaced.

        Without a `format` the suffix decides: .txt, .md, .html, .csv (tables), .json, .jsonl (fields), .hocr, .pdf,
        .srt or .vtt. `facsimile` is HTML with the pages' pictures. `quality` is that of the JPEG pictures, 1 to 95.
        If the caller passes a `result`, that is written.
        On asyncio a thread renders and writes; a cancelled call returns only after the file is written.

        Raises the errors of `result`, `InvalidFormatError`, `IdentityConflictError` for a bundle that may have pages of
        several patients, and `OSError` if the file cannot be written; with pictures also `DocumentGoneError`, and
        `ConfigurationError` without pecia[pdf].
        """
        from pecia import saving  # noqa: PLC0415  most callers write no files

        target, connections = Path(path), self._open()
        form = saving.form_of(self.kind, target, format, quality)
        if form.is_binary:
            connections.check_drawing(form)
        content: Any = result or await self.result(timeout, revision=revision)
        if form.is_binary:
            number = content.part.number if isinstance(content, BundledDocument) else None
            write = await connections.drawing(
                self.id, form, quality=quality, revision=revision, document=number
            )
            await run_blocking(write, content, target)
        else:
            await run_blocking(saving.write, content, form, target)
        return target

    async def pages(
        self, *, as_completed: bool = False, timeout: float | None = None
    ) -> AsyncGenerator[Page, None]:
        """Yield the document's pages while the job runs: in order, or each as soon as it is read.

        Failed pages are left out. At the end it raises the same errors as `result` if the job has no result.
        """
        self._check_pages()
        parts = parts_as_they_end(self._open(), self, waiting.Deadline(timeout), in_order=not as_completed)
        async with aclosing(parts) as outcomes:
            async for outcome in outcomes:
                if outcome.content is not None and outcome.stage is Stage.READ:
                    yield Page.model_validate(outcome.content)
        await self.refresh()  # erased parts were left out
        self._check_result()

    async def events(self, timeout: float | None = None) -> AsyncGenerator[JobEvent, None]:
        """Yield all events of the job and its parts, from the first, until the job has ended.

        Events of parts that change at the same time may come out of order of their sequence.
        """
        events = events_as_written(self._open(), self, waiting.Deadline(timeout))
        async with aclosing(events) as opened:
            async for event in opened:
                yield event

    async def hint(self) -> str | None:
        """Return what a queued part of the job needs and no running worker can do, or None.

        None also stands for a job that waits for its turn. Queries the database.
        """
        return (await AsyncJobGroup(self._open, [self]).hints()).get(self.id)

    async def usage(self) -> UsageFigures:
        """Return the usage of all attempts of the job's parts so far, including failed ones. Queries the database."""
        return await self._open().accounts.of_job(self.id)

    async def cancel(self, *, reason: str | None = None) -> bool:
        """Cancel the job; return False if it had ended already. Results of pages that were read stay in the database.

        `reason` is stored with the job's events: write no document content into it.
        """
        connections = self._open()
        cancelled = await connections.transitions.cancel([self.id], reason)
        await connections.bus.announce(cancelled, JobState.CANCELLED)
        await self.refresh()
        return bool(cancelled)

    async def retry(self, parts: Collection[UUID] | None = None) -> Self:
        """Run failed and cancelled parts again, all or those given. Existing results are kept.

        Raises `RetryRefusedError` if the job has not ended or has succeeded.
        """
        connections = self._open()
        await connections.publish(await connections.transitions.retry(self.id, parts))
        await connections.bus.announce([self.id], JobState.QUEUED)
        return await self.refresh()


class AsyncJobGroup(GroupHandle[AsyncJob[R_co]]):
    """A group of jobs, in the order of their tasks. Timeouts work as those of `Job`."""

    def __init__(self, connect: Callable[[], AsyncConnections], jobs: Sequence[AsyncJob[R_co]]) -> None:
        super().__init__(jobs)
        self._open = connect

    async def refresh(self) -> Self:
        """Update the state of all jobs, some hundred in a query. Raises `JobNotFoundError` if one has been deleted."""
        for view in await look(self._open(), list(self._by_id)):
            self._see(view)
        return self

    async def hints(self) -> dict[UUID, str]:
        """Return the `hint` of each job that has one."""
        job_ids = [job.id for job in self._jobs if not job.done]
        return hints_of(await self._open().store.lacking(job_ids)) if job_ids else {}

    async def as_completed(self, timeout: float | None = None) -> AsyncGenerator[AsyncJob[R_co], None]:
        """Yield each job once it has ended, in whatever state. A job that is in the group twice is yielded once."""
        async with aclosing(finished(self._open(), list(self._by_id), waiting.Deadline(timeout))) as views:
            async for view in views:
                yield self._see(view)

    async def wait(self, timeout: float | None = None) -> Self:
        """Return once all jobs have ended, in whatever state."""
        async with aclosing(self.as_completed(timeout)) as jobs:
            async for _ in jobs:
                pass
        return self

    async def results(self, timeout: float | None = None) -> list[R_co]:
        """Wait for all jobs and return their results, in order. Raises the error of the first job without a result."""
        await self.wait(timeout)
        return [await job.result(timeout=0) for job in self._jobs]

    async def cancel(self, *, reason: str | None = None) -> int:
        """Cancel all jobs that have not ended; return their number."""
        connections = self._open()
        cancelled: list[UUID] = []
        for batch in waiting.batches(list(self._by_id), _CANCEL_AT_ONCE):
            cancelled += await connections.transitions.cancel(batch, reason)
        await connections.bus.announce(cancelled, JobState.CANCELLED)
        return len(cancelled)


AnyAsyncJob = AsyncJob[Any]
"""A job whose type of result is unknown to the type checker."""
