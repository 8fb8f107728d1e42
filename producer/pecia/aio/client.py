"""The client: hands documents over, and finds their jobs again."""

# ruff: noqa: ASYNC109  a `timeout` means to both kinds of client the same, which asyncio.timeout does not

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
    """A fleet, as an application sees it: by a `Client`, or by an `AsyncClient` with `await` before what does I/O.

    A `Client` is safe to share between threads. A forked child may go on using it, but can submit only if its parent
    had not submitted before the fork. An `AsyncClient` belongs to the loop in which it is first used, until it is
    closed; elsewhere, also in a forked child, it raises `WrongLoopError`. None of its statements runs in a thread;
    files are read and hashed in the loop's.

    Without arguments it reads `PECIA_*` from the environment and `.env`; without those it finds the fleet that
    `pecia up` runs on this machine. Raises `ConfigurationError` if there is none. Connects when it is first used.
    `Client("https://…", api_key=…)` reaches a fleet through its gateway, and needs none of its stores.
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
        """Hand over one task and return its job, as soon as it is safe in Postgres.

        A repeated `idempotency_key` returns the job that is there, with `created` False; with another task it raises
        `IdempotencyConflictError`. `not_before` and `expires` are points in time or distances from now. With
        Redis away the job is accepted all the same, and starts once the fleet has noticed. If the lane is full
        (`PECIA_MAX_BACKLOG`), `block` waits for room: `timeout` seconds at most, None: as long as it takes.

        Raises `InvalidSourceError` or `InvalidOptionError` before anything is written, `QueueFullError` if there is no
        room, `UnavailableError` if Postgres or the payload store does not answer. Interrupted or cancelled before
        it returns, it may have accepted the job: with an `idempotency_key` the same call finds it.
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
        """Hand over many tasks and return their jobs, in order. Of a generator one step is held at a time.

        A task that is refused leaves the others alone: when all are through, `SubmitManyError` has the jobs of the
        others, and why each was refused. `UnavailableError` and `QueueFullError` end the call at once; their
        `accepted` and `failures` say how far it came. With an `idempotency_prefix` the n-th task gets the key
        `prefix/n`, from 0: a run that broke off can be repeated as it was, and one with mistakes once they are mended.
        `idempotency_keys` gives each task a key of its own, in their order, whatever stands before it. A `Submission`
        has the options of one task alone: metadata, priority, key, label.

        The jobs are a batch, by which they are found again (`group.batch`). `batch` is its name; one that there is
        already is added to. The name is stored in plain text: write nothing of a document into it.

        With `block` it waits whenever the lane is full, for `timeout` seconds at a time; None: as long as it takes.
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
                            await step.settle()  # the step being written takes up room
                        room_by = Deadline(timeout if block else 0)
                        with ExitStack() as spans:
                            traced, noted = submission.traced(items, of_lane.priority, spans)
                            accept = await self._prepared(traced, of_lane, room_by)
                            await step.settle()
                            step.start(accept, noted, spans.pop_all())
                        del items, traced
                    del some  # its documents are stored: the next are taken now
        return tally.result()

    @overload
    async def job(self, job_id: UUID | str) -> AsyncJob[Any]: ...
    @overload
    async def job(self, job_id: UUID | str, task: type[Task[R]]) -> AsyncJob[R]: ...
    async def job(self, job_id: UUID | str, task: type[Task[Any]] | None = None) -> AsyncJob[Any]:
        """Return the job of this id, or whose id alone begins so.

        With its type of task, the handle knows the type of its result.

        Raises `JobNotFoundError` if there is no such job, or none of that type.
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
        """Yield jobs, newest first, read page by page as they are asked for.

        Which: those of a `batch`, in a `state`, with a page of a `verdict`, of a `kind`, with all pairs of `metadata`,
        submitted `since` a point in time or so long ago; of several, all must apply.
        Raises `BatchNotFoundError` once they are asked for.
        """
        arguments.check_pages(limit, page_size)
        return self._pages(which, page_size, limit)

    def pages(
        self, *, limit: int | None = None, page_size: int = 100, **which: Unpack[Which]
    ) -> AsyncGenerator[records.FoundPage, None]:
        """Yield the pages that were read with this `verdict`, or one of these, the newest job first.

        Without a verdict: those that a person should look at, which are all but `ok` and `blank`. The others say of
        which jobs, as in `jobs`. What was erased is left out. Bundles with documents whose patient is in conflict,
        which are no pages but of the verdict `review`, come before all.
        """
        arguments.check_pages(limit, page_size)
        return self._found_pages(which, page_size, limit)

    async def correct(
        self, job: AsyncJob[Any] | UUID | str, change: SplitChange, *, revision: int | None = None
    ) -> Split:
        """Correct how a bundle is split, as one more revision of its result, and return the split as it is then.

        `revision` is that of the split which was looked at; None: any.

        Raises `IdentityConflictError` if pages of two patients would be one document and the change does not decide
        that they are of one (`same_patient`), `InvalidOptionError` if it cannot be meant, `JobError` if the split has
        another revision.
        """
        job_id = (await self.job(arguments.id_of(job))).id
        return await self._open().reviews.correct(job_id, change, revision)

    async def batch(self, reference: str) -> records.Batch:
        """Return the batch of this name or id, or whose id alone begins so. Raises `BatchNotFoundError`."""
        return await self._open().store.batch(reference)

    async def counts(self, **which: Unpack[Which]) -> records.Counts:
        """Return how many jobs are in each state, and how far they are; which, as in `jobs`."""
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
        each job. A `pecia.bundles.Layout` has each document of a bundle written on its own, as PDF if nothing else is
        said. Which jobs, as in `jobs`. What an earlier run has written to the same place is passed over: a run that
        broke off goes on where it was. Jobs that are not over are left to a later one. `progress` is called after each
        job with what was done so far.

        Raises `BatchNotFoundError`, `InvalidFormatError`, `ConfigurationError` if something is not installed,
        `UnavailableError` if the place cannot be written, `DocumentGoneError` for a PDF. On asyncio a thread renders
        and writes.
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
        """Register a receiver for notices of every job from now on; return it with its secret, which is shown once.

        `events` are the notices it wants; None: how jobs end. Raises `InvalidOptionError` if that cannot be meant,
        `EndpointLimitError` if there are as many as may be.
        """
        return await self._open().endpoints.add(arguments.endpoint(url, events))

    async def endpoints(self) -> list[records.Endpoint]:
        """Return the registered endpoints and how each does, the oldest first, without their secrets."""
        return await self._open().endpoints.all()

    async def remove_endpoint(self, endpoint: records.Endpoint | UUID | str) -> None:
        """Forget an endpoint and its deliveries. Raises `InvalidOptionError` if there is no such endpoint."""
        await self._open().endpoints.remove(arguments.endpoint_id(endpoint))

    async def rotate_endpoint(
        self, endpoint: records.Endpoint | UUID | str, *, overlap: timedelta = timedelta(days=1)
    ) -> records.Endpoint:
        """Give an endpoint a fresh secret and return it with that; for `overlap` notices verify with either."""
        return await self._open().endpoints.rotate(
            arguments.endpoint_id(endpoint), arguments.checked_overlap(overlap)
        )

    async def test_endpoint(self, endpoint: records.Endpoint | UUID | str) -> records.Delivery:
        """Have a `webhook.test` sent to an endpoint now, also to a paused or disabled one.

        One that takes it is notified of jobs again. Look at `delivery` for what came of it.
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
        """Return the deliveries of webhooks, done and due, with every try, newest first.

        Through a gateway the latest 500: `InvalidOptionError` for a `limit` above.
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
        """Return a delivery as it is now. Raises `InvalidOptionError` if there is no such delivery."""
        return await self._open().deliveries.one(arguments.delivery_id(delivery))

    async def replay(self, deliveries: Iterable[records.Delivery | UUID | str]) -> None:
        """Send deliveries that are over once more, each under its former `webhook-id`, with all tries before it.

        Raises `InvalidOptionError` for a delivery that is not over, before anything is done.
        """
        await self._open().deliveries.replay([arguments.delivery_id(one) for one in deliveries])

    def group(self, jobs: Iterable[AsyncJob[R]]) -> AsyncJobGroup[R]:
        """Return the jobs as one, to wait for or to cancel together."""
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
                except QueueFullError as error:  # a gateway's, to which the documents are sent again
                    refusal, rest = error, max(rest, error.retry_after)
            if not (pause := room_by.within(rest)):
                raise refusal
            await sleep(pause)

    def _job_of(self, accepted: Accepted) -> AsyncJob[Any]:
        return AsyncJob(self._open, accepted.view, created=accepted.created)

    async def _listing(self, which: Which) -> records.Listing:
        """Return which jobs are meant. Raises `BatchNotFoundError`, `InvalidOptionError`."""
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
