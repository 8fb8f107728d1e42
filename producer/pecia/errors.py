"""Every error this client raises on purpose.

What is behind an arrow is an attribute::

    PeciaError
      ConfigurationError          (also ValueError)
        InvalidSettingError
      UnavailableError            (retryable) -> accepted, failures
        DatabaseUnavailableError
        PayloadStoreUnavailableError
        GatewayUnavailableError
      AccessError                 -> code, retry_after
      DatabaseRefusedError        -> sqlstate
      SubmitError
        SubmitManyError           -> accepted, failures
        QueueFullError            (retryable) -> lane, retry_after, accepted, failures
        InvalidSourceError        (also ValueError)
        InvalidOptionError        (also ValueError)
        IdempotencyConflictError  -> existing_job_id
      InvalidFormatError          (also ValueError)
      IdentityConflictError       (also ValueError)
      BatchNotFoundError          (also LookupError) -> reference
      EndpointLimitError
      JobError                    -> job_id
        JobNotFoundError          (also LookupError)
        JobTimeoutError           (also TimeoutError) -> timeout; the job goes on
        JobFailedError            -> failure
        JobCancelledError
        JobExpiredError
        JobErasedError            (also LookupError) -> erased_at
        DocumentGoneError         (also LookupError)
        RetryRefusedError         (also ValueError)
        StaleReviewError
      WrongLoopError              (also RuntimeError)
      WebhookVerificationError    (also ValueError)

A retryable error may be gone when the same call is repeated. `UnsignedCallbackWarning` is no error, but a warning of
Python's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

from pecia_schemas.failures import Failure
from pecia_schemas.states import Lane


class PeciaError(Exception):
    """Whatever Pecia raises on purpose."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, with nothing changed."""


class UnsignedCallbackWarning(UserWarning):
    """Callbacks of jobs' own webhooks wait: no webhook worker has `PECIA_WEBHOOK_SECRET`. The job itself goes on."""

    def __init__(self) -> None:
        super().__init__(
            "The job will not be called back: the fleet's webhook workers have no secret to sign with. "
            "Start them with PECIA_WEBHOOK_SECRET; until then its callbacks wait."
        )


class ConfigurationError(PeciaError, ValueError):
    """A setting is missing or wrong, or the database was never migrated."""


class InvalidSettingError(ConfigurationError):
    """A setting is unknown, incomplete or has a value that cannot be meant."""


class UnavailableError(PeciaError):
    """Something that the client needs does not answer."""

    retryable: ClassVar[bool] = True
    accepted: Sequence[Any] | None = None
    """The group of the jobs that `submit_many` had accepted before; None from any other call."""
    failures: Mapping[int, SubmitError] = MappingProxyType({})
    """The tasks that it had refused before, by number, counted from 0."""
    answered: Sequence[Any] = ()
    """Outcomes of the requests before the failed one, from which `accepted` and `failures` are made."""


class DatabaseUnavailableError(UnavailableError):
    """Postgres cannot be reached, or did not answer in time."""


