"""Files of requests and batches of them over HTTP, as OpenAI's clients know them."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException

from pecia.aio.job import AsyncJob
from pecia.errors import DocumentGoneError, JobErasedError, SubmitError
from pecia.gateway.forms import DocumentForm
from pecia.gateway.identity import Bearer, Reader, Submitter, bearers_of, body_of
from pecia.gateway.jobs import HeldFile, too_many_results
from pecia.gateway.openai import answers
from pecia.gateway.openai.intake import Intake, batch_name, line_options, settle
from pecia.gateway.openai.requests import COMPLETIONS, Line, lines_of, parse_line
from pecia.gateway.openai.statements import Held
from pecia.gateway.problems import ProblemError
from pecia.records import Counts, Listing
from pecia.request import Submission
from pecia.sources import at_hand
from pecia_schemas import storable
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import RequestBatch, RequestFile
from pecia_schemas.threads import finish_in_thread

router = APIRouter()

_MOST_LINES: Final = 50_000
_MOST_LISTED: Final = 100
_FORM: Final = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "purpose": {"const": "batch"},
                },
            }
        }
    },
}
_FILE_ID: Final = re.compile(r"file-([0-9a-f]{32})(-output|-errors)?")
_BATCH_ID: Final = re.compile(r"batch_([0-9a-f]{32})")
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_ANSWERED: Final = (JobState.SUCCEEDED, JobState.PARTIAL)
_UNANSWERED: Final = (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
_AT_ONCE: Final = 200

Limit = Annotated[int, Query(ge=1, le=_MOST_LISTED)]


class NewBatch(BaseModel):
    """A batch to be made."""

    model_config = ConfigDict(hide_input_in_errors=True)

    input_file_id: str
    endpoint: Literal["/v1/chat/completions"]
    completion_window: str = "24h"
    metadata: dict[str, str] | None = Field(default=None)
    priority: Lane = Lane.BULK
    """Of the fleet alone: the lane."""


def _missing(what: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, f"{what}_not_found", f"There is no such {what}.")


def _wrong(code: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, code, detail)


def _file_body(held: Held) -> dict[str, Any]:
    return {
        "id": f"file-{held.id.hex}",
        "object": "file",
        "bytes": held.task["source"]["size"],
        "created_at": _seconds(held.view.submitted_at),
        "expires_at": None,
        "filename": held.view.label,
        "purpose": "batch",
        "status": "processed",
    }


def _result_body(held: Held, kind: str) -> dict[str, Any]:
    """Return an output or error file, which is written whenever it is read: its size is not known."""
    return {
        "id": f"file-{batch_name(held).removeprefix('batch_')}{kind}",
        "object": "file",
        "bytes": None,
        "created_at": _seconds(held.view.finished_at),
        "expires_at": None,
        "filename": f"{batch_name(held)}{kind}.jsonl",
        "purpose": "batch_output",
        "status": "processed",
    }


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _page(bodies: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a list of which one more was looked for than is shown."""
    data = bodies[:limit]
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return {"object": "list", "data": data, "has_more": len(bodies) > limit, **ends}


@router.post("/files", openapi_extra={"requestBody": _FORM})
async def upload_file(bearer: Submitter, request: Request) -> dict[str, Any]:
    """Upload a file of requests, a JSON line each."""
    async with (
        bearers_of(request).spool.upload(bearer.limits, body_of(request)),
        aclosing(request.stream()) as stream,
    ):
        form = DocumentForm(request.headers, stream, max_files=1, max_fields=3)
        with closing(form):
            try:
                parts = await form.parse()
            except (MultiPartException, KeyError):
                raise _wrong("form", "A form has a `file` and `purpose`.") from None
            upload = parts.get("file")
            if not isinstance(upload, UploadFile) or parts.get("purpose") != "batch":
                raise _wrong("form", "A form has a `file`, and `purpose` which is batch.")
            lines = await finish_in_thread(_count, upload.file)
            if not 0 < lines <= _MOST_LINES:
                raise _wrong("form", f"A file of requests has 1 to {_MOST_LINES:,} lines, not {lines:,}.")
            label = (upload.filename or "requests.jsonl")[: storable.LABEL]
            async with bearers_of(request).submitting:
                job = await bearer.client.submit(
                    RequestFile(upload.file, lines=lines), label=label, expires=timedelta(hours=1)
                )
    requests = bearer.client.connections.requests
    await requests.end(job.id, JobState.SUCCEEDED)
    if (held := await requests.file(job.id)) is None:
        raise _missing("file")
    return _file_body(held)


def _count(file: Any) -> int:
    """Return the number of lines, which the form's file itself would look for byte by byte."""
    buffered = io.BufferedReader(file, 1024**2)
    count = sum(1 for _ in lines_of(buffered))
    buffered.detach().seek(0)
    return count


@router.get("/files")
async def list_files(bearer: Reader, after: str | None = None, limit: Limit = 20) -> dict[str, Any]:
    """List the files of requests, newest first."""
    before = _meant(_FILE_ID, after, "file") if after else None
    held = await bearer.client.connections.requests.files(before=before, size=limit + 1)
    return _page([_file_body(one) for one in held], limit)


