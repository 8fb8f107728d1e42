"""Handles of jobs: their last known state, waiting, following, and the calls about them."""

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
"""Pages: from there on putting them together takes longer than a thread does."""


async def finished(
    connections: AsyncConnections, job_ids: Sequence[UUID], deadline: waiting.Deadline
) -> AsyncGenerator[JobView, None]:
    """Yield each job once it is over, as they finish.

    Raises `JobTimeoutError` at the deadline and `JobNotFoundError` if one of them does not exist.
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
    """Return what it finds, looking again while Postgres restarts, for half a minute or to the deadline.

    Raises `UnavailableError` when that is over.
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
    """Return the jobs as they are now. Raises `JobNotFoundError` if one of them does not exist."""
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
    """Yield the parts of a job as they end, in the document's order or in that of ending; not those `read` before.

    Raises `JobTimeoutError` at the deadline.
    """
    store, read, job_id = connections.store, read or waiting.ReadParts(), job.id
    async with connections.announcements([job_id], deadline) as news:
        while True:
            await retry_unavailable(job.refresh, deadline)
            over = job.done  # at this moment: what ended before it is among the outcomes
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
    """Yield each event of a job once, until the job is over. Raises `JobTimeoutError` at the deadline."""
    store, read, job_id = connections.store, read or waiting.ReadEvents(), job.id
    async with connections.announcements([job_id], deadline) as news:
        while True:
            await retry_unavailable(job.refresh, deadline)
            over = job.done  # at this moment: the event of the end is read next
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


# ruff: noqa: ASYNC109  a `timeout` means to both kinds of client the same, which asyncio.timeout does not


