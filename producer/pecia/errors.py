"""All errors that this client raises on purpose.

Names after an arrow are attributes::

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
        JobTimeoutError           (also TimeoutError) -> timeout; the job continues
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
    """Base class of all errors that Pecia raises on purpose."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without any change."""


class UnsignedCallbackWarning(UserWarning):
    """No webhook worker has `PECIA_WEBHOOK_SECRET`, so callbacks of jobs' own webhooks wait. The jobs continue."""

    def __init__(self) -> None:
        super().__init__(
            "The job's callbacks wait: the fleet's webhook workers have no secret to sign them. "
            "Start a webhook worker with PECIA_WEBHOOK_SECRET."
        )


class ConfigurationError(PeciaError, ValueError):
    """A setting is missing or wrong, or the database was never migrated."""


class InvalidSettingError(ConfigurationError):
    """A setting is unknown, incomplete or invalid."""


class UnavailableError(PeciaError):
    """A service that the client needs does not answer."""

    retryable: ClassVar[bool] = True
    accepted: Sequence[Any] | None = None
    """Group of the jobs that `submit_many` had accepted before the failure; None from any other call."""
    failures: Mapping[int, SubmitError] = MappingProxyType({})
    """Tasks that had been refused before the failure, by their number, from 0."""
    answered: Sequence[Any] = ()
    """Outcomes of the requests before the failed one; `accepted` and `failures` are made from them."""


class DatabaseUnavailableError(UnavailableError):
    """Postgres cannot be reached, or did not answer in time."""


class DatabaseRefusedError(PeciaError):
    """Postgres refuses a statement of this call. Repeating the call does not help."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        """SQLSTATE of Postgres, or the name of the driver's error if the statement never reached Postgres."""


class PayloadStoreUnavailableError(UnavailableError):
    """The payload store cannot be reached or written."""


class GatewayUnavailableError(UnavailableError):
    """The gateway cannot be reached, or a service that it needs is unavailable."""


