"""The client: submits tasks and finds their jobs again."""

# ruff: noqa: ASYNC109  a `timeout` means the same in both kinds of client, unlike that of asyncio.timeout

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload
from uuid import UUID

from pydantic import BaseModel

from pecia import arguments, records, request, submission
from pecia.aio.admin import AsyncAdmin
from pecia.aio.job import AsyncJob, AsyncJobGroup
from pecia.aio.waiting import AsyncBackground, aclosing, run_blocking, sleep, steps
from pecia.arguments import Which
from pecia.errors import JobErasedError, QueueFullError, SubmitError
from pecia.handles import PDF_QUALITY, Accepted, existing_view
from pecia.request import Item, Options, Steps, Submission
from pecia.submission import Outcomes, Tally
from pecia.waiting import RECOUNT_S, Deadline
from pecia_schemas import tracing
from pecia_schemas.events import NoticeType, NoticeTypeName, Webhook
from pecia_schemas.states import DeliveryState, DeliveryStateName, Lane, LaneName

if TYPE_CHECKING:
    from pecia.bundles import Layout
    from pecia.exporting import ExportFormat
    from pecia.saving import Draw
    from pecia_schemas.bundles import Split, SplitChange
    from pecia_schemas.tasks import Task

R = TypeVar("R", bound=BaseModel)


