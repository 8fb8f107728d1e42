"""Requests for one page in the form of OpenAI's chat completions: their tasks, and their answers over HTTP."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import IO, Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pecia import request
from pecia.errors import (
    InvalidOptionError,
    InvalidSourceError,
    JobExpiredError,
    JobTimeoutError,
    PeciaError,
    SubmitError,
)
from pecia.gateway.bodies import ReadTask
from pecia.gateway.identity import Anyone, Submitter, bearers_of, body_of
from pecia.gateway.problems import ProblemError, of_error
from pecia.gateway.submitting import NO_OPTIONS
from pecia.handles import JobView
from pecia.request import Item, Options, Submission
from pecia_schemas import storable
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import URL_SCHEMES, UrlRef
from pecia_schemas.results import Document, Verdict
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import ReadDocument

COMPLETIONS: Final = "/v1/chat/completions"
MOST_LINE: Final = 24 * 1024**2
"""Maximum size of a request as JSON, which is held in memory, in bytes."""


class _Lenient(BaseModel):
    """Part of a request. Other members, such as sampling options, are ignored."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _ImageUrl(_Lenient):
    url: str


class _Content(_Lenient):
    image_url: _ImageUrl | str | None = None
    """A plain string as URL is accepted too, as in vLLM."""

    @property
    def url(self) -> str | None:
        return self.image_url.url if isinstance(self.image_url, _ImageUrl) else self.image_url


class _Message(_Lenient):
    role: str
    content: str | list[_Content] | None = None


class _JsonSchema(_Lenient):
    name: str = ""
    schema_: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(_Lenient):
    type: Literal["text", "json_schema", "json_object"]
    json_schema: _JsonSchema | None = None


class ChatRequest(_Lenient):
    """A chat completion request for one page."""

    model: str
    messages: list[_Message]
    response_format: _ResponseFormat | None = None
    n: int | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    logprobs: bool | None = None
    pecia: dict[str, Any] = Field(default_factory=dict)
    """Options of `ReadDocument`, such as `language`."""

    def task(self) -> ReadDocument:
        """Return the task of this request. Raises `InvalidOptionError` or `InvalidSourceError`."""
        if self.stream or self.tools or self.logprobs or (self.n or 1) != 1:
            raise InvalidOptionError("stream, tools, logprobs and n are not supported: leave them out.")
        pictures = [
            part.url
            for message in self.messages
            if isinstance(message.content, list)
            for part in message.content
            if part.url is not None
        ]
        if len(pictures) != 1:
            raise InvalidSourceError(f"A request must have one image_url, not {len(pictures)}.")
        try:
            options = ReadTask.model_validate(self.pecia)
        except ValidationError as error:
            raise InvalidOptionError(first_of(error, "pecia")) from None
        given = {name: getattr(options, name) for name in options.model_fields_set if name not in NO_OPTIONS}
        if (schema := self._schema()) is not None:
            given["fields"] = schema
        return ReadDocument(_source(pictures[0]), **given)

    def _schema(self) -> dict[str, Any] | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if form.json_schema is None:
            raise InvalidOptionError(
                "To get fields, use a response_format of type json_schema with a schema."
            )
        return form.json_schema.schema_


def parse_chat(written: bytes) -> ChatRequest:
    """Parse the body of a request. Raises `InvalidOptionError`."""
    try:
        return ChatRequest.model_validate_json(written)
    except ValidationError as error:
        raise InvalidOptionError(first_of(error)) from None


def first_of(error: ValidationError, *before: str) -> str:
    """Return the first validation error as a sentence, without quoting the input."""
    (first, *_) = error.errors(include_url=False, include_input=False)
    return f"{'.'.join(map(str, (*before, *first['loc']))) or 'The request'}: {first['msg']}."