class AccessError(PeciaError):
    """The gateway refuses the request: the key is missing, invalid or lacks a right."""

    def __init__(self, message: str, code: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        """Reason in one word: `no_key`, `scope_missing`, `lane_forbidden`, `not_offered`, …"""
        self.retry_after = retry_after
        """Seconds after which the request may be allowed; None if waiting does not help."""


class SubmitError(PeciaError):
    """A task was not accepted. Nothing of it was written to the database."""


class SubmitManyError(SubmitError):
    """Some of many tasks were not accepted. The other tasks were accepted and stay so."""

    def __init__(self, accepted: Sequence[Any], failures: Mapping[int, SubmitError]) -> None:
        number, first = next(iter(failures.items()))
        super().__init__(
            f"{len(failures)} of {len(failures) + len(accepted)} tasks were refused, the others accepted. "
            f"Task {number}, counted from 0: {first}"
        )
        self.accepted = accepted
        """Group of the accepted jobs, in the order of their tasks."""
        self.failures = failures
        """Error of each refused task, by the number of the task, from 0."""


class QueueFullError(SubmitError):
    """The lane holds the maximum number of waiting parts (`PECIA_MAX_BACKLOG`). Try again later."""

    retryable: ClassVar[bool] = True
    accepted: Sequence[Any] | None = None
    """Group of the jobs that `submit_many` had accepted before the failure; None from `submit`."""
    failures: Mapping[int, SubmitError] = MappingProxyType({})
    """Tasks that had been refused before the failure, by their number, from 0."""
    answered: Sequence[Any] = ()
    """Outcomes of the requests before the failed one; `accepted` and `failures` are made from them."""

    def __init__(self, lane: Lane, limit: int, *, retry_after: float) -> None:
        super().__init__(
            f"Lane {lane} is full, {limit} parts wait in it: try again in {retry_after:g} s, or submit with "
            "block=True to wait."
        )
        self.lane = lane
        self.retry_after = retry_after
        """Estimated seconds until the lane has capacity, from its recent throughput."""


class InvalidSourceError(SubmitError, ValueError):
    """The source of a task cannot be read: missing, unreadable, or not binary."""


class InvalidOptionError(SubmitError, ValueError):
    """An option of a submit has an invalid value."""


class IdempotencyConflictError(SubmitError):
    """The idempotency key already names a job for another task."""

    def __init__(self, existing_job_id: UUID) -> None:
        super().__init__(
            f"This idempotency key already names job {existing_job_id}, which is for another task or lane: "
            "use another key, or submit the very same task."
        )
        self.existing_job_id = existing_job_id


class InvalidFormatError(PeciaError, ValueError):
    """The format does not exist, or does not apply to results of this kind."""


class IdentityConflictError(PeciaError, ValueError):
    """The call would combine pages of two patients, or pages that may be of two."""


class EndpointLimitError(PeciaError):
    """The tenant has the maximum number of endpoints (`PECIA_MAX_ENDPOINTS`). Remove one before you add another."""


class JobError(PeciaError):
    """Base class of errors about one job."""

    def __init__(self, job_id: UUID, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFoundError(JobError, LookupError):
    """The job does not exist."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            job_id, f"Job {job_id} does not exist in this database; `pecia list` shows the existing jobs."
        )


class BatchNotFoundError(PeciaError, LookupError):
    """The batch does not exist, or the reference matches more than one."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            f"{reference!r} matches no batch, or more than one: give its name, its id, or more of its id."
        )
        self.reference = reference


class JobTimeoutError(JobError, TimeoutError):
    """The caller's timeout passed before the job ended. The job continues unchanged."""

    def __init__(self, job_id: UUID, timeout: float) -> None:
        super().__init__(
            job_id, f"Job {job_id} is not finished after {timeout:g} s; it goes on, wait for it again."
        )
        self.timeout = timeout


class JobFailedError(JobError):
    """The job failed and has no result; `failure` has the reason and what to do."""

    def __init__(self, job_id: UUID, failure: Failure) -> None:
        super().__init__(job_id, f"Job {job_id} failed ({failure.code}): {failure.message}")
        self.failure = failure


class JobCancelledError(JobError):
    """The job was cancelled before it was finished."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(job_id, f"Job {job_id} was cancelled; `retry` runs the missing parts.")


class JobExpiredError(JobError):
    """The job did not finish before the time that its submitter set."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            job_id, f"Job {job_id} expired before it was finished; `retry` runs the missing parts."
        )


class JobErasedError(JobError, LookupError):
    """The job's result was erased by the fleet's retention or by a purge."""

    def __init__(self, job_id: UUID, erased_at: datetime) -> None:
        super().__init__(
            job_id,
            f"The result of job {job_id} was erased at {erased_at:%Y-%m-%d %H:%M:%S %Z}: submit the document anew.",
        )
        self.erased_at = erased_at


class DocumentGoneError(JobError, LookupError):
    """The call needs the document itself, which was erased. The job's result still exists."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            job_id,
            f"The document of job {job_id} was erased from the payload store, so a PDF has no pictures: "
            "take the result as text, markdown, json or hocr.",
        )


class RetryRefusedError(JobError, ValueError):
    """The job has nothing to run again: it has not ended, has succeeded, or its document was erased."""


class StaleReviewError(JobError):
    """The page, or the split of a bundle, has been reviewed since the caller read it."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(job_id, f"Job {job_id} has been reviewed elsewhere since: load it again.")


class WrongLoopError(PeciaError, RuntimeError):
    """An `AsyncClient` is used in another event loop or process than the one of its first use."""

    def __init__(self) -> None:
        super().__init__(
            "This client belongs to the event loop of its first use; this is another loop or a forked process: "
            "make a client in each loop, and close it (`async with`) before its loop ends."
        )


class WebhookVerificationError(PeciaError, ValueError):
    """A request was not signed by the fleet that has the secret, or is too old."""
