"""What is published about a job: events to its submitter, notices to its webhooks. Ids and counts, no text."""

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
    """Return a fresh secret for webhooks, as Standard Webhooks write it."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def utc(moment: str) -> str:
    """Return a moment, an expression in SQL, as it is written in notices: by ISO 8601, whatever the session's zone."""
    return f"""to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


class _Event(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class JobEvent(_Event):
    """One transition of a job, or of one of its parts."""

    sequence: int
    """Grows with every event of the fleet; never reused."""
    job_id: UUID
    part_id: UUID | None = None
    """The part that moved; None if it was the job itself."""
    state: str
    """The state it is in now: a `JobState`, or a `PartState` if `part_id` is set."""
    at: datetime
    actor: str
    """Who moved it: a worker's name, a client's name or `upkeep`."""
    attempt: int | None = None
    reason: str | None = None
    """Why, in one word: a failure code, `worker_lost`, `requeued`, …"""


class Progress(_Event):
    """How many of a job's parts are where."""

    total: int | None
    """None until the document has been cut into parts."""
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def finished(self) -> int:
        """Parts that will not change any more."""
        return self.done + self.failed + self.cancelled


class NoticeType(StrEnum):
    """What a webhook can be notified of."""

    SUCCEEDED = "job.succeeded"
    PARTIAL = "job.partial"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"
    PART_DONE = "part.done"
    """A page, a segment or a summary has its result. Sent only to receivers that subscribe to it."""
    REVISED = "result.revised"
    """A person has reviewed a page, or the documents of a bundle: the result is another. Sent only to receivers that
    subscribe to it."""
    READY = "document.ready"
    """A document of a bundle is split off, and its patient is not in conflict. Sent only to receivers that subscribe to
    it."""
    TEST = "webhook.test"
    """A test of an endpoint: nothing happened."""

    @classmethod
    def of(cls, state: JobState) -> NoticeType:
        """Return the notice of a terminal state. Raises `ValueError` for any other."""
        return cls(f"job.{state}")


ENDINGS = tuple(kind for kind in NoticeType if kind.startswith("job."))
"""What a webhook is notified of by default: how a job ended."""


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
    """Where to POST signed notices about a job, and which."""

    url: Annotated[AnyHttpUrl, UrlConstraints(max_length=storable.WEBHOOK_URL)]
    """Without a user name or password: it would be refused when it is called."""
    events: tuple[NoticeType, ...] = Field(default=ENDINGS, min_length=1, max_length=len(NoticeType))

    @field_validator("url")
    @classmethod
    def _has_no_user(cls, url: AnyHttpUrl) -> AnyHttpUrl:
        if url.username is not None or url.password is not None:
            raise storable.invalid("a webhook's address names no user and no password")
        return url


class _Notice(BaseModel):
    # A receiver is not updated with the fleet: it passes over what it does not know.
    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore", hide_input_in_errors=True)


class NoticePart(_Notice):
    """The part that a notice is about."""

    id: UUID
    stage: Stage
    number: int
    """Page or segment, counted from 1; that of a summary follows its segments'."""
    attempt: int


class NoticeDocument(_Notice):
    """The document of a bundle that a notice is about."""

    number: int
    pages: tuple[int, ...]
    """Their numbers in the bundle."""


class NoticeData(_Notice):
    """The job a notice is about, as it was then."""

    job_id: UUID
    sequence: int = 0
    """Of two notices about a job the one with the greater number is about what came later, whichever arrives first. It
    is the sequence of that job's event."""
    kind: str
    state: JobState
    lane: Lane
    progress: Progress
    failure: FailureCode | None = None
    needs_review: int = 0
    """How many of its pages, or segments, have a verdict other than `ok` and `blank`: a person should look at them."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """What the submitter attached: choose keys and values that may leave the house."""
    links: dict[str, str] = Field(default_factory=dict)
    """Where to look further, as the fleet's `PECIA_WEBHOOK_LINKS` says."""
    part: NoticePart | None = None
    """The part that is done, in a `part.done`; the page or the split, in a `result.revised`."""
    revision: int | None = None
    """Its number, in a `result.revised`: that of `result().revision` from then on; in a `document.ready` that of the
    review that made it ready, None without one."""
    document: NoticeDocument | None = None
    """The document that is ready, in a `document.ready`."""
    created_at: datetime
    finished_at: datetime | None = None
    """None while the job goes on."""


class JobNotice(_Notice):
    """The body of a webhook call: Standard Webhooks' `type`, `timestamp` and `data`."""

    type: NoticeType
    timestamp: datetime
    data: NoticeData