def _meant(form: re.Pattern[str], given: str, what: str) -> UUID:
    if (match := form.fullmatch(given)) is None:
        raise _missing(what)
    return UUID(match[1])


async def _found(bearer: Bearer, file_id: str) -> tuple[Held, str]:
    """Return the file, or the batch whose file it is, and which of its files. Raises `ProblemError`."""
    identifier = _meant(_FILE_ID, file_id, "file")
    kind = file_id[len("file-") + 32 :]
    requests = bearer.client.connections.requests
    held = await (requests.batch(identifier) if kind else requests.file(identifier))
    if held is None or (kind and not held.view.state.is_terminal):
        raise _missing("file")
    return held, kind


@router.get("/files/{file_id}")
async def look_at_file(bearer: Reader, file_id: str) -> dict[str, Any]:
    """See a file."""
    held, kind = await _found(bearer, file_id)
    return _result_body(held, kind) if kind else _file_body(held)


@router.delete("/files/{file_id}")
async def delete_file(bearer: Submitter, file_id: str) -> dict[str, Any]:
    """Erase a file of requests. Results are erased with their jobs."""
    held, kind = await _found(bearer, file_id)
    if kind:
        raise _wrong("refused", "This file is written from results: erase their jobs by DELETE /v1/jobs/ID.")
    await bearer.client.purge([held.id])
    return {"id": file_id, "object": "file", "deleted": True}


@router.get("/files/{file_id}/content", response_class=Response)
async def read_file(bearer: Reader, file_id: str, request: Request) -> Response:
    """Get what a file holds."""
    held, kind = await _found(bearer, file_id)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bearer.limits.results.place(too_many_results))
        if kind:
            written = _answered(bearer, held) if kind == "-output" else _unanswered(bearer, held)
            return _Written(written, stack.pop_all())
        original = await bearer.client.connections.store.original(held.id)
        opened = at_hand(original, bearers_of(request).connections.payloads)
        path = await finish_in_thread(stack.enter_context, opened)
        return HeldFile(path, "application/jsonl", stack.pop_all())
    raise AssertionError  # nothing above suppresses


class _Written(StreamingResponse):
    """A file that is written as it is read, as one of its key's results."""

    def __init__(self, content: AsyncGenerator[bytes, None], held: AsyncExitStack) -> None:
        super().__init__(content, media_type="application/jsonl")
        self._content, self._held = content, held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._held, aclosing(self._content):
            await super().__call__(scope, receive, send)


async def _jobs(
    bearer: Bearer, held: Held, states: tuple[JobState, ...]
) -> AsyncGenerator[AsyncJob[Any], None]:
    async with aclosing(bearer.client.jobs(batch=held.view.batch, state=states, page_size=_AT_ONCE)) as jobs:
        async for job in jobs:
            yield job


async def _answered(bearer: Bearer, held: Held) -> AsyncGenerator[bytes, None]:
    async with aclosing(_jobs(bearer, held, _ANSWERED)) as jobs:
        async for job in jobs:
            try:
                document = await job.result(timeout=0)
            except JobErasedError:
                continue  # the other file says so
            yield answers.output_line(job.label, answers.completion(job._view, document))  # noqa: SLF001  ours


async def _unanswered(bearer: Bearer, held: Held) -> AsyncGenerator[bytes, None]:
    """Yield what has no answer: jobs, then lines that never became one."""
    batch = batch_name(held)
    async with aclosing(_jobs(bearer, held, _ANSWERED + _UNANSWERED)) as jobs:
        async for job in jobs:
            if job.erased_at is not None or job.state in _UNANSWERED:
                yield answers.error_line(batch, job.id, job.label, answers.of_job(job._view))  # noqa: SLF001  ours
    connections = bearer.client.connections
    try:
        original = await connections.store.original(held.id)
    except DocumentGoneError:
        return
    async with AsyncExitStack() as stack:
        path = await finish_in_thread(stack.enter_context, at_hand(original, connections.payloads))
        file = stack.enter_context(path.open("rb"))
        options, lines, number = line_options(held), lines_of(file), 0

        def read() -> list[Line]:
            nonlocal number
            parsed: list[Line] = []
            for written in lines:
                line = parse_line(number, written, batch, options)
                number += 1
                refusal = line.request if isinstance(line.request, SubmitError) else None
                parsed.append(replace(line, request=refusal))  # without its picture
                if len(parsed) == _AT_ONCE:
                    break
            return parsed

        while some := await finish_in_thread(read):
            known = await connections.requests.known([f"{batch}/{line.number}" for line in some])
            for line in some:
                if f"{batch}/{line.number}" not in known:
                    reason = answers.of_line(line.request, held.view.state)
                    yield answers.error_line(batch, line.number, line.custom_id, reason)


