"""Files in the form of OpenAI's API: uploaded request files, and output files that are written while they are read."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, closing
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException

from pecia.errors import DocumentGoneError, JobErasedError
from pecia.gateway.bounds import HeldResponse
from pecia.gateway.identity import Bearer, Reader, Submitter, bearers_of, body_of
from pecia.gateway.openai import requests as answers
from pecia.gateway.openai.intake import LineReader, batch_name
from pecia.gateway.openai.requests import lines_of
from pecia.gateway.openai.statements import Held
from pecia.gateway.problems import ProblemError
from pecia.gateway.submitting import DocumentForm
from pecia.sources import at_hand
from pecia_schemas import storable
from pecia_schemas.states import JobState
from pecia_schemas.tasks import RequestFile
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
FILE_ID: Final = re.compile(r"file-([0-9a-f]{32})(-output|-errors)?")
ANSWERED: Final = (JobState.SUCCEEDED, JobState.PARTIAL)
UNANSWERED: Final = (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
_AT_ONCE: Final = 200

Limit = Annotated[int, Query(ge=1, le=_MOST_LISTED)]


class Expiry(BaseModel):
    """Lifetime of a file."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(ge=3600, le=30 * 86_400)


def missing(what: str) -> ProblemError:
    """Return the refusal for a file or batch that the tenant does not have."""
    return ProblemError(HTTPStatus.NOT_FOUND, f"{what}_not_found", f"This {what} does not exist.")


def wrong(code: str, detail: str) -> ProblemError:
    """Return the refusal for an invalid request."""
    return ProblemError(HTTPStatus.BAD_REQUEST, code, detail)


def _file_body(held: Held) -> dict[str, Any]:
    about = {"bytes": held.task["source"]["size"], "filename": held.view.label, "purpose": "batch"}
    return _body(held, held.id.hex, held.view.submitted_at) | about


def result_body(held: Held, kind: str) -> dict[str, Any]:
    """Return an output or error file. It is written on each read, so its size is unknown."""
    name = f"{batch_name(held)}{kind}"
    about = {"bytes": None, "filename": f"{name}.jsonl", "purpose": "batch_output"}
    return _body(held, name.removeprefix("batch_"), held.view.finished_at) | about


def _body(held: Held, name: str, made_at: datetime | None) -> dict[str, Any]:
    return {
        "id": f"file-{name}",
        "object": "file",
        "created_at": seconds(made_at),
        "expires_at": seconds(held.file_expires_at),
        "status": "processed",
    }


def seconds(moment: datetime | None) -> int | None:
    """Return a time in seconds since 1970, as OpenAI's API writes it."""
    return None if moment is None else int(moment.timestamp())


