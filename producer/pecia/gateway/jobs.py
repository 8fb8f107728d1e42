"""Jobs over HTTP: their states, results and ends."""

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path as FilePath
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import FileResponse, Response

from pecia import arguments, formats
from pecia.aio.job import AsyncJob, events_as_written, parts_as_they_end
from pecia.arguments import Which
from pecia.errors import InvalidOptionError
from pecia.formats import Format
from pecia.gateway import bodies, sending
from pecia.gateway.bounds import HeldResponse
from pecia.gateway.identity import Administrator, Bearer, Reader, Reviewer, Submitter, bearers_of
from pecia.gateway.problems import ProblemError, documented
from pecia.handles import PDF_QUALITY
from pecia.records import AuditAction, Batch, Counts, Erasure, FoundPage, Listing, PartOutcome, UsageFigures
from pecia.request import Moment
from pecia.waiting import FETCH, Deadline, ReadEvents, ReadParts
from pecia_schemas import storable
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Split
from pecia_schemas.events import JobEvent
from pecia_schemas.results import BundledDocument, Verdict, plain
from pecia_schemas.running import Lack
from pecia_schemas.states import JobState
from pecia_schemas.threads import finish_in_thread

router = APIRouter(tags=["jobs"])

_LONGEST_WAIT_S: Final = 60
_MOST_LISTED: Final = 500
_MOST_BATCHES: Final = 50
_MOST_DOUBTS: Final = 1_000
_MEDIA_TYPES: Final = {
    Format.TEXT: "text/plain",
    Format.MARKDOWN: "text/markdown",
    Format.HTML: "text/html",
    Format.CSV: "text/csv",
    Format.JSON: "application/json",
    Format.FIELDS: "application/jsonl",
    Format.HOCR: "application/xhtml+xml",
    Format.PDF: "application/pdf",
    Format.FACSIMILE: "text/html",
    Format.FHIR: "application/fhir+json",
    Format.SRT: "application/x-subrip",
    Format.VTT: "text/vtt",
}
_NEVER: Final = datetime.fromtimestamp(0, UTC)
_TEXT: Final = {"schema": {"type": "string"}}
_STREAM: Final[dict[int | str, Any]] = {200: {"content": {sending.MEDIA_TYPE: _TEXT}}}
_WRITTEN: Final[dict[int | str, Any]] = {
    200: {
        "description": "The result in the requested format",
        "content": dict.fromkeys(_MEDIA_TYPES.values(), _TEXT)
        | {"application/json": {"schema": {"type": "object"}}},
    }
}

LastEventId = Annotated[
    str | None, Header(description="To resume an interrupted stream: the last `id` that arrived.")
]
AsCompleted = Annotated[bool, Query(description="In a stream: send each page as soon as it is read.")]
Metadata = Annotated[
    list[Annotated[str, Query(pattern=r"^[^=]+=")]],
    Query(
        default_factory=list,
        max_length=64,
        description="Only jobs with this `key=value`; of several, with all.",
    ),
]
Since = Annotated[
    Moment | None, Query(description="Only jobs submitted since this time, or in this duration.")
]
States = Annotated[list[JobState], Query(default_factory=list, alias="state", max_length=len(JobState))]
InBatch = Annotated[
    str | None,
    Query(
        max_length=storable.BATCH,
        description="Only jobs of this batch: its name, its id or the beginning of its id.",
    ),
]
Prefix = Annotated[
    str | None, Query(pattern=r"^[0-9a-fA-F-]{4,36}$", description="Only jobs whose ids begin so.")
]
Reference = Annotated[str, Path(min_length=1, max_length=storable.BATCH)]
Verdicts = Annotated[list[Verdict], Query(default_factory=list, alias="verdict", max_length=len(Verdict))]
Ids = Annotated[
    list[UUID],
    Query(
        default_factory=list,
        alias="id",
        max_length=_MOST_LISTED,
        description="Only these jobs, if they exist; excludes all other filters.",
    ),
]
After = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]{1,9}(:conflict)?$",
        description="Last entry of the page before, as `JOB:NUMBER`, for a bundle in conflict `JOB:NUMBER:conflict`.",
    ),
]
Before = Annotated[UUID | None, Query(description="`next` of the previous answer.")]
RevisionNumber = Annotated[
    int | None,
    Query(ge=0, lt=2**31, description="The result at this revision; 0: as it was read. Default: the latest."),
]
Part = Annotated[UUID | None, Query(description="Only the job of this part.")]
Limit = Annotated[int, Query(ge=1, le=_MOST_LISTED)]
Wait = Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S, description="Seconds to wait for the job's end.")]


