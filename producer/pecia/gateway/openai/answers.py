"""Answers of OpenAI's API: a page as a completion, a failed job as an error."""

from __future__ import annotations

import json
from typing import Any, Final

from pecia.errors import PeciaError
from pecia.gateway.problems import of_error
from pecia.handles import JobView
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Document, Verdict
from pecia_schemas.states import JobState

_ERASED: Final = ("job_erased", "The result of this request was erased.")
_ENDS: Final = {
    JobState.CANCELLED: ("batch_cancelled", "This request was cancelled before it was answered."),
    JobState.EXPIRED: ("batch_expired", "This request was not answered within the completion window."),
}


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
