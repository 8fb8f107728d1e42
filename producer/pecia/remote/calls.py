"""Requests to a gateway, the meaning of its answers, and retries. No I/O."""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import IO, Any, Final
from uuid import UUID

import httpx2
from pydantic import TypeAdapter

from pecia import errors, records, request, sources
from pecia.handles import Accepted, JobView
from pecia.request import Item, Options
from pecia.submission import Outcome
from pecia_schemas.events import JobEvent
from pecia_schemas.media import PayloadRef, UrlRef
from pecia_schemas.running import Lack
from pecia_schemas.settings import ClientSettings

TRIES: Final = 4
PAUSE_S: Final = 0.25
AT_ONCE: Final = 500
"""Maximum number of jobs or parts in one answer."""
IDS: Final = 150
"""Maximum number of ids in one URL: proxies accept some 8,000 characters."""
FILES: Final = 100
_BYTES: Final = 32 * 1024**2
"""Maximum size of a request with several documents, in bytes."""
_READ_S: Final = 120.0
DRAWING: Final = httpx2.Timeout(1800, connect=10)
"""Timeout for results with pictures, which may have hundreds of pages."""
VIEW: Final = TypeAdapter(JobView)
OUTCOMES: Final = TypeAdapter(list[records.PartOutcome])
PAGES: Final = TypeAdapter(list[records.FoundPage])
LACKS: Final = TypeAdapter(list[Lack])
EVENTS: Final = TypeAdapter(list[JobEvent])
ENDPOINTS: Final = TypeAdapter(list[records.Endpoint])
DELIVERIES: Final = TypeAdapter(list[records.Delivery])

_OF_JOBS: Final[Mapping[str, Callable[[UUID, Any], errors.PeciaError]]] = {
    "job_not_found": lambda job_id, _: errors.JobNotFoundError(job_id),
    "job_erased": lambda job_id, said: errors.JobErasedError(
        job_id, datetime.fromisoformat(said["erased_at"])
    ),
    "stale": lambda job_id, _: errors.StaleReviewError(job_id),
    "retry_refused": lambda job_id, said: errors.RetryRefusedError(job_id, said["detail"]),
}
_REFUSED: Final[Mapping[str, Callable[[Any], errors.PeciaError]]] = {
    "idempotency_conflict": lambda said: errors.IdempotencyConflictError(UUID(said["existing_job_id"])),
    "invalid_source": lambda said: errors.InvalidSourceError(said["detail"]),
    "identity_conflict": lambda said: errors.IdentityConflictError(said["detail"]),
    "invalid_format": lambda said: errors.InvalidFormatError(said["detail"]),
    "batch_not_found": lambda said: errors.BatchNotFoundError(said["detail"]),
    "webhook_limit": lambda said: errors.EndpointLimitError(said["detail"]),
    "refused": lambda said: errors.SubmitError(said["detail"]),
}

Documents = Sequence[tuple[Item, IO[bytes] | None]]
"""Tasks with their documents, positioned at the start; None for a document that the fleet fetches."""


def pause(answer: httpx2.Response, job_id: UUID | None, accepted: str, *, is_last: bool) -> float | None:
    """Return the seconds before the next try, or None for a final answer. Raises the error of a problem document."""
    media_type, after = answer.headers.get("content-type", ""), answer.headers.get("retry-after", "")
    if answer.is_success and (media_type.startswith(accepted) or not answer.content):
        return None
    problem = answer.json() if media_type.startswith("application/problem+json") else {}
    wait = float(after) if after.isdecimal() else 1.0
    is_paced = answer.status_code == HTTPStatus.TOO_MANY_REQUESTS and problem.get("code") == "rate"
    if is_last or not is_paced:
        raise error_of(problem, answer.status_code, job_id, wait)
    return wait


def error_of(
    said: dict[str, Any], status: int, job_id: UUID | None = None, wait: float = 0
) -> errors.PeciaError:
    """Return the error that a problem document describes."""
    code = said.get("code", "")
    detail = said.get(
        "detail", f"The answer is not from a gateway ({status}): check its URL, and any proxy in front of it."
    )
    if job_id is not None and code in _OF_JOBS:
        return _OF_JOBS[code](job_id, said)
    if code in _REFUSED:
        return _REFUSED[code](said)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS):
        return errors.AccessError(
            detail, code, retry_after=wait if status == HTTPStatus.TOO_MANY_REQUESTS else None
        )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT or not said:
        return errors.GatewayUnavailableError(detail)
    more = "; ".join(f"{one['where']}: {one['message']}" for one in said.get("errors", ()))
    return errors.InvalidOptionError(more or detail)