def _which(  # noqa: PLR0917  FastAPI names them
    states: States,
    verdicts: Verdicts,
    metadata: Metadata,
    kind: str | None = None,
    since: Since = None,
    part: Part = None,
) -> Which:
    return {
        "state": states,
        "verdict": verdicts,
        "kind": kind,
        "metadata": {key: value for key, _, value in (pair.partition("=") for pair in metadata)},
        "since": since,
        "part": part,
    }


Chosen = Annotated[Which, Depends(_which)]


@router.get("/jobs", responses=documented(404))
async def list_jobs(  # noqa: PLR0917  FastAPI names them
    bearer: Reader,
    ids: Ids,
    which: Chosen,
    batch: InBatch = None,
    prefix: Prefix = None,
    before: Before = None,
    limit: Limit = 100,
) -> bodies.Jobs:
    """List jobs, newest first."""
    store = bearer.client.connections.store
    if ids:
        if any(one not in (None, [], {}) for one in (*which.values(), batch, prefix, before)):
            raise InvalidOptionError("`id` names jobs: use it without other filters.")
        known = await store.views(ids)
        found = [bodies.Job.seen(known[one]) for one in dict.fromkeys(ids) if one in known]
        return bodies.Jobs(jobs=found, next=None)
    begins = None if prefix is None else arguments.prefix(prefix) or prefix.lower()
    listing = replace(await _listing(bearer, batch, which), prefix=begins or "")
    views = await store.page(listing, before=before, size=limit)
    following = views[-1].id if len(views) == limit else None
    return bodies.Jobs(jobs=[bodies.Job.seen(view) for view in views], next=following)


@router.get("/jobs/{job_id}", responses=documented(404, 409))
async def look_at_job(bearer: Reader, job_id: UUID, request: Request, wait: Wait = 0) -> bodies.Job:
    """Get the state of a job; with `wait`, once it has ended."""
    job = await bearer.client.job(job_id)
    await _wait(bearer, request, job, wait)
    return bodies.Job.of(job)


async def _wait(bearer: Bearer, request: Request, job: AsyncJob[Any], seconds: float) -> None:
    """Wait for the job's end, as one of the key's waits. Raises `JobTimeoutError` after this time."""
    if seconds and not job.done:
        with bearer.limits.wait(bearers_of(request).settings.gateway_streams):
            await job.wait(seconds)


@router.get("/jobs/{job_id}/result", responses=documented(404, 409, 410) | _WRITTEN, response_class=Response)
async def write_result(  # noqa: PLR0917  FastAPI names them
    bearer: Reader,
    job_id: UUID,
    request: Request,
    form: Annotated[Format, Query(alias="format")] = Format.JSON,
    wait: Wait = 0,
    revision: RevisionNumber = None,
    quality: Annotated[
        int, Query(ge=1, le=95, description="JPEG quality of the pages' pictures.")
    ] = PDF_QUALITY,
    document: Annotated[
        int | None, Query(ge=1, description="Only this document of a bundle, counted from 1.")
    ] = None,
    with_conflicts: Annotated[
        bool, Query(description="Allow a `document` whose patient is in conflict.")
    ] = False,
) -> Response:
    """Get the result of an ended job, in any format that `pecia result` writes."""
    job = await bearer.client.job(job_id)
    await _wait(bearer, request, job, wait)

    async def chosen() -> Any:
        result = await job.result(timeout=0, revision=revision)
        return _document_of(result, document, with_conflicts=with_conflicts) if document else result

    if form.is_binary:  # few are drawn at a time, of one key one
        async with AsyncExitStack() as held, bearer.limits.drawings.place():
            await held.enter_async_context(bearer.limits.results.place())
            scratch = held.enter_context(tempfile.TemporaryDirectory(prefix="pecia-gateway-"))
            async with bearers_of(request).drawings.place():
                one, path = await chosen() if document else None, FilePath(scratch) / "result"
                path = await job.save(path, form, quality=quality, revision=revision, timeout=0, result=one)
            return HeldResponse(FileResponse(path, media_type=_MEDIA_TYPES[form]), held.pop_all())
    async with bearer.limits.results.place():
        content = await finish_in_thread(formats.render, await chosen(), form)
    return Response(content, media_type=_MEDIA_TYPES[form])


def _document_of(result: Any, number: int, *, with_conflicts: bool) -> BundledDocument:
    """Return a document of a bundle. Raises `ProblemError` if it does not exist, or its patient is in conflict."""
    documents = result.documents if isinstance(result, Bundle) else ()
    if number > len(documents):
        raise ProblemError(
            HTTPStatus.NOT_FOUND, "no_document", f"The result has {len(documents)} documents of a bundle."
        )
    document: BundledDocument = documents[number - 1]
    if document.part.has_conflict and not with_conflicts:
        raise ProblemError(
            HTTPStatus.CONFLICT,
            "identity_conflict",
            "The patient of this document is in conflict: review it, or set with_conflicts=true.",
        )
    return document


