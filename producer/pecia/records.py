"""Records that a client takes and returns, besides jobs and results. Without SQL, which is slow to load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from pecia_schemas.events import JobEvent, NoticeType
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.states import DeliveryState, JobState, Lane, Stage


class Record(BaseModel):
    """Base of returned records. Pydantic builds a class at its first use."""

    model_config = ConfigDict(defer_build=True, frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Filter of jobs. Empty fields match any job."""

    states: Collection[JobState] = ()
    verdicts: Collection[Verdict] = ()
    """Only jobs with a page of one of these verdicts."""
    batch: UUID | None = None
    prefix: str = ""
    """Beginning of the jobs' ids."""
    part: UUID | None = None
    """Only the job of this part."""
    kind: str | None = None
    metadata: Mapping[str, str] | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLoad:
    """Waiting and recently ended parts of a lane."""

    waiting: int
    """Parts that are queued and may run now, counted up to the limit."""
    ended: int
    """Parts of that lane that engines ended within the last minute."""


class Counts(Record):
    """Numbers of jobs and parts by state."""

    states: dict[JobState, int] = Field(default_factory=dict)
    """Number of jobs in each state; states without jobs are left out."""
    parts: int = 0
    """Pages and segments of the documents that have been cut."""
    done: int = 0
    """Parts that were read or captioned."""
    failed: int = 0
    cancelled: int = 0
    uncut: int = 0
    """Jobs whose number of parts is not known yet."""
    failures: dict[FailureCode, int] = Field(default_factory=dict)
    """Number of failed parts by failure code."""

    @property
    def jobs(self) -> int:
        """Number of all jobs."""
        return sum(self.states.values())

    @property
    def open(self) -> int:
        """Number of jobs that have not ended."""
        return sum(count for state, count in self.states.items() if not state.is_terminal)

    def __add__(self, other: Counts) -> Counts:
        """Return the sums of both counts."""
        names = ("parts", "done", "failed", "cancelled", "uncut")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        failures = Counter(self.failures) + Counter(other.failures)
        return Counts(states=Counter(self.states) + Counter(other.states), failures=failures, **sums)


class Exported(BaseModel):
    """Counts of one run of an export."""

    model_config = ConfigDict(defer_build=True)

    written: int = 0
    """Jobs whose results were written."""
    before: int = 0
    """Jobs that an earlier run exported in their current state."""
    empty: int = 0
    """Jobs that ended without a result: the manifest lists them without a file."""
    open: int = 0
    """Jobs that have not ended."""
    held_back: int = 0
    """Documents of bundles that were not written because their patient is in conflict."""

    @property
    def jobs(self) -> int:
        """Number of all jobs."""
        return self.written + self.before + self.empty + self.open


class Batch(Record):
    """Jobs that were submitted together."""

    id: UUID
    name: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage:
    """A page found by its verdict, or a bundle with a patient conflict; `client.job(job_id)` has its text."""

    job_id: UUID
    number: int
    """Counted from 1, as in the document."""
    verdict: Verdict
    read_at: datetime
    label: str | None = None
    """The document's label."""
    is_conflict: bool = False
    """Whether this entry is a bundle with documents whose patient is in conflict, and no page: see `pecia review`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """The end of a part: `content` if read, `failure` if failed, neither if cancelled."""

    stage: Stage
    ordinal: int
    content: Mapping[str, Any] | None
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filter of jobs for a purge; all fields must match."""

    job_ids: Collection[UUID] | None = None
    before: datetime | None = None
    metadata: Mapping[str, str] | None = None


class DocumentFate(StrEnum):
    """State of a purged job's document in the payload store."""

    ERASED = "erased"
    SHARED = "shared"
    """Another job has the same document and keeps it: purge that job too if the document must go."""
    PENDING = "pending"
    """The payload store did not answer: upkeep deletes the document once it does."""


class Erasure(Record):
    """Erased content of one job, or content that would be erased."""

    job_id: UUID
    results: int
    """Number of pages, segments and summaries."""
    deliveries: int
    """Number of callbacks, including pending ones."""
    reasons: int
    """Number of events with a reason."""
    document: DocumentFate | None = None
    """None in a dry run."""


class AuditAction(StrEnum):
    """Kind of access to a job's content."""

    RESULT = "result"
    """The complete result was read."""
    PAGES = "pages"
    """A read of the pages one by one began."""
    REVISED = "revised"
    """A page was reviewed: it has one more revision."""
    ERASED = "erased"
    """Content of the job was erased."""


class AuditEntry(Record):
    """One line of the audit trail."""

    at: datetime
    job_id: UUID
    actor: str
    """`client:NAME`, by the name that the client states, or `upkeep`."""
    action: AuditAction
    reason: str | None = None
    """Reason of an erasure: the reason given to the purge, or `retention`."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Numbers of erased items, by kind."""


