"""Errors as `application/problem+json` (RFC 9457), with one table from exceptions to answers."""

from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from pecia import errors
from pecia.errors import PeciaError
from pecia_schemas.failures import FailureCode

MEDIA_TYPE: Final = "application/problem+json"
OPENAI: Final = "/openai/v1"
"""Path prefix of the OpenAI API, whose errors have OpenAI's form."""
CODES: Final = {
    "batch_not_found": "The tenant has no batch of this name or id.",
    "busy": "The gateway is fully loaded: repeat after `Retry-After`.",
    "delivery_not_found": "The tenant has no delivery of this id.",
    "delivery_not_over": "The delivery has not ended yet: replay it later.",
    "disconnected": "The client closed the connection during the request.",
    "document_gone": "The document was erased: submit it again.",
    "file_not_found": "The tenant has no file of requests with this id.",
    "foreign_page": "A web page of another origin tried to change something with the browser's key.",
    "form": "The form is malformed, or lacks a part.",
    "idempotency_conflict": "The idempotency key belongs to another request's job: `existing_job_id`.",
    "idempotency_key": "The number of idempotency keys and tasks differs, or a key is empty or too long.",
    "identity_conflict": "The request would combine pages of two patients, or pages that may be of two.",
    "internal": "The gateway has a fault: see its log.",
    "invalid_format": "The result does not exist in this format.",
    "invalid_option": "An option has an invalid value.",
    "invalid_request": "The request is invalid: `errors` has the places.",
    "invalid_source": "The document is invalid: `detail` has the reason.",
    "job_cancelled": "The job was cancelled: it has no result.",
    "job_erased": "The job's result was erased at `erased_at`.",
    "job_expired": "The job expired before it was read.",
    "job_failed": "The job has no result: `failure` has the failure code.",
    "job_not_found": "The tenant has no job of this id.",
    "job_not_over": "The job has not ended yet: ask again, or stream it.",
    "key_not_found": "The tenant has no key of this id.",
    "lane_forbidden": "The key may not submit to this lane.",
    "media_type": "This route does not accept the body's media type.",
    "method_not_allowed": "This address does not support this method.",
    "model_not_found": "The fleet has one model name, `pecia`.",
    "no_document": "The bundle has no document with this number.",
    "no_key": "The key does not exist or was revoked.",
    "no_request": "The request is not valid HTTP/1.1.",
    "not_configured": "The gateway lacks a setting for this.",
    "not_found": "Nothing exists at this address.",
    "pages_in_flight": "The key has its maximum number of pages in flight.",
    "pages_per_day": "The key has submitted its maximum number of pages in 24 hours.",
    "queue_full": "The lane is full: repeat after `Retry-After`.",
    "rate": "The key makes too many requests a second: repeat after `Retry-After`.",
    "refused": "The request is refused: `detail` has the reason.",
    "results": "The key has too many results in progress.",
    "retry_refused": "The job cannot be retried: `detail` has the reason.",
    "scope_missing": "The key lacks the scope for this request.",
    "stale": "Someone else corrected the page meanwhile: load it again.",
    "streams": "The key has too many streams and waits open.",
    "timeout": "The page was not read in time; its job continues.",
    "too_large": "The request is larger than this route accepts.",
    "too_slow": "The request came too slowly: send it again.",
    "unavailable": "The fleet's stores do not answer: repeat after `Retry-After`.",
    "uploads": "The key uploads too many documents at a time.",
    "validation": "The body is not a valid sign-in.",
    "webhook_limit": "The tenant has its maximum number of webhooks.",
    "webhook_not_found": "The tenant has no webhook of this id.",
}
"""Each code of a problem, with its meaning."""
_RETRY_S: Final = 5


class Refused(BaseModel):
    """An invalid part of the request."""

    where: str
    """Place of the part, as in `tasks.0.language`."""
    message: str


class Problem(BaseModel):
    """An error, by RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:pecia:problem:job_not_found",
                    "title": "Not Found",
                    "status": 404,
                    "code": "job_not_found",
                    "detail": "Job 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11 does not exist in this database.",
                }
            ]
        }
    )

    type: str
    """`urn:pecia:problem:CODE`."""
    title: str
    status: int
    code: str
    """Code of the error, one of the list at the head of this description; it does not change between versions."""
    detail: str
    failure: FailureCode | None = None
    """Failure code of a job without a result."""
    erased_at: datetime | None = None
    """When the job's result was erased."""
    existing_job_id: str | None = None
    """The job to which the idempotency key belongs."""
    errors: list[Refused] = Field(default_factory=list)
    """The invalid parts of the request."""


class ProblemError(HTTPException):
    """A request that the gateway itself refuses. A subclass of `HTTPException`, because FastAPI passes that on."""

    def __init__(
        self, status: HTTPStatus, code: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers)
        self.status, self.code = status, code


def too_many(code: str, detail: str, wait: int) -> ProblemError:
    """Return the refusal for a key that exceeds one of its limits."""
    return ProblemError(HTTPStatus.TOO_MANY_REQUESTS, code, detail, headers={"Retry-After": str(wait)})


def busy(detail: str) -> ProblemError:
    """Return the refusal for a gateway process that is fully loaded."""
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE, "busy", detail, headers={"Retry-After": str(_RETRY_S)}
    )


