"""One page at a time over HTTP, as OpenAI's clients ask for it, and what a job is in the answers of that API."""

from __future__ import annotations

import json
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request

from pecia.errors import JobExpiredError, JobTimeoutError, PeciaError
from pecia.gateway.identity import Anyone, Submitter, bearers_of, body_of
from pecia.gateway.openai.requests import parse_chat
from pecia.gateway.problems import ProblemError, of_error
from pecia.handles import JobView
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Document, Verdict
from pecia_schemas.states import JobState, Lane

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
