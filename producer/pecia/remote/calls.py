"""Calls of a gateway: what takes the place of a database's transactions, for both kinds of client."""

from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

import httpx2

from pecia import errors
from pecia_schemas.settings import ClientSettings

_TRIES: Final = 4
_PAUSE_S: Final = 0.25
_READ_S: Final = 120.0
_OF_JOBS: Final[Mapping[str, Callable[[UUID, Any], errors.PeciaError]]] = {
    "job_not_found": lambda job_id, _: errors.JobNotFoundError(job_id),
    "job_erased": lambda job_id, said: errors.JobErasedError(
        job_id, datetime.fromisoformat(said["erased_at"])
    ),
    "retry_refused": lambda job_id, said: errors.RetryRefusedError(job_id, said["detail"]),
}
_REFUSED: Final[Mapping[str, Callable[[Any], errors.PeciaError]]] = {
    "idempotency_conflict": lambda said: errors.IdempotencyConflictError(UUID(said["existing_job_id"])),
    "invalid_source": lambda said: errors.InvalidSourceError(said["detail"]),
    "invalid_format": lambda said: errors.InvalidFormatError(said["detail"]),
    "batch_not_found": lambda said: errors.BatchNotFoundError(said["detail"]),
    "webhook_limit": lambda said: errors.EndpointLimitError(said["detail"]),
    "refused": lambda said: errors.SubmitError(said["detail"]),
}


class Caller:
    """A gateway, as the work of a transaction calls it."""

    def __init__(
        self, send: Callable[..., httpx2.Response], sleep: Callable[[float], None], *, repeatable: bool
    ) -> None:
        self._send = send
        self._sleep = sleep
        self._repeatable = repeatable

    def get(self, path: str, of: UUID | None = None, /, **params: Any) -> Any:
        """Return what is answered. Raises what its problem stands for."""
        query = {name: value for name, value in params.items() if value is not None}
        return self.ask("GET", path, job_id=of, params=query, headers={"Accept": "application/json"})

    def ask(self, method: str, path: str, *, job_id: UUID | None = None, **given: Any) -> Any:
        """Return what is answered: of JSON the object, of another type that was accepted the bytes, None for nothing.

        Raises what its problem stands for.
        """
        accepted = given.get("headers", {}).get("Accept", "application/json")
        for left in range(_TRIES - 1, -1, -1):
            try:
                answer = self._send(method, path, **given)
            except httpx2.TransportError as error:
                if not left or not self._repeatable:
                    raise errors.GatewayUnavailableError(
                        f"The gateway does not answer ({type(error).__name__}): check its URL."
                    ) from None
                self._sleep(_PAUSE_S)
                continue
            media_type, after = answer.headers.get("content-type", ""), answer.headers.get("retry-after", "")
            if answer.is_success and (media_type.startswith(accepted) or not answer.content):
                is_json = media_type.startswith("application/json")
                return (answer.json() if is_json else answer.content) if answer.content else None
            said = answer.json() if media_type.startswith("application/problem+json") else {}
            wait = float(after) if after.isdecimal() else 1.0
            is_paced = answer.status_code == HTTPStatus.TOO_MANY_REQUESTS and said.get("code") == "rate"
            if not left or not is_paced:
                raise error_of(said, answer.status_code, job_id, wait)
            self._sleep(wait)
        raise AssertionError  # the last try returns or raises


def error_of(
    said: dict[str, Any], status: int, job_id: UUID | None = None, wait: float = 0
) -> errors.PeciaError:
    """Return the error that a problem stands for."""
    code = said.get("code", "")
    detail = said.get(
        "detail", f"No answer of a gateway ({status}): check its URL, and what stands before it."
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
    """Return how a gateway is called: its address, the key, and how long an answer may take."""
    return {
        "base_url": settings.gateway_url.rstrip("/") + "/v1",
        "headers": {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"},
        "timeout": httpx2.Timeout(_READ_S, connect=settings.connect_timeout.total_seconds()),
    }
