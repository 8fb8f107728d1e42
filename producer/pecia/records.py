"""What a client takes and returns, beside jobs and results: without SQL, which is slow to load."""

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
    """What is handed out; built when it is first used."""

    model_config = ConfigDict(defer_build=True, frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which jobs a caller wants to see. Empty fields mean any."""

    states: Collection[JobState] = ()
    verdicts: Collection[Verdict] = ()
    """Only jobs with a page that was read with one of these."""
    batch: UUID | None = None
    prefix: str = ""
    """How their ids begin."""
    part: UUID | None = None
    """Only the job of this part."""
    kind: str | None = None
    metadata: Mapping[str, str] | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLoad:
    """What a lane has before it."""

    waiting: int
    """Parts that are queued and may run now, counted up to the limit."""
    ended: int
    """Parts of that lane that the engines ended within the last minute."""


class Counts(Record):
    """How far some jobs are."""

    states: dict[JobState, int] = Field(default_factory=dict)
    """How many jobs are in each state, of those in which there are any."""
    parts: int = 0
    """Pages and segments of the documents that have been cut."""
    done: int = 0
    """Of the parts, those that were read or captioned."""
    failed: int = 0
    cancelled: int = 0
    uncut: int = 0
    """Jobs whose number of parts is not known yet."""
    failures: dict[FailureCode, int] = Field(default_factory=dict)
    """How many parts failed, by code."""

    @property
    def jobs(self) -> int:
        """How many there are."""
        return sum(self.states.values())

    @property
    def open(self) -> int:
        """How many are not over."""
        return sum(count for state, count in self.states.items() if not state.is_terminal)

    def __add__(self, other: Counts) -> Counts:
        """Return the counts of these jobs and of others."""
        names = ("parts", "done", "failed", "cancelled", "uncut")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        failures = Counter(self.failures) + Counter(other.failures)
        return Counts(states=Counter(self.states) + Counter(other.states), failures=failures, **sums)


class Exported(BaseModel):
    """What one run of an export did."""

    model_config = ConfigDict(defer_build=True)

    written: int = 0
    """Jobs whose results were written."""
    before: int = 0
    """Jobs that an earlier run had written or noted, as they are now."""
    empty: int = 0
    """Jobs that are over without a result: they are in the manifest, without a file."""
    open: int = 0
    """Jobs that are not over."""
    held_back: int = 0
    """Documents of bundles whose patient is in conflict."""

    @property
    def jobs(self) -> int:
        """All of them."""
        return self.written + self.before + self.empty + self.open


class Batch(Record):
    """Jobs that were submitted together."""

    id: UUID
    name: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage:
    """A page that was found by its verdict, or a bundle in conflict; `client.job(job_id)` has its text."""

    job_id: UUID
    number: int
    """Counted from 1, as in the document."""
    verdict: Verdict
    read_at: datetime
    label: str | None = None
    """What its document is called."""
    is_conflict: bool = False
    """It is no page, but a bundle with documents whose patient is in conflict: `pecia review` shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """How a part ended: with `content`, with a `failure`, or, cancelled, with neither."""

    stage: Stage
    ordinal: int
    content: Mapping[str, Any] | None
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which jobs are meant: those to which all of it applies."""

    job_ids: Collection[UUID] | None = None
    before: datetime | None = None
    metadata: Mapping[str, str] | None = None


class DocumentFate(StrEnum):
    """What became of a purged job's document in the payload store."""

    ERASED = "erased"
    SHARED = "shared"
    """Another job was given the same document and holds it: purge that one too, if it is meant."""
    PENDING = "pending"
    """The payload store did not answer: upkeep removes it once it does."""


class Erasure(Record):
    """What was erased of one job, or what would be."""

    job_id: UUID
    results: int
    """Pages, segments and summaries."""
    deliveries: int
    """Callbacks, those not delivered yet among them."""
    reasons: int
    """Events that said why."""
    document: DocumentFate | None = None
    """None in a dry run."""


class AuditAction(StrEnum):
    """What was done with a job's content."""

    RESULT = "result"
    """Its result was read at once."""
    PAGES = "pages"
    """Its pages were read one after the other, from then on."""
    REVISED = "revised"
    """A page of it was reviewed: it has a revision more."""
    ERASED = "erased"
    """Something of it was erased."""


class AuditEntry(Record):
    """One line of the audit trail."""

    at: datetime
    job_id: UUID
    actor: str
    """`client:NAME`, by the name that the client gave itself, or `upkeep`."""
    action: AuditAction
    reason: str | None = None
    """Why it was erased: the reason given to the purge, or `retention`."""
    counts: dict[str, int] = Field(default_factory=dict)
    """How much of each was erased."""


class DeadPart(Record):
    """A part that failed for good although its document may be fine."""

    id: UUID
    job_id: UUID
    job_state: JobState
    """It can be tried again once this is terminal."""
    kind: str
    """Of its job's task, such as `document.read`."""
    stage: Stage
    number: int
    """Page or segment, counted from 1."""
    lane: Lane
    failure: Failure
    attempts: int
    """How often it was begun, before an earlier retry too."""
    strikes: int
    """Attempts that failed and were tried again, since the last retry."""
    deaths: int
    """Workers that died on it, since the last retry."""
    worker: str | None
    """Who had it last."""
    failed_at: datetime
    events: tuple[JobEvent, ...] = ()
    """Of a part that was looked up alone: who made each attempt, and how it ended."""


class Endpoint(Record):
    """A receiver that is notified of every job, and its state."""

    id: UUID
    url: str
    events: tuple[NoticeType, ...]
    """What it is notified of."""
    secret: str | None = Field(default=None, repr=False)
    """`whsec_…`: what its notices verify with. Shown once, when the endpoint is added or its secret rotated."""
    former_until: datetime | None = None
    """Until when notices bear the signature of the former secret too."""
    client: str
    """Who registered it."""
    created_at: datetime
    disabled_at: datetime | None = None
    """Since when nothing is sent to it, because it answered 410. A test that it takes enables it again."""
    failures: int = 0
    """Tries that failed since the last that did not."""
    failing_since: datetime | None = None
    paused_until: datetime | None = None
    """It failed so often that one delivery at a time tries it, and none before then."""
    waiting: int = 0
    """Deliveries that are due, or wait to be tried again."""


NO_SECRET = "no_secret"  # noqa: S105  a code
"""Why a delivery waits: no webhook worker has `PECIA_WEBHOOK_SECRET`."""


class DeliveryAttempt(Record):
    """One try, and what came of it."""

    number: int
    """Counted from 1."""
    at: datetime
    """When it began."""
    duration: timedelta
    status: int | None = None
    """HTTP; None: there was no answer."""
    error: str | None = None
    """Why it was no delivery, in one word: `http_500`, `timeout`, `unreachable`, …"""
    reply: str | None = None
    """How the answer's body began: at most 512 bytes, the receiver's own words."""


class Delivery(Record):
    """One notice to one receiver."""

    id: UUID
    """The `webhook-id`: the same in every try, and after a replay."""
    job_id: UUID | None
    """None: it was a test."""
    endpoint_id: UUID | None
    """None: the webhook came with the job."""
    type: NoticeType
    url: str
    state: DeliveryState
    created_at: datetime
    next_at: datetime | None
    """When it is tried next; None: not at all. While it is tried: when it would come again."""
    finished_at: datetime | None
    last_status: int | None
    last_error: str | None
    """As in an attempt; also `endpoint_gone`, `given_up` or `refused_…`, if it was not tried for that, and `no_secret`
    while it waits because no webhook worker has `PECIA_WEBHOOK_SECRET`."""
    attempts: tuple[DeliveryAttempt, ...] = ()


_COUNTS = ("name", "jobs", "parts", "pages", "segments", "reused", "saved")


class Percentiles(Record):
    """Seconds that half of the parts, and 95 of 100, stayed below."""

    p50: float
    p95: float


class UsageFigures(Record):
    """Sums over parts that an engine has worked on, all their attempts counted."""

    name: str | None = None
    """What they have in common, by `Usage.by`; None if they lack it, or for a total."""
    jobs: int
    parts: int
    pages: int
    """Of the parts, the pages that were read."""
    segments: int
    """Of the parts, the stretches of videos that were captioned."""
    reused: int
    """Of the parts, those whose result was that of an earlier reading."""
    saved: int
    """Tokens that those earlier readings took, prompt and output, and that were not spent again."""
    tokens: TokenUsage
    decode_s: float
    """Seconds in which parts were fetched and decoded, side by side."""
    engine_s: float
    """Seconds in which the engine had parts, side by side: ten at a time for one second are ten."""
    queued_s: Percentiles | None
    """How long they waited in their lane; None without parts."""
    first_token_s: Percentiles | None
    """How long the engine took to the first token; None for an engine that does not report it."""

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
    """What ended since a point in time: all of it, and in groups."""

    since: datetime | None
    by: str | None
    """What the groups differ in."""
    total: UsageFigures
    groups: tuple[UsageFigures, ...]
    """In the order of their names; empty without `by`."""


def _percentiles(seconds: list[float] | None) -> Percentiles | None:
    return Percentiles(p50=seconds[0], p95=seconds[1]) if seconds and seconds[0] is not None else None