class AsyncJob(JobHandle[R_co]):
    """A job. Its attributes are its last known state and cost no I/O; `refresh` looks again.

    A `timeout` is in seconds and the caller's alone: when it passes, `JobTimeoutError` is raised and the job goes on.
    0 looks exactly once, None waits for as long as it takes. A caller that is cancelled leaves the job alone, too.
    """

    __slots__ = ("_open",)

    def __init__(self, connect: Callable[[], AsyncConnections], view: JobView, *, created: bool) -> None:
        super().__init__(view, created=created)
        self._open = connect

    async def refresh(self) -> Self:
        """Look again. Raises `JobNotFoundError` if the job has been deleted."""
        self._view = existing_view(self.id, await self._open().store.views([self.id]))
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Return once the job is over, well or badly."""
        async with aclosing(finished(self._open(), [self.id], waiting.Deadline(timeout))) as views:
            async for view in views:
                self._view = view
        return self

    async def result(
        self, timeout: float | None = None, *, revision: int | None = None, partial: bool = False
    ) -> R_co:
        """Wait for the job and return its result; that of a `partial` job names the missing parts.

        What people corrected in a review is in it. `revision=0` is the result as it was read, another number as it
        was then. `partial=True` returns what has been read once the timeout has passed, or of a job that ended without
        a result: `progress` says how much there is.

        Raises `JobFailedError`, `JobCancelledError` or `JobExpiredError` if there is none, `JobErasedError` if it was
        erased, `InvalidOptionError` for a revision that is no number from 0.
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
        format: Format | str | None = None,  # noqa: A002  what everybody calls it
        *,
        quality: int = PDF_QUALITY,
        timeout: float | None = None,
        revision: int | None = None,
        result: Result | None = None,
    ) -> Path:
        """Wait for the job, write its result to a file and return the file's path; a file that is there is replaced.

        Without a `format` the suffix says which: .txt, .md, .html, .csv (tables), .json, .jsonl (fields), .hocr, .pdf,
        .srt or .vtt.
        `facsimile` is HTML with the pages' pictures. `quality` is that of the JPEG pictures, 1 to 95. A `result` that
        the caller has is written as it is.
        On asyncio a thread draws and writes; a caller that is cancelled meanwhile goes on once the file is written.

        Raises what `result` raises, `InvalidFormatError`, `IdentityConflictError` for a bundle that is not surely of
        one patient, and `OSError` if the file cannot be written; with pictures also `DocumentGoneError`, and
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

        Pages that failed are left out. Ends as `result` does: it raises if the job has no result.
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
        """Yield every event of the job and its parts, from the first, until the job is over.

        Events of parts that move at the same time may come out of the order of their sequence.
        """
        events = events_as_written(self._open(), self, waiting.Deadline(timeout))
        async with aclosing(events) as opened:
            async for event in opened:
                yield event

    async def hint(self) -> str | None:
        """Say why the job cannot go on as the fleet is, if no running worker can do what it waits for.

        Looks into the database; None for a job that only waits for its turn.
        """
        return (await AsyncJobGroup(self._open, [self]).hints()).get(self.id)

    async def usage(self) -> UsageFigures:
        """Return what its parts have taken so far, attempts that failed included; looks into the database."""
        return await self._open().accounts.of_job(self.id)

    async def cancel(self, *, reason: str | None = None) -> bool:
        """End the job now; return False if it was over already. Pages that are read stay in the database.

        `reason` is stored with the job's events: write nothing of the document into it.
        """
        connections = self._open()
        cancelled = await connections.transitions.cancel([self.id], reason)
        await connections.bus.announce(cancelled, JobState.CANCELLED)
        await self.refresh()
        return bool(cancelled)

    async def retry(self, parts: Collection[UUID] | None = None) -> Self:
        """Run what failed or was cancelled again, or those of it; what has a result keeps it.

        Raises `RetryRefusedError` while the job is at work or if it has succeeded.
        """
        connections = self._open()
        await connections.publish(await connections.transitions.retry(self.id, parts))
        await connections.bus.announce([self.id], JobState.QUEUED)
        return await self.refresh()


class AsyncJobGroup(GroupHandle[AsyncJob[R_co]]):
    """Jobs that were submitted together, in the order of their tasks. Timeouts are those of a job."""

    def __init__(self, connect: Callable[[], AsyncConnections], jobs: Sequence[AsyncJob[R_co]]) -> None:
        super().__init__(jobs)
        self._open = connect

    async def refresh(self) -> Self:
        """Look at all jobs again, some hundred in a query. Raises `JobNotFoundError` if one has been deleted."""
        for view in await look(self._open(), list(self._by_id)):
            self._see(view)
        return self

    async def hints(self) -> dict[UUID, str]:
        """Return what `hint` says of each job of which it says something."""
        job_ids = [job.id for job in self._jobs if not job.done]
        return hints_of(await self._open().store.lacking(job_ids)) if job_ids else {}

    async def as_completed(self, timeout: float | None = None) -> AsyncGenerator[AsyncJob[R_co], None]:
        """Yield each job once it is over, well or badly. A job that is twice in the group comes once."""
        async with aclosing(finished(self._open(), list(self._by_id), waiting.Deadline(timeout))) as views:
            async for view in views:
                yield self._see(view)

    async def wait(self, timeout: float | None = None) -> Self:
        """Return once all jobs are over, well or badly."""
        async with aclosing(self.as_completed(timeout)) as jobs:
            async for _ in jobs:
                pass
        return self

    async def results(self, timeout: float | None = None) -> list[R_co]:
        """Wait for all and return their results, in order. Raises what the first job without one raises."""
        await self.wait(timeout)
        return [await job.result(timeout=0) for job in self._jobs]

    async def cancel(self, *, reason: str | None = None) -> int:
        """End all jobs that are not over; return how many that were."""
        connections = self._open()
        cancelled: list[UUID] = []
        for batch in waiting.batches(list(self._by_id), _CANCEL_AT_ONCE):
            cancelled += await connections.transitions.cancel(batch, reason)
        await connections.bus.announce(cancelled, JobState.CANCELLED)
        return len(cancelled)


AnyAsyncJob = AsyncJob[Any]
"""A job whose kind of result is not known to the type checker."""
