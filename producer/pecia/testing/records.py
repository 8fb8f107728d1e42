"""What a fake fleet remembers of jobs: the rows of the real one's tables, as objects in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pecia.view import JobView
from pecia_schemas.encryption import Keyring
from pecia_schemas.events import JobNotice, NoticeType
from pecia_schemas.failures import Failure
from pecia_schemas.results import CachedFrom, Page, Segment, Summary, Timings, TokenUsage
from pecia_schemas.states import JobState, Lane, PartState, Stage


def now() -> datetime:
    """Return the time of the fleet, which is that of the machine."""
    return datetime.now(UTC)


Content = Page | Segment | Summary


@dataclass(slots=True, kw_only=True)
class Aging:
    """A record whose moments can be moved into the past."""

    def age(self, by: timedelta) -> None:
        """Make every moment in it so much earlier."""
        for one in fields(self):
            if isinstance(moment := getattr(self, one.name), datetime):
                setattr(self, one.name, moment - by)


@dataclass(slots=True, kw_only=True)
class Spent:
    """What the attempts at a part took, added up; see the columns of `parts`."""

    engine: str
    usage: TokenUsage = field(default_factory=TokenUsage)
    timings: Timings = field(default_factory=Timings)
    saved: int | None = None

    def add(self, content: Content) -> None:
        """Add what a result took. Engine and first token are the last attempt's."""
        earlier: CachedFrom | None = content.cached_from
        self.engine = content.engine
        self.usage += content.usage
        took = content.timings
        self.timings = Timings(
            queued=self.timings.queued + took.queued,
            decode=self.timings.decode + took.decode,
            engine=self.timings.engine + took.engine,
            first_token=self.timings.first_token if took.first_token is None else took.first_token,
        )
        if earlier:
            self.saved = (self.saved or 0) + earlier.usage.prompt + earlier.usage.output


@dataclass(slots=True, kw_only=True)
class PartRecord(Aging):
    """A row of `parts`, with its row of `results`."""

    id: UUID
    job: JobRecord = field(repr=False)
    stage: Stage
    ordinal: int
    lane: Lane
    size: tuple[int, int] | None = None
    """Width and height in pixels, if it is a picture that was measured when it was submitted."""
    state: PartState = PartState.QUEUED
    attempt: int = 0
    worker: str | None = None
    failure: Failure | None = None
    run_at: datetime
    ends_at: datetime | None = None
    """When the attempt that runs is over by itself."""
    finished_at: datetime | None = None
    content: Content | None = None
    spent: Spent | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may still change by itself."""
        return not self.state.is_terminal

    @property
    def is_due(self) -> bool:
        """Whether it waits for nothing but a worker."""
        return self.state is PartState.QUEUED and self.run_at <= now()


@dataclass(slots=True, kw_only=True)
class JobRecord(Aging):
    """A row of `jobs`, with its parts."""

    id: UUID
    kind: str
    lane: Lane
    task: dict[str, Any]
    digest: str
    payload: str | None
    """The document's name; None: it lies at a URL, empty: it was purged."""
    key: str | None
    client: str
    metadata: Mapping[str, str]
    label: Any = None
    batch: UUID | None = None
    webhook: Mapping[str, Any] | None
    total: int | None
    not_before: datetime | None
    expires_at: datetime | None
    created_at: datetime
    state: JobState = JobState.QUEUED
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    failure: Failure | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    erased_at: datetime | None = None
    parts: list[PartRecord] = field(default_factory=list)
    script: Any = None
    """What comes of its parts in this run; None: it was not needed yet."""

    @property
    def view(self) -> JobView:
        """The job as a client sees it."""
        return JobView.of(
            {
                **{name: getattr(self, name) for name in _VIEWED},
                "metadata": dict(self.metadata),
                "failure": self.failure,
            },
            Keyring(),
        )

    @property
    def pieces(self) -> list[PartRecord]:
        """Its pages or segments and its summary, in order: all parts but the ingest."""
        return sorted(
            (part for part in self.parts if part.stage is not Stage.INGEST), key=lambda part: part.ordinal
        )


_VIEWED = (
    "id",
    "kind",
    "lane",
    "state",
    "label",
    "batch",
    "total",
    "done",
    "failed",
    "cancelled",
    "created_at",
    "started_at",
    "finished_at",
    "erased_at",
)


@dataclass(slots=True, kw_only=True)
class AuditRecord(Aging):
    """A row of `reads` or of `erasures`."""

    at: datetime
    job_id: UUID
    actor: str
    action: str
    reason: str | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class EndpointRecord(Aging):
    """A row of `endpoints`."""

    id: UUID
    url: str
    events: tuple[NoticeType, ...]
    secret: str
    former_secret: str | None = None
    former_until: datetime | None = None
    client: str
    created_at: datetime

    @property
    def secrets(self) -> list[str]:
        """What it is signed with now."""
        valid = self.former_until is not None and self.former_until > now()
        return [self.secret, *([self.former_secret] if self.former_secret and valid else [])]


@dataclass(slots=True, kw_only=True)
class DeliveryRecord(Aging):
    """A row of `deliveries`: it arrived when it was promised."""

    id: UUID
    job_id: UUID | None
    endpoint: EndpointRecord | None
    url: str
    notice: JobNotice
    created_at: datetime
    tries: list[datetime] = field(default_factory=list)