@router.post("/batches")
async def create_batch(bearer: Submitter, body: NewBatch, request: Request) -> dict[str, Any]:
    """Have the requests of a file answered. The jobs are made after the answer, by whichever gateway runs."""
    window = _WINDOW.fullmatch(body.completion_window)
    if window is None:
        raise _wrong("invalid_option", "A completion_window reads 24h: minutes, hours or days.")
    held = await bearer.client.connections.requests.file(_meant(_FILE_ID, body.input_file_id, "file"))
    if held is None or body.input_file_id.endswith(("-output", "-errors")):
        raise _missing("file")
    lines = int(held.task["lines"])
    await bearer.admit(body.priority, lines)
    try:
        original = await bearer.client.connections.store.original(held.id)
        opened = await bearer.client.connections.store.open_batch(None)
        task = RequestBatch(
            original.payload, lines=lines, file=body.input_file_id, window=body.completion_window
        )
        (job,) = await bearer.client.submit_many(
            [Submission(task)],
            batch=str(opened.id),
            priority=body.priority,
            metadata=body.metadata,
            expires=timedelta(**{_UNITS[window[2]]: int(window[1])}),
        )
    finally:
        bearer.settled(lines)
    intake: Intake = request.app.state.intake
    intake.take(job.id)
    return await _batch_body(bearer, opened.id, request)


@router.get("/batches")
async def list_batches(
    bearer: Reader, request: Request, after: str | None = None, limit: Limit = 20
) -> dict[str, Any]:
    """List batches, newest first."""
    before = None
    if after:
        last = await bearer.client.connections.requests.batch(_meant(_BATCH_ID, after, "batch"))
        before = last.id if last else None
    held = await bearer.client.connections.requests.batches(before=before, size=limit + 1)
    bodies = [await _batch_body(bearer, one.view.batch, request) for one in held if one.view.batch]
    return _page(bodies, limit)


@router.get("/batches/{batch_id}")
async def look_at_openai_batch(bearer: Reader, batch_id: str, request: Request) -> dict[str, Any]:
    """See how far a batch is."""
    return await _batch_body(bearer, _meant(_BATCH_ID, batch_id, "batch"), request)


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(bearer: Submitter, batch_id: str, request: Request) -> dict[str, Any]:
    """End a batch now. What is answered stays."""
    batch = _meant(_BATCH_ID, batch_id, "batch")
    held = await bearer.client.connections.requests.batch(batch)
    if held is None:
        raise _missing("batch")
    await bearer.client.connections.requests.end(held.id, JobState.CANCELLED)
    return await _batch_body(bearer, batch, request)


async def _batch_body(bearer: Bearer, batch: UUID, request: Request) -> dict[str, Any]:
    requests = bearer.client.connections.requests
    held = await requests.batch(batch)
    if held is None:
        raise _missing("batch")
    if held.view.state is JobState.CANCELLED or (held.is_submitted and not held.view.state.is_terminal):
        await settle(bearers_of(request), held)
        held = await requests.batch(batch) or held
    counts: Counts = await bearer.client.connections.store.counts(Listing(batch=batch))
    return _of_batch(held, counts.states)


def _of_batch(held: Held, states: Mapping[JobState, int]) -> dict[str, Any]:
    view, task = held.view, held.task
    status = _status(held, states)
    answered = sum(states.get(state, 0) for state in _ANSWERED)
    failed = task["refused"] + sum(states.get(state, 0) for state in _UNANSWERED)
    ended = _seconds(view.finished_at)
    has_errors = failed or view.state is not JobState.SUCCEEDED
    over = view.state.is_terminal and status != "cancelling"
    name: Callable[[str], str] = lambda kind: _result_body(held, kind)["id"]  # noqa: E731
    return {
        "id": batch_name(held),
        "object": "batch",
        "endpoint": COMPLETIONS,
        "errors": None,
        "input_file_id": task["file"],
        "completion_window": task["window"],
        "status": status,
        "output_file_id": name("-output") if over and answered else None,
        "error_file_id": name("-errors") if over and has_errors else None,
        "created_at": _seconds(view.submitted_at),
        "in_progress_at": _seconds(view.started_at),
        "expires_at": _seconds(held.expires_at),
        "finalizing_at": ended if status == "completed" else None,
        **{f"{name}_at": ended if status == name else None for name in ("completed", "failed", "expired")},
        "cancelling_at": ended if view.state is JobState.CANCELLED else None,
        "cancelled_at": ended if status == "cancelled" else None,
        "request_counts": {"total": task["lines"], "completed": answered, "failed": failed},
        "metadata": dict(view.metadata) or None,
    }


def _status(held: Held, states: Mapping[JobState, int]) -> str:
    unfinished = any(states.get(state) for state in (JobState.QUEUED, JobState.RUNNING))
    match held.view.state:
        case JobState.QUEUED:
            return "validating"
        case JobState.RUNNING:
            return "in_progress"
        case JobState.CANCELLED:
            return "cancelling" if unfinished else "cancelled"
        case JobState.SUCCEEDED:
            return "expired" if states.get(JobState.EXPIRED) else "completed"
        case state:
            return str(state)