def http_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the HTTP options for a gateway: its address, the key, and timeouts."""
    return {
        "base_url": settings.gateway_url.rstrip("/") + "/v1",
        "headers": {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"},
        "timeout": httpx2.Timeout(_READ_S, connect=settings.connect_timeout.total_seconds()),
    }


class NotOffered:
    """Stands for an operation that a gateway does not offer. Any call raises an error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise not_offered(self._what)


def not_offered(what: str) -> errors.AccessError:
    """Return the error for a call that only operators have."""
    return errors.AccessError(
        f"A gateway does not offer {what}: run it where the stores can be reached.", "not_offered"
    )


@contextmanager
def of_batch(reference: str) -> Iterator[None]:
    """Raise `BatchNotFoundError` with the caller's reference; the gateway's problem has only a sentence."""
    try:
        yield
    except errors.BatchNotFoundError:
        raise errors.BatchNotFoundError(reference) from None


def query_of(listing: records.Listing) -> dict[str, Any]:
    """Return a listing as the query of a gateway."""
    metadata = listing.metadata or {}
    if any("=" in key for key in metadata):
        raise errors.InvalidOptionError(
            "A gateway cannot find jobs by a metadata key that contains an equals sign."
        )
    return {
        "state": list(listing.states),
        "verdict": list(listing.verdicts),
        "kind": listing.kind,
        "batch": listing.batch and str(listing.batch),
        "part": listing.part and str(listing.part),
        "metadata": [f"{key}={value}" for key, value in metadata.items()],
        "since": listing.since and listing.since.isoformat(),
    }


def opened(
    stack: ExitStack, items: Sequence[Item], options: Options
) -> tuple[list[tuple[Item, IO[bytes] | None]], list[Outcome]]:
    """Return the first tasks that fit a request with their documents, and the tasks that are refused here."""
    documents: list[tuple[Item, IO[bytes] | None]] = []
    refused: list[Outcome] = []
    size = 0
    for item in items:
        try:
            document = _opened(stack, item, options)
            size += document.seek(0, os.SEEK_END) if document else 0
            documents.append((item, document))
        except errors.SubmitError as error:
            refused.append((item.number, error))
        except (OSError, TypeError) as error:
            refused.append((item.number, sources.unreadable(error)))
        if size >= _BYTES:
            break
    return documents, refused


def _opened(stack: ExitStack, item: Item, options: Options) -> IO[bytes] | None:
    request.check(item, options)
    source = item.own.task.source
    if isinstance(source, PayloadRef):
        raise errors.InvalidSourceError(
            "A gateway does not take references to stored documents: submit the file itself."
        )
    if isinstance(source, UrlRef):
        return None
    file = stack.enter_context(sources.opened(source))
    if not isinstance(file.read(0), bytes):
        raise TypeError
    return io.BytesIO(file.read()) if file.tell() else file


def body_of(documents: Documents, options: Options) -> dict[str, Any]:
    """Return a request for these tasks, as options of `httpx2`."""
    body = json.dumps(_request([item for item, _ in documents], options))
    files = [("file", (str(item.number), document)) for item, document in documents if document is not None]
    if files:
        return {"files": files, "data": {"request": body}}
    return {"content": body, "headers": {"Content-Type": "application/json"}}


def queue_full(error: errors.AccessError, options: Options) -> errors.AccessError | errors.QueueFullError:
    """Return the error of a refused submit: a `QueueFullError` if it is temporary."""
    if error.retry_after is None:
        return error
    full = errors.QueueFullError(options.priority, 0, retry_after=error.retry_after)
    full.args = error.args
    return full


def outcomes_of(answer: Mapping[str, Any], documents: Documents) -> Iterator[Outcome]:
    """Yield the outcome of each task of a request."""
    for made in answer["jobs"]:
        view = VIEW.validate_python(made)
        yield documents[made["number"]][0].number, Accepted(view=view, created=made["created"], flow=view.id)
    for refused in answer["refused"]:
        problem = refused["problem"]
        said = error_of(problem, problem["status"])
        assert isinstance(said, errors.SubmitError)  # noqa: S101  of a task nothing else is said
        yield documents[refused["number"]][0].number, said


def _request(items: Sequence[Item], options: Options) -> Mapping[str, Any]:
    from pecia_schemas.tasks import task_to_json  # noqa: PLC0415  tasks are slow to load

    tasks: list[dict[str, Any]] = []
    for own in (item.own for item in items):
        url = own.task.source.url if isinstance(own.task.source, UrlRef) else None
        about = {
            "url": url,
            "kind": own.task.kind,
            "label": own.label,
            "metadata": None if own.metadata is None else dict(own.metadata),
        }
        tasks.append(task_to_json(own.task, UrlRef(url=url or "")) | about)
        del tasks[-1]["source"]
    about_all = options.model_dump(mode="json", exclude={"client", "fair_by", "tenant"})
    keys = [item.own.key or str(item.job_id) for item in items]
    return {"tasks": tasks, **about_all, "idempotency_keys": keys}
