"""Errors as `application/problem+json` (RFC 9457): one table from what is raised to what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from pecia import errors
from pecia.errors import PeciaError
from pecia_schemas.failures import FailureCode

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_S: Final = 5


class Refused(BaseModel):
    """A part of the request that cannot be meant."""

    where: str
    """Its place, as in `tasks.0.language`."""
    message: str


class Problem(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:pecia:problem:job_not_found",
                    "title": "Not Found",
                    "status": 404,
                    "code": "job_not_found",
                    "detail": "There is no job 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11.",
                }
            ]
        }
    )

    type: str
    """`urn:pecia:problem:CODE`."""
    title: str
    status: int
    code: str
    """What went wrong, in one word; it does not change between versions."""
    detail: str
    failure: FailureCode | None = None
    """Why the job has no result, if it failed."""
    erased_at: datetime | None = None
    """Since when the job's result is gone."""
    existing_job_id: str | None = None
    """Which job has the idempotency key."""
    errors: list[Refused] = Field(default_factory=list)
    """What of the request cannot be meant."""


class ProblemError(Exception):
    """A request that the gateway itself refuses."""

    def __init__(
        self, status: HTTPStatus, code: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, headers


_OF_ERRORS: Final[Mapping[type[PeciaError], tuple[HTTPStatus, str]]] = {
    errors.JobNotFoundError: (HTTPStatus.NOT_FOUND, "job_not_found"),
    errors.BatchNotFoundError: (HTTPStatus.NOT_FOUND, "batch_not_found"),
    errors.JobTimeoutError: (HTTPStatus.CONFLICT, "job_not_over"),
    errors.JobFailedError: (HTTPStatus.CONFLICT, "job_failed"),
    errors.JobCancelledError: (HTTPStatus.CONFLICT, "job_cancelled"),
    errors.JobExpiredError: (HTTPStatus.CONFLICT, "job_expired"),
    errors.RetryRefusedError: (HTTPStatus.CONFLICT, "retry_refused"),
    errors.IdempotencyConflictError: (HTTPStatus.CONFLICT, "idempotency_conflict"),
    errors.JobErasedError: (HTTPStatus.GONE, "job_erased"),
    errors.DocumentGoneError: (HTTPStatus.GONE, "document_gone"),
    errors.QueueFullError: (HTTPStatus.TOO_MANY_REQUESTS, "queue_full"),
    errors.InvalidSourceError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_source"),
    errors.InvalidOptionError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_option"),
    errors.InvalidFormatError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_format"),
    errors.SubmitError: (HTTPStatus.UNPROCESSABLE_ENTITY, "refused"),
    errors.DatabaseRefusedError: (HTTPStatus.UNPROCESSABLE_ENTITY, "refused"),
    errors.UnavailableError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
    errors.ConfigurationError: (HTTPStatus.SERVICE_UNAVAILABLE, "not_configured"),
}
_RETRIED: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


def of_error(error: PeciaError) -> Problem:
    """Return what is said of an error of the client. Its text names ids and settings, nothing of a document."""
    known = next((found for kind, found in _OF_ERRORS.items() if isinstance(error, kind)), None)
    status, code = known or (HTTPStatus.UNPROCESSABLE_ENTITY, "refused")
    detail = "The fleet's stores do not answer." if status is HTTPStatus.SERVICE_UNAVAILABLE else str(error)
    return _problem(status, code, detail).model_copy(
        update={
            "failure": error.failure.code if isinstance(error, errors.JobFailedError) else None,
            "erased_at": error.erased_at if isinstance(error, errors.JobErasedError) else None,
            "existing_job_id": str(error.existing_job_id)
            if isinstance(error, errors.IdempotencyConflictError)
            else None,
        }
    )


def _problem(status: HTTPStatus, code: str, detail: str) -> Problem:
    return Problem(
        type=f"urn:pecia:problem:{code}", title=status.phrase, status=status, code=code, detail=detail
    )


def _answer(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    content = problem.model_dump(mode="json", exclude_defaults=True)
    if problem.status in _RETRIED:
        headers = {"Retry-After": str(_RETRY_S), **(headers or {})}
    return JSONResponse(content, problem.status, headers, MEDIA_TYPE)


async def answer_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer what a client of the fleet raised."""
    assert isinstance(error, PeciaError)  # noqa: S101  it is registered for these
    wait = getattr(error, "retry_after", None)
    return _answer(of_error(error), None if wait is None else {"Retry-After": str(max(1, round(wait)))})


async def answer_problem(_request: Request, error: Exception) -> JSONResponse:
    """Answer what the gateway itself refuses."""
    assert isinstance(error, ProblemError)  # noqa: S101  as above
    return _answer(_problem(error.status, error.code, error.detail), error.headers)


async def answer_http(_request: Request, error: Exception) -> JSONResponse:
    """Answer what the framework refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101  as above
    status = HTTPStatus(error.status_code)
    code = status.name.lower()
    return _answer(_problem(status, code, f"{status.phrase}."), error.headers)


async def answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request that has not the form of the API. What it held is not repeated."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  as above
    return _answer(of_invalid(error.errors()))


def of_invalid(found: Any) -> Problem:
    """Return what is said of values that pydantic refused."""
    said = [Refused(where=".".join(str(step) for step in one["loc"]), message=one["msg"]) for one in found]
    problem = _problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", "The request cannot be meant: `errors` says why."
    )
    return problem.model_copy(update={"errors": said})


async def answer_fault(_request: Request, _error: Exception) -> JSONResponse:
    """Answer an unexpected error without its text, which may quote a document."""
    return _answer(
        _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "A fault of the gateway: see its log.")
    )


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return how OpenAPI describes these answers, beside those that every route may give."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 403, 422, 429, 503, *statuses})
    }