def page(bodies: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of a list. `bodies` has one more than `limit` if more follow."""
    data = bodies[:limit]
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return {"object": "list", "data": data, "has_more": len(bodies) > limit, **ends}


@router.post("/files", openapi_extra={"requestBody": _FORM})
async def upload_file(bearer: Submitter, request: Request) -> dict[str, Any]:
    """Upload a file of requests, one JSON object on each line."""
    async with (
        bearers_of(request).spool.upload(bearer.limits, body_of(request)),
        aclosing(request.stream()) as stream,
    ):
        form = DocumentForm(request.headers, stream, max_files=1, max_fields=5)
        with closing(form):
            try:
                parts = await form.parse()
            except (MultiPartException, KeyError):
                raise wrong("form", "The form must have a `file` and a `purpose`.") from None
            upload = parts.get("file")
            if not isinstance(upload, UploadFile) or parts.get("purpose") != "batch":
                raise wrong("form", "The form must have a `file`, and the `purpose` batch.")
            kept_s = _kept_s(parts)
            lines = await finish_in_thread(_count, upload.file)
            if not 0 < lines <= _MOST_LINES:
                raise wrong(
                    "form", f"A file of requests must have 1 to {_MOST_LINES:,} lines, not {lines:,}."
                )
            label = (upload.filename or "requests.jsonl")[: storable.LABEL]
            async with bearers_of(request).submitting:
                job = await bearer.client.submit(
                    RequestFile(upload.file, lines=lines, kept_s=kept_s),
                    label=label,
                    expires=timedelta(hours=1),
                )
    requests = bearer.client.connections.requests
    await requests.end(job.id, JobState.SUCCEEDED)
    if (held := await requests.file(job.id)) is None:
        raise missing("file")
    return _file_body(held)


def _kept_s(form: Mapping[str, Any]) -> int | None:
    """Return the requested lifetime of a file in seconds, or None. Raises `ProblemError`."""
    given = {
        name: value
        for name in ("anchor", "seconds")
        if (value := form.get(f"expires_after[{name}]")) is not None
    }
    try:
        return Expiry(**given).seconds if given else None
    except ValidationError:
        raise wrong(
            "invalid_option", "expires_after must have the anchor `created_at`, and 3600 to 2592000 seconds."
        ) from None


def _count(file: Any) -> int:
    """Return the number of lines. Buffered, because the form's file itself reads lines byte by byte."""
    buffered = io.BufferedReader(file, 1024**2)
    count = sum(1 for _ in lines_of(buffered))
    buffered.detach().seek(0)
    return count


@router.get("/files")
async def list_files(bearer: Reader, after: str | None = None, limit: Limit = 20) -> dict[str, Any]:
    """List the files of requests, newest first."""
    before = meant(FILE_ID, after, "file") if after else None
    held = await bearer.client.connections.requests.files(before=before, size=limit + 1)
    return page([_file_body(one) for one in held], limit)


def meant(form: re.Pattern[str], given: str, what: str) -> UUID:
    """Return the UUID in an id. Raises `ProblemError`."""
    if (match := form.fullmatch(given)) is None:
        raise missing(what)
    return UUID(match[1])


async def _found(bearer: Bearer, file_id: str) -> tuple[Held, str]:
    """Return a request file, or the batch of an output file, and the kind of the file. Raises `ProblemError`."""
    identifier = meant(FILE_ID, file_id, "file")
    kind = file_id[len("file-") + 32 :]
    requests = bearer.client.connections.requests
    held = await (requests.batch(identifier) if kind else requests.file(identifier))
    expires_at = held and held.file_expires_at
    if (
        held is None
        or (kind and not held.view.state.is_terminal)
        or (expires_at and expires_at < datetime.now(UTC))
    ):
        raise missing("file")
    return held, kind


@router.get("/files/{file_id}")
async def look_at_file(bearer: Reader, file_id: str) -> dict[str, Any]:
    """Get a file."""
    held, kind = await _found(bearer, file_id)
    return result_body(held, kind) if kind else _file_body(held)


@router.delete("/files/{file_id}")
async def delete_file(bearer: Submitter, file_id: str) -> dict[str, Any]:
    """Erase a file of requests. Output files disappear with the jobs of their batch."""
    held, kind = await _found(bearer, file_id)
    if kind:
        raise wrong("refused", "An output file is made from results: erase their jobs by DELETE /v1/jobs/ID.")
    await bearer.client.purge([held.id])
    return {"id": file_id, "object": "file", "deleted": True}


@router.get("/files/{file_id}/content", response_class=Response)
async def read_file(bearer: Reader, file_id: str, request: Request) -> Response:
    """Get the content of a file."""
    held, kind = await _found(bearer, file_id)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bearer.limits.results.place())
        if kind:
            written = _answered(bearer, held) if kind == "-output" else _unanswered(bearer, held)
            lines = await stack.enter_async_context(aclosing(written))
            response: Response = StreamingResponse(lines, media_type="application/jsonl")
        else:
            original = await bearer.client.connections.store.original(held.id)
            opened = at_hand(original, bearers_of(request).connections.payloads)
            path = await finish_in_thread(stack.enter_context, opened)
            response = FileResponse(path, media_type="application/jsonl")
        return HeldResponse(response, stack.pop_all())
    raise AssertionError  # nothing above suppresses


async def _answered(bearer: Bearer, held: Held) -> AsyncGenerator[bytes, None]:
    async with aclosing(
        bearer.client.jobs(batch=held.view.batch, state=ANSWERED, page_size=_AT_ONCE)
    ) as jobs:
        async for job in jobs:
            try:
                document = await job.result(timeout=0)
            except JobErasedError:
                continue  # the error file lists it
            yield answers.output_line(job.label, answers.completion(job._view, document))  # noqa: SLF001  ours


async def _unanswered(bearer: Bearer, held: Held) -> AsyncGenerator[bytes, None]:
    """Yield error lines: of jobs without an answer, then of lines without a job."""
    batch = batch_name(held)
    over = ANSWERED + UNANSWERED
    async with aclosing(bearer.client.jobs(batch=held.view.batch, state=over, page_size=_AT_ONCE)) as jobs:
        async for job in jobs:
            if job.erased_at is not None or job.state in UNANSWERED:
                yield answers.error_line(batch, job.id, job.label, answers.of_job(job._view))  # noqa: SLF001  ours
    connections = bearer.client.connections
    try:
        original = await connections.store.original(held.id)
    except DocumentGoneError:
        return
    with closing(LineReader()) as reader:
        await finish_in_thread(reader.start, bearer.client, original)
        while lines := await finish_in_thread(reader.read, held, reader.following):
            known = await connections.requests.known([f"{batch}/{line.number}" for line in lines])
            for line in lines:
                if f"{batch}/{line.number}" not in known:
                    reason = answers.of_line(line.request, held.view.state)
                    yield answers.error_line(batch, line.number, line.custom_id, reason)