@router.get("/jobs/{job_id}/pages", responses=documented(404, 410) | _STREAM, response_model=bodies.Parts)
async def list_pages(  # noqa: PLR0917  FastAPI names them
    bearer: Reader,
    job_id: UUID,
    request: Request,
    skip: Annotated[str | None, Query(description="Leave these out, as in `1-3,7`, counted from 1.")] = None,
    limit: Annotated[int, Query(ge=0, le=FETCH)] = FETCH,
    whole: Annotated[bool, Query(description="For the audit trail: the complete result is read.")] = False,
    as_completed: AsCompleted = False,
    last_event_id: LastEventId = None,
    revision: RevisionNumber = None,
) -> Response | bodies.Parts:
    """Get the pages (of a video: segments) that have been read; as `text/event-stream`, the same as `/pages/stream`."""
    if sending.is_wanted(request):
        return await stream_pages(bearer, job_id, request, as_completed, last_event_id)
    job = await bearer.client.job(job_id)
    connections = bearer.client.connections
    first_open = await connections.store.first_unfinished(job.id)
    found: Sequence[PartOutcome] = ()
    if limit:
        read_as = AuditAction.RESULT if whole and not skip else AuditAction.PAGES
        before = sending.read_before(skip)
        found = await connections.store.outcomes(
            job.id, skip=before, limit=limit, read_as=read_as, revision=revision
        )
    parts = await finish_in_thread(
        lambda: [replace(one, content=one.content and plain(one.content)) for one in found]
    )
    return bodies.Parts(parts=parts, first_open=first_open, more=0 < limit == len(found))


