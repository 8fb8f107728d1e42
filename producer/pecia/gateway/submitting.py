"""`POST /v1/jobs`: takes documents in a form, or as URLs in JSON. Documents are streamed, never held in memory."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from http import HTTPStatus
from itertools import islice
from typing import IO, Any, Final, cast

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from pecia.aio.client import AsyncClient
from pecia.aio.job import AsyncJob
from pecia.errors import InvalidSourceError, SubmitManyError
from pecia.gateway.bodies import IDEMPOTENCY_KEY, MOST_TASKS, Job, RefusedTask, Submission, Submitted
from pecia.gateway.identity import Submitter, bearers_of, body_of
from pecia.gateway.problems import ProblemError, documented, of_error
from pecia.request import Submission as One
from pecia.request import SubmitOptions
from pecia_schemas import storable
from pecia_schemas.media import UrlRef
from pecia_schemas.states import Lane
from pecia_schemas.tasks import CaptionVideo, ReadBundle, ReadDocument, Task


class DocumentForm(MultiPartParser):
    """Parses a form. What its files hold is gone when this is closed; threads read several of them at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spool: Final[IO[bytes]] = tempfile.TemporaryFile(prefix="pecia-form-")  # noqa: SIM115  see close()
        self.lock: Final = threading.Lock()
        self.spooled = 0

    def on_headers_finished(self) -> None:
        """Store a file in the form's shared file, in place of a temporary file of its own."""
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file.close()
            upload.file = cast("Any", _Piece(self))

    def close(self) -> None:
        """Delete the form's temporary file."""
        self.spool.close()


class _Piece(io.RawIOBase):
    """One document of a form. It is written completely before the next one."""

    def __init__(self, form: DocumentForm) -> None:
        self._form = form
        self._start = self._at = self._size = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def write(self, data: Any, /) -> int:
        with self._form.lock:
            if not self._size:
                self._start = self._form.spooled
            self._form.spool.seek(self._start + self._size)
            self._form.spool.write(data)
            self._size += len(data)
            self._at = self._size
            self._form.spooled = self._start + self._size
        return len(data)

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._at)]
        with self._form.lock:
            self._form.spool.seek(self._start + self._at)
            count = cast("Any", self._form.spool).readinto(view)
        self._at += count
        return int(count)


router = APIRouter(tags=["jobs"])

_JSON: Final = "application/json"
_FORM: Final = "multipart/form-data"
NO_OPTIONS: Final = ("kind", "url", "label", "metadata", "priority", "files")
_MOST_JSON: Final = 16 * 1024**2
_KINDS: Final = {task.kind: task for task in (ReadDocument, ReadBundle, CaptionVideo)}
_REF: Final = {"$ref": "#/components/schemas/Submission"}
_UPLOADED: Final = {
    "schema": {
        "type": "object",
        "required": ["file"],
        "properties": {
            "file": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_TASKS,
                "items": {
                    "type": "string",
                    "format": "binary",
                    "contentMediaType": "application/octet-stream",
                },
                "description": "One document in each part.",
            },
            "request": {**_REF, "examples": [{"task": {"language": "en"}, "priority": "urgent"}]},
        },
    },
    "encoding": {"request": {"contentType": _JSON}},
}
_FORM_BODY: Final = {"required": True, "content": {_FORM: _UPLOADED}}
_BODY: Final = {"required": True, "content": {_JSON: {"schema": _REF}, _FORM: _UPLOADED}}
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same tasks returns the existing jobs. Of several tasks, the n-th has the key "
    "`KEY/n`, from 0.",
    "schema": {"type": "string", "pattern": "^[!-~]+$", "minLength": 1, "maxLength": IDEMPOTENCY_KEY},
}
_ANSWERS: Final = documented(400, 409, 415) | {
    200: {"model": Submitted, "description": "All jobs existed before, by their idempotency keys."}
}


@router.post(
    "/jobs",
    status_code=201,
    summary="Submit documents",
    responses=_ANSWERS,
    openapi_extra={"requestBody": _BODY, "parameters": [_KEY]},
)
async def submit(bearer: Submitter, request: Request, response: Response) -> Submitted:
    """Submit one or more documents: as `file` parts of a form, or as URLs that the fleet fetches.

    The answer follows once the jobs are stored. `refused` has the refused tasks with reasons; the others are accepted.
    """
    await bearer.check_load()
    async with bearers_of(request).spool.upload(bearer.limits, body_of(request)):
        return await _submit_body(bearer, request, response)


async def _submit_body(bearer: Submitter, request: Request, response: Response) -> Submitted:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == _JSON:
        return await accept(bearer, request, response, await _json(request), [])
    if media_type != _FORM:
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "media_type",
            f"Send documents as {_FORM}, or their URLs as {_JSON}.",
            headers={"Accept-Post": f"{_JSON}, {_FORM}"},
        )
    async with aclosing(request.stream()) as stream:
        form = DocumentForm(
            request.headers, stream, max_files=MOST_TASKS, max_fields=1, max_part_size=_MOST_JSON
        )
        with closing(form):
            try:
                parts = await form.parse()
            except MultiPartException:
                raise ProblemError(
                    HTTPStatus.BAD_REQUEST, "form", "The form is malformed, or has too many parts."
                ) from None
            files = [part for part in parts.getlist("file") if isinstance(part, UploadFile)]
            part = parts.get("request", "{}")
            # A browser sends a part that has a media type as a file.
            options = await _bounded(part) if isinstance(part, UploadFile) else part
            if len(files) + ("request" in parts) != len(parts.multi_items()):
                raise ProblemError(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    "form",
                    "A form must have `file` parts, each with a file name, and at most one `request`.",
                )
            return await accept(bearer, request, response, _meant(options), files)