def _source(url: str) -> bytes | UrlRef:
    head, _, data = url.partition(",")
    if head.lower().startswith("data:"):
        try:
            return base64.b64decode(data if head.lower().endswith(";base64") else "-", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidSourceError("The data URL is not base64: write data:image/png;base64,…") from None
    if not url.lower().startswith(URL_SCHEMES):
        raise InvalidSourceError("An image must be a data: URL, or a URL that the fleet can fetch.")
    return UrlRef(url=url)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file of requests."""

    number: int
    custom_id: str | None
    request: Submission[Document] | SubmitError
    """Or why it is none."""


class _Envelope(_Lenient):
    custom_id: str = Field(min_length=1, max_length=storable.LABEL)
    method: Literal["POST"] = "POST"
    url: Literal["/v1/chat/completions"]
    body: ChatRequest


def parse_line(number: int, written: bytes, batch: str, options: Options) -> Line:
    """Parse a line of a file. Its idempotency key makes it one job, however often it is submitted."""
    custom_id = None
    try:
        if len(written) > MOST_LINE:
            raise InvalidOptionError(f"A line may have at most {MOST_LINE:,} bytes.")
        value = json.loads(written)
        custom_id = value.get("custom_id") if isinstance(value, dict) else None
        custom_id = custom_id if isinstance(custom_id, str) else None
        envelope = _Envelope.model_validate(value)
        own = Submission(envelope.body.task(), key=f"{batch}/{number}", label=envelope.custom_id)
        request.check(Item(number, own), options)
    except SubmitError as error:
        return Line(number, custom_id, error)
    except ValidationError as error:
        return Line(number, custom_id, InvalidOptionError(first_of(error)))
    except (ValueError, RecursionError):
        return Line(number, custom_id, InvalidOptionError("The line is not valid JSON."))
    return Line(number, custom_id, own)


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines that are not blank. A line over the limit is cut after `MOST_LINE` + 1 bytes, or a bit later."""
    while line := file.readline(MOST_LINE + 1):
        rest = line
        while len(rest) > MOST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(MOST_LINE + 1)
        if not line.isspace():
            yield line


router = APIRouter()

_LONGEST_S: Final = 600.0
"""Time to wait for a page, the same as the default timeout of OpenAI's clients."""
_BODY: Final = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
_ERASED: Final = ("job_erased", "The result of this request was erased.")
_ENDS: Final = {
    JobState.CANCELLED: ("batch_cancelled", "This request was cancelled before it was answered."),
    JobState.EXPIRED: ("batch_expired", "This request was not answered within the completion window."),
}
_MODEL: Final = {"id": "pecia", "object": "model", "created": 0, "owned_by": "pecia"}


@router.post("/chat/completions", openapi_extra={"requestBody": _BODY})
async def complete_chat(
    bearer: Submitter, request: Request, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, Any]:
    """Read one page, and answer once it is read."""
    await bearer.check_load()
    bearers = bearers_of(request)
    async with bearers.spool.upload(bearer.limits, body_of(request)):
        chat = parse_chat(await request.body())
        task, lane = chat.task(), Lane(chat.pecia.get("priority", Lane.NORMAL))
        async with bearer.admitted({lane: 1}), bearers.submitting:
            limit = timedelta(seconds=_LONGEST_S)
            job = await bearer.client.submit(
                task, priority=lane, idempotency_key=idempotency_key, expires=limit
            )
    del chat, task
    try:
        with bearer.limits.wait(bearers.settings.gateway_streams):
            document = await job.result(timeout=_LONGEST_S)
    except (JobTimeoutError, JobExpiredError):
        raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, "timeout", "The page was not read in time.") from None
    return completion(job._view, document)  # noqa: SLF001  ours


@router.get("/models")
async def list_models(_: Anyone) -> dict[str, Any]:
    """List the fleet's one model name. Requests may name any model; the fleet's engines read them all."""
    return {"object": "list", "data": [_MODEL]}


@router.get("/models/{model:path}")
async def look_at_model(_: Anyone, model: str) -> dict[str, Any]:
    """Get the fleet as a model."""
    if model != _MODEL["id"]:
        raise ProblemError(HTTPStatus.NOT_FOUND, "model_not_found", "The fleet has one model name, pecia.")
    return _MODEL


def completion(job: JobView, document: Document) -> dict[str, Any]:
    """Return a job's result as a completion: its Markdown, or its fields as JSON, with verdict and doubts."""
    verdict = Verdict.worst(*(page.verdict for page in document.pages))
    usage, fields = document.usage, document.fields
    unfit = next((page.fields_text for page in document.pages if page.fields_text is not None), None)
    content = document.markdown if unfit is None else unfit
    if fields is not None:
        content = json.dumps(fields, ensure_ascii=False)
    return {
        "id": f"chatcmpl-{job.id.hex}",
        "object": "chat.completion",
        "created": int(job.submitted_at.timestamp()),
        "model": document.pages[0].engine,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None},
                "logprobs": None,
                "finish_reason": "length" if verdict is Verdict.TRUNCATED else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.output,
            "total_tokens": usage.prompt + usage.output,
        },
        "pecia": {
            "job_id": str(job.id),
            "verdict": verdict,
            "needs_review": verdict.needs_review,
            "doubts": [doubt.model_dump(mode="json") for page in document.pages for doubt in page.doubts],
            "failed_pages": [page.number for page in document.failed],
        },
    }


def of_job(job: JobView) -> tuple[str, str]:
    """Return the error code and sentence of a job without a result."""
    if job.erased_at is not None:
        return _ERASED
    failure = job.failure or Failure.of(FailureCode.INTERNAL)
    return _ENDS.get(job.state, (failure.code, failure.message))


def of_line(asked: object, batch: JobState) -> tuple[str, str]:
    """Return the error code and sentence of a line without a job, after its batch has ended."""
    if isinstance(asked, PeciaError):
        problem = of_error(asked)
        return problem.code, problem.detail
    return _ENDS.get(batch, _ERASED)


def output_line(custom_id: str | None, body: dict[str, Any]) -> bytes:
    """Return a line of an output file."""
    response = {"status_code": 200, "request_id": body["id"], "body": body}
    return _line(f"batch_req_{body['id']}", custom_id, response, None)


def error_line(batch: str, number: object, custom_id: str | None, reason: tuple[str, str]) -> bytes:
    """Return a line of an error file."""
    code, message = reason
    return _line(f"batch_req_{batch}-{number}", custom_id, None, {"code": code, "message": message})


def _line(name: str, custom_id: str | None, response: object, error: object) -> bytes:
    line = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