class DeadPart(Record):
    """A part that failed for good although its document may be fine."""

    id: UUID
    job_id: UUID
    job_state: JobState
    """State of its job. The part can be retried once this is terminal."""
    kind: str
    """Kind of the job's task, such as `document.read`."""
    stage: Stage
    number: int
    """Number of the page or segment, from 1."""
    lane: Lane
    failure: Failure
    attempts: int
    """Number of attempts, including those before an earlier retry."""
    strikes: int
    """Attempts that failed and were retried, since the last retry by a person."""
    deaths: int
    """Workers that died on the part, since the last retry."""
    worker: str | None
    """The last worker that had the part."""
    failed_at: datetime
    events: tuple[JobEvent, ...] = ()
    """Events of the part, with the worker and end of each attempt; empty in lists."""


class Endpoint(Record):
    """A receiver that is notified of every job, and its state."""

    id: UUID
    url: str
    events: tuple[NoticeType, ...]
    """Events that are sent to the endpoint."""
    secret: str | None = Field(default=None, repr=False)
    """`whsec_…`, which verifies notices. Only set when the endpoint is added or its secret rotated."""
    former_until: datetime | None = None
    """Until when notices also have the signature of the former secret."""
    client: str
    """The client that registered the endpoint."""
    created_at: datetime
    disabled_at: datetime | None = None
    """Since when nothing is sent, because the endpoint answered 410. A successful test enables it again."""
    failures: int = 0
    """Attempts that failed since the last successful one."""
    failing_since: datetime | None = None
    paused_until: datetime | None = None
    """Time of the next attempt after many failures. A paused endpoint gets one delivery at a time."""
    waiting: int = 0
    """Deliveries that are due or wait for a retry."""


NO_SECRET = "no_secret"  # noqa: S105  a code
"""Error of a delivery that waits because no webhook worker has `PECIA_WEBHOOK_SECRET`."""


class DeliveryAttempt(Record):
    """One attempt of a delivery, and its outcome."""

    number: int
    """Number of the attempt, from 1."""
    at: datetime
    """When the attempt began."""
    duration: timedelta
    status: int | None = None
    """HTTP status; None if there was no answer."""
    error: str | None = None
    """Reason of the failure, in one word: `http_500`, `timeout`, `unreachable`, …"""
    reply: str | None = None
    """Beginning of the answer's body, at most 512 bytes, as the receiver wrote it."""


class Delivery(Record):
    """One notice to one receiver."""

    id: UUID
    """The `webhook-id`, which is the same in all attempts and after a replay."""
    job_id: UUID | None
    """None for a test."""
    endpoint_id: UUID | None
    """None if the webhook belongs to the job."""
    type: NoticeType
    url: str
    state: DeliveryState
    created_at: datetime
    next_at: datetime | None
    """When the next attempt is due; None if no more follow. During an attempt: when it would be repeated."""
    finished_at: datetime | None
    last_status: int | None
    last_error: str | None
    """Error of the last attempt. Without an attempt: `endpoint_gone`, `given_up` or `refused_…`, or `no_secret` while
    the delivery waits because no webhook worker has `PECIA_WEBHOOK_SECRET`.
    """
    attempts: tuple[DeliveryAttempt, ...] = ()


_COUNTS = ("name", "jobs", "parts", "pages", "segments", "reused", "saved")


class Percentiles(Record):
    """Median and 95th percentile, in seconds."""

    p50: float
    p95: float


class UsageFigures(Record):
    """Sums over parts that an engine has worked on, with all their attempts."""

    name: str | None = None
    """Value of `Usage.by` that the parts share; None if they have none, or for a total."""
    jobs: int
    parts: int
    pages: int
    """Number of parts that are pages and were read."""
    segments: int
    """Number of parts that are video segments and were captioned."""
    reused: int
    """Number of parts whose result was reused from an earlier job."""
    saved: int
    """Prompt and output tokens that the reuse of results saved."""
    tokens: TokenUsage
    decode_s: float
    """Seconds of fetching and decoding, summed over parallel parts."""
    engine_s: float
    """Seconds in the engine, summed over parallel parts: ten parts for one second count ten."""
    queued_s: Percentiles | None
    """Waiting time of parts in their lane; None without parts."""
    first_token_s: Percentiles | None
    """Time to the engine's first token; None for an engine that does not report it."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the figures of a row of sums."""
        return cls(
            **{name: row[name] for name in _COUNTS},
            tokens=TokenUsage(**{name: row[name] for name in TokenUsage.model_fields}),
            decode_s=row["decode_s"],
            engine_s=row["engine_s"],
            queued_s=_percentiles(row["queued_s"]),
            first_token_s=_percentiles(row["first_token_s"]),
        )


class Usage(Record):
    """Usage of the parts that ended since a point in time: the total, and groups."""

    since: datetime | None
    by: str | None
    """The property by which the groups differ."""
    total: UsageFigures
    groups: tuple[UsageFigures, ...]
    """Groups in the order of their names; empty without `by`."""


def _percentiles(seconds: list[float] | None) -> Percentiles | None:
    return Percentiles(p50=seconds[0], p95=seconds[1]) if seconds and seconds[0] is not None else None