class AsyncClient(AsyncAdmin):
    """A fleet's interface for applications. An `AsyncClient` awaits the calls on which a `Client` blocks.

    A `Client` is safe to share between threads. A forked child may continue to use it, but can submit only if its
    parent had not submitted before the fork. An `AsyncClient` belongs to the loop of its first use, until it is closed;
    elsewhere, also in a forked child, it raises `WrongLoopError`. It runs no SQL in threads; the loop's threads read
    and hash files.

    Without arguments it reads `PECIA_*` from the environment and `.env`, or else finds the fleet that `pecia up` runs
    on this machine. Raises `ConfigurationError` if none runs. It connects at its first use.
    `Client("https://…", api_key=…)` reaches a fleet through its gateway and does not access the stores.
    """

    async def submit(
        self,
        task: Task[R],
        *,
        priority: Lane | LaneName = Lane.NORMAL,
        idempotency_key: str | None = None,
        webhook: Webhook | str | None = None,
        metadata: Mapping[str, str] | None = None,
        label: str | None = None,
        not_before: datetime | timedelta | None = None,
        expires: datetime | timedelta | None = None,
        block: bool = False,
        timeout: float | None = None,
    ) -> AsyncJob[R]:
        """Submit one task. Return its job as soon as Postgres has stored it.

        A repeated `idempotency_key` returns the existing job, with `created` False; with another task it raises
        `IdempotencyConflictError`. `not_before` and `expires` are points in time or distances from now. If Redis is
        unavailable, the job is accepted too, and starts once the fleet notices it. If the lane is full
        (`PECIA_MAX_BACKLOG`), `block` waits for capacity: at most `timeout` seconds, or without limit if None.

        Raises `InvalidSourceError` or `InvalidOptionError` before anything is written, `QueueFullError` if the lane is
        full, `UnavailableError` if Postgres or the payload store does not answer. A call that is interrupted or
        cancelled may have accepted the job: the same call with the same `idempotency_key` finds it.
        """
        options = self._options(
            priority=priority, metadata=metadata, webhook=webhook, not_before=not_before, expires=expires
        )
        with submission.submitting(options.priority) as span:
            own = Submission(task, key=idempotency_key, label=label)
            item = Item(0, own, traceparent=span.traceparent)
            accept = await self._prepared([item], options, Deadline(timeout if block else 0))
            ((_, outcome),) = await accept()
            if isinstance(outcome, SubmitError):
                raise outcome
            submission.record_outcome(span, outcome)
        return self._job_of(outcome)

    async def submit_many(
        self,
        tasks: Iterable[Task[R] | Submission[R]] | AsyncIterable[Task[R] | Submission[R]],
        *,
        priority: Lane | LaneName = Lane.NORMAL,
        batch: str | None = None,
        idempotency_prefix: str | None = None,
        idempotency_keys: Iterable[str] | None = None,
        webhook: Webhook | str | None = None,
        metadata: Mapping[str, str] | None = None,
        not_before: datetime | timedelta | None = None,
        expires: datetime | timedelta | None = None,
        block: bool = False,
        timeout: float | None = None,
    ) -> AsyncJobGroup[R]:
        """Submit many tasks and return their jobs, in order. A generator is consumed in steps of bounded memory.

        A refused task does not affect the others: at the end, `SubmitManyError` has the jobs of the accepted tasks, and
        the error of each refused one. `UnavailableError` and `QueueFullError` end the call at once; their `accepted`
        and `failures` have the outcomes so far. With an `idempotency_prefix`, the n-th task gets the key `prefix/n`,
        from 0: the same call can be repeated after an interruption, or once the refused tasks are corrected.
        `idempotency_keys` gives each task its own key, in their order. A `Submission` has options of one task:
        metadata, priority, key, label.

        The jobs form a batch, by which they are found again (`group.batch`). `batch` is its name; an existing batch of
        that name is extended. The name is stored in plain text: write no document content into it.

        With `block` the call waits whenever the lane is full, each time at most `timeout` seconds, or without limit.
        """
        options = self._options(
            priority=priority, metadata=metadata, webhook=webhook, not_before=not_before, expires=expires
        )
        arguments.checked_batch(batch)
        tally: Tally[AsyncJob[R], AsyncJobGroup[R]] = Tally(self._job_of, self.group)
        taken = steps(tasks, Steps(idempotency_prefix, idempotency_keys))
        with tally.interrupted(), tracing.first("submit_many"):
            async with aclosing(taken), AsyncBackground(tally.add) as step:
                async for some in taken:
                    if options.batch is None:
                        opened = await self._open().store.open_batch(batch)
                        options = options.model_copy(update={"batch": opened.id})
                    for items, of_lane in request.by_lane(some, options):
                        if self._open().backlog.limit(of_lane.priority):
                            await step.settle()  # jobs that are being written count too
                        room_by = Deadline(timeout if block else 0)
                        with ExitStack() as spans:
                            traced, noted = submission.traced(items, of_lane.priority, spans)
                            accept = await self._prepared(traced, of_lane, room_by)
                            await step.settle()
                            step.start(accept, noted, spans.pop_all())
                        del items, traced
                    del some  # its documents are stored: release them before the next step
        return tally.result()

    @overload
    async def job(self, job_id: UUID | str) -> AsyncJob[Any]: ...
    @overload
    async def job(self, job_id: UUID | str, task: type[Task[R]]) -> AsyncJob[R]: ...
    async def job(self, job_id: UUID | str, task: type[Task[Any]] | None = None) -> AsyncJob[Any]:
        """Return the job with this id, or the only job whose id begins with this text.

        If `task` is its type of task, type checkers know the type of the job's result.

        Raises `JobNotFoundError` if no such job exists, or if its task has another type.
        """
        store = self._open().store
        if begins := arguments.prefix(job_id):
            view = arguments.only(
                await store.page(records.Listing(prefix=begins), before=None, size=2), begins
            )
            existing_view(view.id, {view.id: view}, task)
        else:
            identifier = arguments.id_of(job_id)
            view = existing_view(identifier, await store.views([identifier]), task)
        return AsyncJob(self._open, view, created=False)

    def jobs(
        self, *, limit: int | None = None, page_size: int = 100, **which: Unpack[Which]
    ) -> AsyncGenerator[AsyncJob[Any], None]:
        """Yield jobs, newest first; they are read page by page during iteration.

        Filters: jobs of a `batch`, in a `state`, with a page of a `verdict`, of a `kind`, with all pairs of `metadata`,
        submitted `since` a point in time or a duration ago. Several filters must all match.
        Raises `BatchNotFoundError` at the start of the iteration.
        """
        arguments.check_pages(limit, page_size)
        return self._pages(which, page_size, limit)

    def pages(
        self, *, limit: int | None = None, page_size: int = 100, **which: Unpack[Which]
    ) -> AsyncGenerator[records.FoundPage, None]:
        """Yield the pages with this `verdict`, or with one of these, those of the newest job first.

        Without a verdict: the pages that need a review, that is, all but `ok` and `blank`. The other filters select
        jobs, as in `jobs`. Erased pages are left out. Bundles with documents whose patient is in conflict come first;
        they are not pages, but have the verdict `review`.
        """
        arguments.check_pages(limit, page_size)
        return self._found_pages(which, page_size, limit)

    async def correct(
        self, job: AsyncJob[Any] | UUID | str, change: SplitChange, *, revision: int | None = None
    ) -> Split:
        """Correct how a bundle is split into documents. Return the split after the new revision.

        `revision` is the revision of the split that the caller has read; None accepts any.

        Raises `IdentityConflictError` if pages of two patients would form one document and the change does not state
        that they are the same patient (`same_patient`), `InvalidOptionError` for an invalid change, `JobError` if the
        split has another revision.
        """
        job_id = (await self.job(arguments.id_of(job))).id
        return await self._open().reviews.correct(job_id, change, revision)

    async def batch(self, reference: str) -> records.Batch:
        """Return the batch with this name or id, or whose id begins with this text. Raises `BatchNotFoundError`."""
        return await self._open().store.batch(reference)

    async def counts(self, **which: Unpack[Which]) -> records.Counts:
        """Return the numbers of jobs and parts by state, of the jobs that `jobs` selects with these filters."""
        return await self._open().store.counts(await self._listing(which))

    async def export(
        self,
        to: str | os.PathLike[str],
        *,
        format: ExportFormat | str | None = None,  # noqa: A002  as `Job.save` has it
        layout: Layout | None = None,
        progress: Callable[[records.Exported], object] | None = None,
        **which: Unpack[Which],
    ) -> records.Exported:
        """Write the results of jobs to files in a folder or below `s3://bucket/prefix`, with a manifest.

        Formats: `jsonl`, `parquet` (`pecia[parquet]`), and `markdown`, `csv`, `hocr`, `pdf`, `fhir` with a file for
        each job. With a `pecia.bundles.Layout`, each document of a bundle gets its own file, as PDF unless `format` is
        given. The filters are those of `jobs`. Results that an earlier run wrote to the same place are skipped, so a
        repeated run continues an interrupted one. Jobs that have not ended are left to a later run. `progress` is
        called after each job with the counts so far.

        Raises `BatchNotFoundError`, `InvalidFormatError`, `ConfigurationError` if a package is not installed,
        `UnavailableError` if the place cannot be written, `DocumentGoneError` for a PDF. On asyncio, a thread renders
        and writes the files.
        """
        from pecia.exporting import Exporter  # noqa: PLC0415  most callers write no files

        connections = self._open()
        store = connections.store
        exporter = await run_blocking(Exporter, to, format, layout)
        if exporter.draws:
            connections.check_drawing(exporter.draws)
        async with aclosing(self.jobs(page_size=500, **which)) as jobs:
            async for job in jobs:
                if exporter.wants(job):
                    ended = None
                    if job.state.has_result and job.erased_at is None:
                        with suppress(JobErasedError):
                            ended = await store.outcomes(job.id, read_as=records.AuditAction.RESULT)
                    ready = await run_blocking(exporter.prepare, job, ended)
                    draws: dict[int | None, Draw] = {}
                    if form := exporter.draws:
                        for number in ready.drawn:
                            draws[number] = await connections.drawing(
                                job.id, form, quality=PDF_QUALITY, revision=None, document=number
                            )
                    await run_blocking(exporter.add, ready, draws)
                if progress is not None:
                    progress(exporter.exported)
        return await run_blocking(exporter.finish)

    async def add_endpoint(
        self, url: str, *, events: Iterable[NoticeType | NoticeTypeName] | None = None
    ) -> records.Endpoint:
        """Register a receiver for notices of all later jobs. Return it with its secret, which only this call returns.

        `events` are the notices to send; None: the ends of jobs. Raises `InvalidOptionError` for an invalid URL or
        event, `EndpointLimitError` if the tenant has the maximum number of endpoints.
        """
        return await self._open().endpoints.add(arguments.endpoint(url, events))

    async def endpoints(self) -> list[records.Endpoint]:
        """Return the registered endpoints and their health, the oldest first, without their secrets."""
        return await self._open().endpoints.all()

    async def remove_endpoint(self, endpoint: records.Endpoint | UUID | str) -> None:
        """Delete an endpoint and its deliveries. Raises `InvalidOptionError` if the endpoint does not exist."""
        await self._open().endpoints.remove(arguments.endpoint_id(endpoint))

    async def rotate_endpoint(
        self, endpoint: records.Endpoint | UUID | str, *, overlap: timedelta = timedelta(days=1)
    ) -> records.Endpoint:
        """Give an endpoint a new secret and return it. For `overlap`, notices are signed with both secrets."""
        return await self._open().endpoints.rotate(
            arguments.endpoint_id(endpoint), arguments.checked_overlap(overlap)
        )

    async def test_endpoint(self, endpoint: records.Endpoint | UUID | str) -> records.Delivery:
        """Send a `webhook.test` to an endpoint now, even if it is paused or disabled. Success enables the endpoint.

        Call `delivery` for the outcome.
        """
        connections = self._open()
        return await connections.deliveries.one(
            await connections.endpoints.test(arguments.endpoint_id(endpoint))
        )

    async def deliveries(
        self,
        *,
        job: AsyncJob[Any] | UUID | str | None = None,
        endpoint: records.Endpoint | UUID | str | None = None,
        state: DeliveryState | DeliveryStateName | None = None,
        since: datetime | timedelta | None = None,
        limit: int | None = None,
    ) -> list[records.Delivery]:
        """Return the deliveries of webhooks, done and pending, with all their attempts, newest first.

        A gateway returns at most the latest 500, and raises `InvalidOptionError` for a higher `limit`.
        """
        arguments.check_pages(limit)
        return await self._open().deliveries.latest(
            job_id=None if job is None else arguments.id_of(job),
            endpoint_id=None if endpoint is None else arguments.endpoint_id(endpoint),
            state=None if state is None else request.one_of(DeliveryState, state, "A delivery's state"),
            since=arguments.past(since),
            limit=limit,
        )

    async def delivery(self, delivery: records.Delivery | UUID | str) -> records.Delivery:
        """Return the current state of a delivery. Raises `InvalidOptionError` if the delivery does not exist."""
        return await self._open().deliveries.one(arguments.delivery_id(delivery))

    async def replay(self, deliveries: Iterable[records.Delivery | UUID | str]) -> None:
        """Send ended deliveries again, each under its former `webhook-id`, with the full number of attempts.

        Raises `InvalidOptionError` for a delivery that has not ended, before any is sent.
        """
        await self._open().deliveries.replay([arguments.delivery_id(one) for one in deliveries])

    def group(self, jobs: Iterable[AsyncJob[R]]) -> AsyncJobGroup[R]:
        """Return the jobs as a group, to wait for or to cancel together."""
        return AsyncJobGroup(self._open, list(jobs))

    def _options(self, **options: Any) -> Options:
        return request.options(
            **options, client=self._open().client, fair_by=self._settings.fair_by, tenant=self._open().tenant
        )

    async def _prepared(
        self, items: Sequence[Item], options: Options, room_by: Deadline
    ) -> Callable[[], Awaitable[Outcomes]]:
        """Return what hands over a step, once there is room. Raises `QueueFullError` at the deadline."""
        lane = options.priority
        while True:
            connections = self._open()
            backlog = connections.backlog
            if (limit := backlog.limit(lane)) and backlog.is_stale(lane):
                began = time.monotonic()
                load = await connections.store.load(lane, limit)
                backlog.saw(lane, load, took=time.monotonic() - began)
            refusal, rest = backlog.refusal(lane), RECOUNT_S
            if refusal is None:
                try:
                    return await connections.prepared(items, options)
                except QueueFullError as error:  # from a gateway; the retry sends the documents again
                    refusal, rest = error, max(rest, error.retry_after)
            if not (pause := room_by.within(rest)):
                raise refusal
            await sleep(pause)

    def _job_of(self, accepted: Accepted) -> AsyncJob[Any]:
        return AsyncJob(self._open, accepted.view, created=accepted.created)

    async def _listing(self, which: Which) -> records.Listing:
        """Return the listing that the filters describe. Raises `BatchNotFoundError`, `InvalidOptionError`."""
        batch = which.get("batch")
        listing = arguments.listing(which)
        if isinstance(batch, str | UUID):
            batch = await self._open().store.batch(str(batch))
        return replace(listing, batch=batch.id if isinstance(batch, records.Batch) else batch)

    async def _pages(self, which: Which, size: int, limit: int | None) -> AsyncGenerator[AsyncJob[Any], None]:
        listing = await self._listing(which)
        before: UUID | None = None
        left = sys.maxsize if limit is None else limit
        while left and (page := await self._open().store.page(listing, before=before, size=min(size, left))):
            for view in page:
                yield AsyncJob(self._open, view, created=False)
            if len(page) < size:
                return
            before, left = page[-1].id, left - size

    async def _found_pages(
        self, which: Which, size: int, limit: int | None
    ) -> AsyncGenerator[records.FoundPage, None]:
        verdicts = arguments.verdicts(which.get("verdict", ()))
        listing = replace(await self._listing(which), verdicts=())
        last: records.FoundPage | None = None
        left = sys.maxsize if limit is None else limit
        while left and (
            pages := await self._open().store.found_pages(verdicts, listing, after=last, size=min(size, left))
        ):
            for page in pages:
                yield page
            last, left = pages[-1], left - len(pages)