@router.get("/jobs/{job_id}/pages/stream", responses=documented(404, 410) | _STREAM, response_class=Response)
async def stream_pages(
    bearer: Reader,
    job_id: UUID,
    request: Request,
    as_completed: AsCompleted = False,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream each page (of a video: segment) as it is read.

    The event `page` has a page; `segment`, `summary` and `split` have their contents; `failed` has the number and the
    reason of a failure; `end` is the last event and has the job. A stream that fails ends with `error`.
    """
    job = await bearer.client.job(job_id)
    read = ReadParts(sending.read_before(last_event_id))
    connections = bearer.client.connections
    ended = parts_as_they_end(connections, job, Deadline(None), in_order=not as_completed, read=read)
    return sending.stream(bearer, bearers_of(request).settings, job, sending.of_parts(ended, read))


@router.get("/jobs/{job_id}/events", responses=documented(404) | _STREAM, response_model=list[JobEvent])
async def list_events(
    bearer: Reader,
    job_id: UUID,
    request: Request,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only events with a greater `sequence`.")] = 0,
    last_event_id: LastEventId = None,
) -> Response | list[JobEvent]:
    """Get the events of a job and its parts; as `text/event-stream`, the same as `/events/stream`."""
    if sending.is_wanted(request):
        return await stream_events(bearer, job_id, request, last_event_id)
    job = await bearer.client.job(job_id)
    return await bearer.client.connections.store.events(job.id, after=after, skip=())


@router.get("/jobs/{job_id}/events/stream", responses=documented(404) | _STREAM, response_class=Response)
async def stream_events(
    bearer: Reader, job_id: UUID, request: Request, last_event_id: LastEventId = None
) -> Response:
    """Stream the events of a job and its parts, from the first until the job has ended.

    A resumed stream may repeat some of the last events, with the same `sequence`.
    """
    job = await bearer.client.job(job_id)
    read = ReadEvents(sending.number_of(last_event_id))
    events = events_as_written(bearer.client.connections, job, Deadline(None), read=read)
    return sending.stream(bearer, bearers_of(request).settings, job, sending.of_events(events, read))


@router.get("/jobs/{job_id}/usage", responses=documented(404))
async def look_at_usage(bearer: Reader, job_id: UUID) -> UsageFigures:
    """Get the usage of a job so far."""
    return await (await bearer.client.job(job_id)).usage()


@router.get("/jobs/{job_id}/lacks", summary="Show what no worker can do", responses=documented(404))
async def look_at_lacks(bearer: Reader, job_id: UUID) -> list[Lack]:
    """Get what a job needs and no running worker can do; empty if the job only waits for its turn."""
    job = await bearer.client.job(job_id)
    return await bearer.client.connections.store.lacking([job.id])


@router.post("/jobs/{job_id}/cancel", responses=documented(400, 404))
async def cancel_job(
    bearer: Submitter, job_id: UUID, why: bodies.Cancellation | None = None
) -> bodies.Cancelled:
    """Cancel a job now. Pages that were read are kept."""
    job = await bearer.client.job(job_id)
    cancelled = await job.cancel(reason=why.reason if why else None)
    return bodies.Cancelled(cancelled=cancelled, job=bodies.Job.of(job))


@router.post("/jobs/{job_id}/retry", responses=documented(400, 404, 409))
async def retry_job(bearer: Submitter, job_id: UUID, what: bodies.Retry | None = None) -> bodies.Job:
    """Run the failed and cancelled parts of an ended job again."""
    job = await bearer.client.job(job_id)
    return bodies.Job.of(await job.retry(what.parts if what else None))


@router.post("/jobs/{job_id}/split", responses=documented(400, 404, 409, 410), tags=["review"])
async def correct_split(bearer: Reviewer, job_id: UUID, body: bodies.SplitCorrection) -> Split:
    """Correct how a bundle is split into documents. The result gets a new revision.

    A change that would put pages of two patients into one document is refused with `identity_conflict`, unless
    `same_patient` states that they are the same patient; the result records who stated that, and when.
    """
    return await bearer.client.correct(job_id, body.change, revision=body.revision)


@router.delete("/jobs/{job_id}", responses=documented(400, 404))
async def erase_job(
    bearer: Administrator, job_id: UUID, why: bodies.Cancellation | None = None
) -> Erasure | None:
    """Erase the document, results, metadata and callbacks of a job permanently. Null if they were erased before."""
    erased = await bearer.client.purge([job_id], reason=why.reason if why else None)
    return erased[0] if erased else None


@router.post("/batches", status_code=201, responses=documented(400), tags=["batches"])
async def open_batch(bearer: Submitter, body: bodies.NewBatch) -> Batch:
    """Create a batch to submit jobs into, or get the existing batch of this name."""
    name = arguments.checked_batch(body.name)
    return await bearer.client.connections.store.open_batch(name)


@router.get("/batches", responses=documented(), tags=["batches"])
async def look_at_batches(
    bearer: Reader, before: Before = None, limit: Annotated[int, Query(ge=1, le=_MOST_BATCHES)] = 20
) -> list[bodies.ListedBatch]:
    """List batches, newest first, with the counts of their jobs."""
    store = bearer.client.connections.store
    return [
        bodies.ListedBatch(
            **batch.model_dump(),
            counts=await store.counts(Listing(batch=batch.id)),
            needs_review=await store.in_doubt(batch.id, _MOST_DOUBTS),
        )
        for batch in await store.batches(before=before, size=limit)
    ]


@router.get("/batches/{batch}", responses=documented(404), tags=["batches"])
async def look_at_batch(bearer: Reader, batch: Reference) -> bodies.CountedBatch:
    """Get a batch with the counts of its jobs."""
    store = bearer.client.connections.store
    found = await store.batch(batch)
    return bodies.CountedBatch(**found.model_dump(), counts=await store.counts(Listing(batch=found.id)))


@router.get("/counts", responses=documented(404), tags=["batches"])
async def count_jobs(bearer: Reader, which: Chosen, batch: InBatch = None) -> Counts:
    """Count the jobs that match all filters, by state."""
    return await bearer.client.connections.store.counts(await _listing(bearer, batch, which))


async def _listing(bearer: Bearer, batch: str | None, which: Which) -> Listing:
    """Return the listing of these filters. Raises `BatchNotFoundError`."""
    listing = arguments.listing(which)
    if batch is None:
        return listing
    return replace(listing, batch=(await bearer.client.connections.store.batch(batch)).id)


@router.get("/pages", responses=documented(404), tags=["review"])
async def find_pages(
    bearer: Reviewer, which: Chosen, batch: InBatch = None, after: After = None, limit: Limit = 100
) -> bodies.FoundPages:
    """Find pages by their verdict, those of the newest job first; without a verdict, the pages that need a review.

    Bundles with documents whose patient is in conflict have the verdict `review`, and come first.
    """
    listing = replace(await _listing(bearer, batch, which), verdicts=())
    store, last = bearer.client.connections.store, None
    if after is not None:
        job, number, *conflict = after.split(":")
        last = FoundPage(
            job_id=UUID(job),
            number=int(number),
            verdict=Verdict.OK,
            read_at=_NEVER,
            is_conflict=bool(conflict),
        )
    return bodies.FoundPages(
        pages=await store.found_pages(
            arguments.verdicts(which.get("verdict", ())), listing, after=last, size=limit
        )
    )