_OF_ERRORS: Final[Mapping[type[PeciaError], tuple[HTTPStatus, str]]] = {
    errors.JobNotFoundError: (HTTPStatus.NOT_FOUND, "job_not_found"),
    errors.BatchNotFoundError: (HTTPStatus.NOT_FOUND, "batch_not_found"),
    errors.JobTimeoutError: (HTTPStatus.CONFLICT, "job_not_over"),
    errors.JobFailedError: (HTTPStatus.CONFLICT, "job_failed"),
    errors.JobCancelledError: (HTTPStatus.CONFLICT, "job_cancelled"),
    errors.JobExpiredError: (HTTPStatus.CONFLICT, "job_expired"),
    errors.RetryRefusedError: (HTTPStatus.CONFLICT, "retry_refused"),
    errors.StaleReviewError: (HTTPStatus.CONFLICT, "stale"),
    errors.IdempotencyConflictError: (HTTPStatus.CONFLICT, "idempotency_conflict"),
    errors.JobErasedError: (HTTPStatus.GONE, "job_erased"),
    errors.DocumentGoneError: (HTTPStatus.GONE, "document_gone"),
    errors.EndpointLimitError: (HTTPStatus.CONFLICT, "webhook_limit"),
    errors.QueueFullError: (HTTPStatus.TOO_MANY_REQUESTS, "queue_full"),
    errors.InvalidSourceError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_source"),
    errors.InvalidOptionError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_option"),
    errors.IdentityConflictError: (HTTPStatus.CONFLICT, "identity_conflict"),
    errors.InvalidFormatError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_format"),
    errors.SubmitError: (HTTPStatus.UNPROCESSABLE_ENTITY, "refused"),
    errors.DatabaseRefusedError: (HTTPStatus.UNPROCESSABLE_ENTITY, "refused"),
    errors.UnavailableError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
    errors.ConfigurationError: (HTTPStatus.SERVICE_UNAVAILABLE, "not_configured"),
}
_RETRIED: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


def of_error(error: Exception) -> Problem:
    """Return the problem of an error. A client error's text has only ids and settings; a fault's text is left out."""
    if not isinstance(error, PeciaError):
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "The gateway has a fault: see its log.")
    known = next((found for kind, found in _OF_ERRORS.items() if isinstance(error, kind)), None)
    status, code = known or (HTTPStatus.UNPROCESSABLE_ENTITY, "refused")
    detail = str(error)
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        detail = "The fleet's stores do not answer."
    elif isinstance(error, errors.DatabaseRefusedError):  # its text names the database
        detail = "A value is too long or too large, or cannot be stored: change it."
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


async def answer(request: Request, error: Exception) -> JSONResponse:
    """Answer an exception, below `/openai/` in the form of OpenAI's API."""
    return response_to(error, as_openai=request.url.path.startswith(OPENAI))


def response_to(error: Exception, *, as_openai: bool = False) -> JSONResponse:
    """Return the answer to an exception.

    The answer repeats nothing of the request, and no text of a fault, which may quote the request.
    """
    headers: Mapping[str, str] | None = None
    match error:
        case PeciaError():
            problem, wait = of_error(error), getattr(error, "retry_after", None)
            headers = None if wait is None else {"Retry-After": str(max(1, round(wait)))}
        case ProblemError():
            problem, headers = _problem(error.status, error.code, error.detail), error.headers
        case ClientDisconnect():  # the client is gone: it reads no answer
            problem = _problem(HTTPStatus.BAD_REQUEST, "disconnected", "The request was cut off.")
        case HTTPException():
            status = HTTPStatus(error.status_code)
            problem, headers = _problem(status, status.name.lower(), f"{status.phrase}."), error.headers
        case RequestValidationError():
            detail = "The request is invalid: `errors` has the reasons."
            problem = _problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", detail)
            problem.errors += [
                Refused(
                    where=".".join(map(str, one["loc"])), message=one["msg"].removeprefix("Value error, ")
                )
                for one in error.errors()
            ]
        case _:
            problem = of_error(error)
    content = problem.model_dump(mode="json", exclude_defaults=True)
    if problem.status in _RETRIED:
        headers = {"Retry-After": str(_RETRY_S), **(headers or {})}
    if as_openai:
        return JSONResponse({"error": _for_openai(problem)}, _status_for_openai(problem), headers)
    return JSONResponse(content, problem.status, headers, MEDIA_TYPE)


def _status_for_openai(problem: Problem) -> int:
    """Return the status for OpenAI's clients, which repeat a request after 409: only if repeating may help."""
    if problem.failure is not None:
        final = HTTPStatus.UNPROCESSABLE_ENTITY
        return HTTPStatus.INTERNAL_SERVER_ERROR if problem.failure.retryable else final
    invalid = problem.status == HTTPStatus.UNPROCESSABLE_ENTITY
    return HTTPStatus.BAD_REQUEST if invalid else problem.status


def _for_openai(problem: Problem) -> dict[str, Any]:
    kind = "server_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {
        "message": "; ".join((problem.detail, *(f"{one.where}: {one.message}" for one in problem.errors))),
        "type": "rate_limit_error" if problem.status == HTTPStatus.TOO_MANY_REQUESTS else kind,
        "param": problem.errors[0].where if problem.errors else None,
        "code": problem.failure or problem.code,
    }


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of these answers, and of the answers that every route may give."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 403, 408, 413, 422, 429, 503, *statuses})
    }
