"""What comes in and goes out: the bodies of requests and answers."""

from __future__ import annotations

from dataclasses import fields as fields_of
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from pecia.accounts import AccessKey, Scope
from pecia.gateway.problems import Problem
from pecia.handles import JobHandle, JobView
from pecia.records import Batch, Counts, FoundPage, PartOutcome
from pecia.request import SubmitOptions
from pecia_schemas import storable
from pecia_schemas.bundles import SplitChange
from pecia_schemas.events import NoticeType, Progress
from pecia_schemas.failures import Failure
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import CaptionVideo, ReadBundle, ReadDocument, Task

MOST_TASKS: Final = 1_000
IDEMPOTENCY_KEY: Final = storable.IDEMPOTENCY_KEY - storable.TENANT - 1 - len(f"/{MOST_TASKS}")

_JOB: Final[Any] = {
    "number": 0,
    "id": "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11",
    "kind": "document.read",
    "lane": "normal",
    "state": "queued",
    "progress": {"total": 1, "done": 0, "failed": 0, "cancelled": 0},
    "failure": None,
    "label": "chart-17.pdf",
    "batch": "0190b3c8-7e19-7b42-9d40-6c1f8a9e2b53",
    "metadata": {"ward": "7"},
    "submitted_at": "2026-11-23T08:00:00Z",
    "started_at": None,
    "finished_at": None,
    "erased_at": None,
    "created": True,
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def _wanted(task: type[Task[Any]], **more: Any) -> type[BaseModel]:
    """Return the fields of a task as a body, and `more`: all but its source, a file of the request, or a URL."""
    known: dict[str, Any] = getattr(task, "__pydantic_fields__")  # noqa: B009  the type checkers do not know it
    members: dict[str, Any] = {
        field.name: (Annotated[known[field.name].annotation, known[field.name]], known[field.name].default)
        for field in fields_of(task)
        if field.name != "source"
    }
    label = Field(default=None, min_length=1, max_length=storable.LABEL, repr=False)
    url = Field(default=None, max_length=storable.SOURCE_URL, repr=False)
    return create_model(
        f"{task.__name__}Task",
        __base__=_Body,
        __doc__=task.__doc__,
        kind=(cast("Any", Literal[task.kind]), task.kind),
        url=(Annotated[str | None, url], None),
        label=(Annotated[str | None, label], None),
        metadata=(dict[str, str] | None, None),
        priority=(Lane | None, None),
        **members,
        **more,
    )


if TYPE_CHECKING:
    AnyTaskBody: TypeAlias = Any
    ReadTask: Any = dict
else:
    _FILES = Field(
        ge=1, le=MOST_TASKS, description="How many files of the request, in their order, it is made of."
    )
    ReadTask, CaptionTask = _wanted(ReadDocument), _wanted(CaptionVideo)
    BundleTask = _wanted(ReadBundle, files=(Annotated[int, _FILES], 1))
    AnyTaskBody = Annotated[ReadTask | BundleTask | CaptionTask, Field(union_mode="left_to_right")]


class Submission(SubmitOptions):
    """Work to do: one task for each document. A task without a `url` reads the next `file` of the request.

    A task may have a `label`, `metadata` beside those of all, and a `priority` of its own.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"tasks": [{"url": "https://example.org/scan.pdf", "language": "en"}], "priority": "urgent"}
            ]
        }
    )

    tasks: list[AnyTaskBody] = Field(default_factory=list, max_length=MOST_TASKS)
    """Without any, each `file` is read with `task`."""
    task: AnyTaskBody = Field(default_factory=ReadTask)
    """How to read files, if no `tasks` say so."""
    batch: str | None = Field(default=None, max_length=storable.BATCH)
    """Into which batch: the name of a new one, or name or id of an existing one. Many jobs are a batch in any case."""
    idempotency_keys: list[str] | None = Field(default=None, max_length=MOST_TASKS)
    """One for each task, in the place of the header."""


class Job(BaseModel):
    """A job as it is now."""

    model_config = ConfigDict(json_schema_extra={"examples": [_JOB]})

    id: UUID
    kind: str
    lane: Lane
    state: JobState
    progress: Progress
    failure: Failure | None
    label: str | None
    """What the document was called."""
    batch: UUID | None
    metadata: dict[str, str]
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    erased_at: datetime | None
    number: int | None = None
    """Of its task in the request, counted from 0; null if it was not just submitted."""
    created: bool | None = None
    """False if an idempotency key named a job that was there; null if it was not just submitted."""

    @classmethod
    def of(cls, job: JobHandle[Any], *, number: int | None = None) -> Job:
        """Return the body of a job; if it was just submitted, with the number of its task."""
        return cls.seen(job._view, number=number, created=None if number is None else job.created)  # noqa: SLF001

    @classmethod
    def seen(cls, view: JobView, **submitted: Any) -> Job:
        """Return the body of a job as it was seen."""
        known: dict[str, Any] = {
            name: getattr(view, name) for name in cls.model_fields if name not in ("number", "created")
        }
        known |= {"metadata": dict(view.metadata), **submitted}
        return cls.model_construct(None, **known)


class RefusedTask(BaseModel):
    """A task that was not accepted, among others that were."""

    number: int
    """Counted from 0."""
    problem: Problem


class Submitted(BaseModel):
    """What became of the tasks."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"jobs": [_JOB], "refused": []}]})

    jobs: list[Job]
    refused: list[RefusedTask]


class Jobs(BaseModel):
    """Jobs, newest first."""

    jobs: list[Job]
    next: UUID | None
    """`before` of the next page; null: there is none."""


class Parts(BaseModel):
    """Pages (of a video: segments) that have ended."""

    parts: list[PartOutcome]
    """`content` is a page, segment, summary or split; a failed part has a `failure`, a cancelled one neither."""
    first_open: int | None
    """The least `ordinal` that may still change; null: the job is over."""
    more: bool
    """Whether more of them have ended: ask again, and skip these."""


class FoundPages(BaseModel):
    """Bundles in conflict, then pages, the newest job first."""

    pages: list[FoundPage]


class Cancellation(_Body):
    """Why a job is cancelled or erased."""

    reason: str | None = Field(default=None, max_length=storable.REASON)
    """Stored with the job's events: write nothing of the document into it."""


class Cancelled(BaseModel):
    """A job that was cancelled, or was over before."""

    cancelled: bool
    job: Job


class NewBatch(_Body):
    """A batch to be made."""

    name: str | None = Field(default=None, min_length=1, max_length=storable.BATCH)


class CountedBatch(Batch):
    """A batch, and how far its jobs are."""

    counts: Counts


class ListedBatch(CountedBatch):
    """The same with how many of its pages a person should look at, up to 1,000."""

    needs_review: int


class Retry(_Body):
    """What of a job is run again."""

    parts: list[UUID] | None = None
    """Null: all that failed or was cancelled."""


class SplitCorrection(_Body):
    """A correction of how a bundle is split."""

    change: SplitChange
    revision: int | None = Field(default=None, ge=0, lt=2**31)
    """That of the split which was looked at; null: any."""


class NewWebhook(_Body):
    """A receiver to be notified of the tenant's jobs."""

    url: str = Field(max_length=storable.WEBHOOK_URL)
    events: list[NoticeType] | None = None
    """Null: how jobs end."""


class Rotation(_Body):
    """For how long the former secret signs too."""

    overlap: timedelta = timedelta(days=1)


class Own(BaseModel):
    """The key of the request, and what of its limits is taken."""

    key: AccessKey
    pages_of_day: int
    pages_in_flight: int


class NewKey(_Body):
    """A key to be made, which may no more than the key that makes it: of limits the narrower one counts."""

    name: str
    scopes: Annotated[list[Scope], Field(min_length=1)]
    lanes: list[Lane] | None = None
    """Null: those of the key that makes it."""
    pages_per_day: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    pages_in_flight: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    expires: timedelta | None = None
    """After what time it opens nothing any more."""


class MadeKey(BaseModel):
    """A key that was made."""

    key: AccessKey
    secret: str
    """What its bearer shows. It is shown now and never again."""