class DatabaseRefusedError(PeciaError):
    """Postgres refuses what this call writes or asks for, whenever it is repeated."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        """Postgres's code; the name of the driver's error if it never came so far."""


class PayloadStoreUnavailableError(UnavailableError):
    """The payload store cannot be reached or written."""


class GatewayUnavailableError(UnavailableError):
    """The gateway cannot be reached, or cannot reach what it needs."""


class AccessError(PeciaError):
    """The gateway does not let this key do that, or no key at all."""

    def __init__(self, message: str, code: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        """Why, in one word: `no_key`, `scope_missing`, `lane_forbidden`, `not_offered`, …"""
        self.retry_after = retry_after
        """Seconds after which it may be let, if that is a matter of time."""


class SubmitError(PeciaError):
    """Work was not accepted; nothing of that work was written to the database."""


class SubmitManyError(SubmitError):
    """Some of many tasks were not accepted. The others were, and are kept."""

    def __init__(self, accepted: Sequence[Any], failures: Mapping[int, SubmitError]) -> None:
        number, first = next(iter(failures.items()))
        super().__init__(
            f"{len(failures)} of {len(failures) + len(accepted)} tasks were not accepted, the others were. "
            f"Task {number}, counted from 0: {first}"
        )
        self.accepted = accepted
        """The group of the jobs of the others, in the order of their tasks."""
        self.failures = failures
        """What was wrong with each, by the number of the task, counted from 0."""


class QueueFullError(SubmitError):
    """The lane has its limit of waiting parts (`PECIA_MAX_BACKLOG`); it is worth trying again later."""

    retryable: ClassVar[bool] = True
    accepted: Sequence[Any] | None = None
    """The group of the jobs that `submit_many` had accepted before; None from `submit`."""
    failures: Mapping[int, SubmitError] = MappingProxyType({})
    """The tasks that it had refused before, by number, counted from 0."""
    answered: Sequence[Any] = ()
    """Outcomes of the requests before the failed one, from which `accepted` and `failures` are made."""

    def __init__(self, lane: Lane, limit: int, *, retry_after: float) -> None:
        super().__init__(
            f"Lane {lane} is full, {limit} parts wait in it: try again in {retry_after:g} s, or wait for room with "
            "block=True."
        )
        self.lane = lane
        self.retry_after = retry_after
        """Seconds, by how fast the lane was worked off lately."""


class InvalidSourceError(SubmitError, ValueError):
    """The source of a task cannot be read: missing, unreadable, or not binary."""


class InvalidOptionError(SubmitError, ValueError):
    """An option of a submit has a value that cannot be meant."""


class IdempotencyConflictError(SubmitError):
    """The idempotency key already names a job for another task."""

    def __init__(self, existing_job_id: UUID) -> None:
        super().__init__(
            f"This idempotency key already names job {existing_job_id}, which is for another task or lane: "
            "use another key, or submit the very same task."
        )
        self.existing_job_id = existing_job_id


class InvalidFormatError(PeciaError, ValueError):
    """No such form exists, or results of this kind do not have it."""


class IdentityConflictError(PeciaError, ValueError):
    """Pages of two patients, or not surely of one, would be put together."""


class EndpointLimitError(PeciaError):
    """There are as many endpoints as a tenant may have (`PECIA_MAX_ENDPOINTS`): remove one before another is added."""


class JobError(PeciaError):
    """Something about one job."""

    def __init__(self, job_id: UUID, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFoundError(JobError, LookupError):
    """There is no such job."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            job_id, f"There is no job {job_id} in this database; `pecia list` shows those there are."
        )


class BatchNotFoundError(PeciaError, LookupError):
    """There is no such batch, or more than one."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            f"There is no batch {reference!r}, or more than one: give its name, its id, or more of its id."
        )
        self.reference = reference


class JobTimeoutError(JobError, TimeoutError):
    """The caller's timeout ended first. The job goes on, untouched."""

    def __init__(self, job_id: UUID, timeout: float) -> None:
        super().__init__(
            job_id, f"Job {job_id} is not finished after {timeout:g} s; it goes on, wait for it again."
        )
        self.timeout = timeout


class JobFailedError(JobError):
    """The job has no result; `failure` says why and what to do."""

    def __init__(self, job_id: UUID, failure: Failure) -> None:
        super().__init__(job_id, f"Job {job_id} failed ({failure.code}): {failure.message}")
        self.failure = failure


class JobCancelledError(JobError):
    """The job was cancelled before it was finished."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(job_id, f"Job {job_id} was cancelled; `retry` runs the missing parts.")


class JobExpiredError(JobError):
    """The job was not finished before the time its submitter set."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            job_id, f"Job {job_id} expired before it was finished; `retry` runs the missing parts."
        )


class JobErasedError(JobError, LookupError):
    """What the job made was erased since, by the fleet's retention or by a purge."""

    def __init__(self, job_id: UUID, erased_at: datetime) -> None:
        super().__init__(
            job_id,
            f"The result of job {job_id} was erased at {erased_at:%Y-%m-%d %H:%M:%S %Z}: submit the document anew.",
        )
        self.erased_at = erased_at


class DocumentGoneError(JobError, LookupError):
    """The document itself is needed, and is not kept any more; its result is."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            job_id,
            f"The document of job {job_id} is not in the payload store any more, so there are no pictures for a PDF: "
            "take the result as text, markdown, json or hocr.",
        )


class RetryRefusedError(JobError, ValueError):
    """There is nothing to run again: the job is at work, has succeeded, or its document was erased."""


class StaleReviewError(JobError):
    """The page, or the split of a bundle, has another revision than the one that was looked at."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(job_id, f"Job {job_id} has been reviewed elsewhere since: look at it again.")


class WrongLoopError(PeciaError, RuntimeError):
    """An `AsyncClient` is used in another event loop, or process, than the one in which it was first used."""

    def __init__(self) -> None:
        super().__init__(
            "This client belongs to the event loop in which it was first used, and this is another one, or a forked "
            "process: make a client in each loop, and close it (`async with`) before its loop ends."
        )


class WebhookVerificationError(PeciaError, ValueError):
    """A request does not come from the fleet that holds the secret, or is too old."""
