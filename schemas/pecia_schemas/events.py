"""Messages about a job: events for its submitter, notices for its webhooks. They contain ids and counts, no text."""

from __future__ import annotations

import base64
import secrets
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, UrlConstraints, field_validator

from pecia_schemas import storable
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import JobState, Lane, Stage

_SECRET_BYTES = 24


def new_secret() -> str:
    """Return a new webhook secret in the format of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def utc(moment: str) -> str:
    """Return SQL that formats a moment, an SQL expression, for notices: ISO 8601 in UTC, in any session time zone."""
    return f"""to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


class _Event(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class JobEvent(_Event):
    """One transition of a job, or of one of its parts."""

    sequence: int
    """Increases with every event of the fleet; never reused."""
    job_id: UUID
    part_id: UUID | None = None
    """The part that changed; None for the job itself."""
    state: str
    """The new state: a `JobState`, or a `PartState` if `part_id` is set."""
    at: datetime
    actor: str
    """Who changed it: a worker's name, a client's name or `upkeep`."""
    attempt: int | None = None
    reason: str | None = None
    """The reason in one word: a failure code, `worker_lost`, `requeued`, …"""


class Progress(_Event):
    """Numbers of a job's parts by state."""

    total: int | None
    """None until the document has been cut into parts."""
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def finished(self) -> int:
        """Number of parts in a final state."""
        return self.done + self.failed + self.cancelled


class NoticeType(StrEnum):
    """Events that a webhook can be notified of."""

    SUCCEEDED = "job.succeeded"
    PARTIAL = "job.partial"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"
    PART_DONE = "part.done"
    """A page, a segment or a summary has its result. Sent only to receivers that subscribe to it."""
    REVISED = "result.revised"
    """A person has reviewed a page, or the documents of a bundle, so the result changed. Sent only to receivers that
    subscribe to it."""
    READY = "document.ready"
    """A document of a bundle is split off, and its patient is not in conflict. Sent only to receivers that subscribe to
    it."""
    TEST = "webhook.test"
    """A test of an endpoint, without any event."""

    @classmethod
    def of(cls, state: JobState) -> NoticeType:
        """Return the notice type of a terminal state. Raises `ValueError` for other states."""
        return cls(f"job.{state}")


ENDINGS = tuple(kind for kind in NoticeType if kind.startswith("job."))
"""Events that a webhook is notified of by default: the ends of jobs."""


NoticeTypeName = Literal[
    "job.succeeded",
    "job.partial",
    "job.failed",
    "job.cancelled",
    "job.expired",
    "part.done",
    "result.revised",
    "document.ready",
    "webhook.test",
]


class Webhook(_Event):
    """An address for signed notices about a job, and the events to send."""

    url: Annotated[AnyHttpUrl, UrlConstraints(max_length=storable.WEBHOOK_URL)]
    """Must not contain a user name or password."""
    events: tuple[NoticeType, ...] = Field(default=ENDINGS, min_length=1, max_length=len(NoticeType))

    @field_validator("url")
    @classmethod
    def _has_no_user(cls, url: AnyHttpUrl) -> AnyHttpUrl:
        if url.username is not None or url.password is not None:
            raise storable.invalid("a webhook's address must not contain a user or password")
        return url


class _Notice(BaseModel):
    # A receiver is not updated with the fleet, so it ignores unknown fields.
    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore", hide_input_in_errors=True)


class NoticePart(_Notice):
    """The part that a notice is about."""

    id: UUID
    stage: Stage
    number: int
    """Page or segment, counted from 1; a summary comes after its segments."""
    attempt: int


class NoticeDocument(_Notice):
    """The document of a bundle that a notice is about."""

    number: int
    pages: tuple[int, ...]
    """Numbers of its pages in the bundle."""


class NoticeData(_Notice):
    """The job that a notice is about, in its state at that time."""

    job_id: UUID
    sequence: int = 0
    """Sequence number of the job's event. Of two notices about a job, the greater number is the later event, in
    whatever order they arrive."""
    kind: str
    state: JobState
    lane: Lane
    progress: Progress
    failure: FailureCode | None = None
    needs_review: int = 0
    """Number of pages or segments whose verdict is not `ok` or `blank`: a person should check them."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """The submitter's metadata. Choose keys and values that may leave your organisation."""
    links: dict[str, str] = Field(default_factory=dict)
    """Links to further information, from the fleet's `PECIA_WEBHOOK_LINKS`."""
    part: NoticePart | None = None
    """In a `part.done`, the finished part; in a `result.revised`, the page or the split."""
    revision: int | None = None
    """In a `result.revised`, the number of the revision, which is then `result().revision`. In a `document.ready`, that
    of the review that made it ready, or None."""
    document: NoticeDocument | None = None
    """In a `document.ready`, the document."""
    created_at: datetime
    finished_at: datetime | None = None
    """None while the job is not over."""


class JobNotice(_Notice):
    """The body of a webhook call: Standard Webhooks' `type`, `timestamp` and `data`."""

    type: NoticeType
    timestamp: datetime
    data: NoticeData