@router.post(
    "/documents",
    status_code=201,
    summary="Upload documents",
    responses=_ANSWERS,
    openapi_extra={"requestBody": _FORM_BODY, "parameters": [_KEY]},
)
async def upload(bearer: Submitter, request: Request, response: Response) -> Submitted:
    """Submit the documents of a form, as at `/v1/jobs`, for API clients that support one media type per operation."""
    return await submit(bearer, request, response)


def _meant(text: str | bytes) -> Submission:
    try:
        return Submission.model_validate_json(text)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None


async def _json(request: Request) -> Submission:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_JSON:
            raise _too_long()
    return _meant(bytes(body))


async def _bounded(part: UploadFile) -> bytes:
    if part.size is None or part.size > _MOST_JSON:
        raise _too_long()
    return await part.read()


def _too_long() -> ProblemError:
    return ProblemError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"JSON may have at most {_MOST_JSON:,} bytes."
    )


async def accept(
    bearer: Submitter,
    request: Request,
    response: Response,
    submission: Submission,
    files: Sequence[UploadFile],
) -> Submitted:
    """Submit documents within the key's limits. Raises `ProblemError`, or `PeciaError` if none is accepted."""
    tasks = list(tasks_of(submission, files))
    failures: dict[int, Any] = {}
    lanes = Counter(Lane(one.priority or submission.priority) for one in tasks)
    try:
        async with bearer.admitted(lanes), bearers_of(request).submitting:
            accepted = await submit_tasks(
                bearer.client, submission, tasks, _keys(request, submission, len(tasks))
            )
    except SubmitManyError as error:
        if not len(error.accepted):
            raise error.failures[min(error.failures)] from None
        accepted, failures = error.accepted, dict(error.failures)
    numbers = (number for number in range(len(tasks)) if number not in failures)
    jobs = [Job.of(job, number=number) for number, job in zip(numbers, accepted, strict=True)]
    if not failures and not any(job.created for job in jobs):
        response.status_code = HTTPStatus.OK
    refused = [RefusedTask(number=number, problem=of_error(error)) for number, error in failures.items()]
    return Submitted(jobs=jobs, refused=refused)


async def submit_tasks(
    client: AsyncClient, submission: Submission, tasks: Sequence[One[Any]], keys: Sequence[str] | None
) -> Sequence[AsyncJob[Any]]:
    """Submit a single task, or several as a batch."""
    options = {name: getattr(submission, name) for name in SubmitOptions.model_fields}
    if len(tasks) > 1 or submission.batch is not None:
        return await client.submit_many(tasks, batch=submission.batch, idempotency_keys=keys, **options)
    (own,) = tasks
    options["priority"] = own.priority or submission.priority
    options["metadata"] = {**submission.metadata, **(own.metadata or {})}
    key = keys[0] if keys else None
    job = await client.submit(own.task, label=own.label, idempotency_key=key, **options)
    return [job]


def tasks_of(submission: Submission, files: Sequence[UploadFile]) -> Iterator[One[Any]]:
    """Yield the tasks with their documents. Without `tasks`, documents get the names of their files as labels.

    Raises `InvalidSourceError` if the numbers of tasks and documents differ.
    """
    waiting = iter(files)
    for body in submission.tasks or [submission.task] * max(1, len(files) // _count(submission.task)):
        taken = [] if body.url is not None else list(islice(waiting, _count(body)))
        source: Any = UrlRef(url=body.url) if body.url is not None else next(iter(taken), None)
        if source is None or 0 < len(taken) < _count(body):
            raise InvalidSourceError(
                "The request has more tasks than documents: give each task a `url`, or a `file` of the form."
            )
        given = {name: getattr(body, name) for name in body.model_fields_set if name not in NO_OPTIONS}
        label = body.label if submission.tasks else body.label or getattr(source, "filename", None)
        document: Any = [file.file for file in taken] if len(taken) > 1 else getattr(source, "file", source)
        task: Task[Any] = _KINDS[body.kind](document, **given)
        yield One(task, metadata=body.metadata, priority=body.priority, label=label)
    if next(waiting, None) is not None:
        raise InvalidSourceError("The request has more files than tasks without a `url`.")


def _count(body: Any) -> int:
    """Return the number of files that a task takes."""
    return getattr(body, "files", 1)


def _keys(request: Request, submission: Submission, count: int) -> list[str] | None:
    """Return an idempotency key for each task, or None. Raises `ProblemError` for an invalid key."""
    shown = request.headers.get("idempotency-key")
    if shown is None and submission.idempotency_keys is None:
        return None
    if shown is not None and submission.idempotency_keys is not None:
        raise _bad_key("Give the header Idempotency-Key or `idempotency_keys`, not both.")
    keys = submission.idempotency_keys
    if shown is not None:
        keys = [shown] if count == 1 else [f"{shown}/{number}" for number in range(count)]
    assert keys is not None  # noqa: S101  one of them was given
    limit = IDEMPOTENCY_KEY + len(f"/{MOST_TASKS}")
    if len(keys) != count or any(not 0 < len(key) <= limit or not storable.is_storable(key) for key in keys):
        raise _bad_key(f"Each task needs one idempotency key, of 1 to {IDEMPOTENCY_KEY} characters.")
    return keys


def _bad_key(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency_key", detail)
