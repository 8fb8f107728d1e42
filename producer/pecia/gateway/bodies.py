"""Bodies of requests and answers."""

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
    """Return a body with the fields of a task and `more`. Its source is a file of the request, or a URL."""
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
        ge=1,
        le=MOST_TASKS,
        description="Number of files of the request, in their order, that form the bundle.",
    )
    ReadTask, CaptionTask = _wanted(ReadDocument), _wanted(CaptionVideo)
    BundleTask = _wanted(ReadBundle, files=(Annotated[int, _FILES], 1))
    AnyTaskBody = Annotated[ReadTask | BundleTask | CaptionTask, Field(union_mode="left_to_right")]


class Submission(SubmitOptions):
    """Work to do: one task for each document. A task without a `url` reads the next `file` of the request.

    A task may have its own `label`, `priority`, and `metadata`, which are added to those of the request.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"tasks": [{"url": "https://example.org/scan.pdf", "language": "en"}], "priority": "urgent"}
            ]
        }
    )

    tasks: list[AnyTaskBody] = Field(default_factory=list, max_length=MOST_TASKS)
    """Tasks of the request. Without any, each `file` is read with `task`."""
    task: AnyTaskBody = Field(default_factory=ReadTask)
    """How to read files if the request has no `tasks`."""
    batch: str | None = Field(default=None, max_length=storable.BATCH)
    """Batch of the jobs: a new name, or the name or id of an existing batch. Several jobs form a batch in any case."""
    idempotency_keys: list[str] | None = Field(default=None, max_length=MOST_TASKS)
    """One key for each task, in place of the header."""


class Job(BaseModel):
    """The current state of a job."""

    model_config = ConfigDict(json_schema_extra={"examples": [_JOB]})

    id: UUID
    kind: str
    lane: Lane
    state: JobState
    progress: Progress
    failure: Failure | None
    label: str | None
    """Label of the document."""
    batch: UUID | None
    metadata: dict[str, str]
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    erased_at: datetime | None
    number: int | None = None
    """Number of the job's task in the request, from 0; null outside the answer to a submit."""
    created: bool | None = None
    """False if an idempotency key named an existing job; null outside the answer to a submit."""

    @classmethod
    def of(cls, job: JobHandle[Any], *, number: int | None = None) -> Job:
        """Return the body of a job; after a submit, with the number of its task."""
        return cls.seen(job._view, number=number, created=None if number is None else job.created)  # noqa: SLF001

    @classmethod
    def seen(cls, view: JobView, **submitted: Any) -> Job:
        """Return the body of a job's view."""
        known: dict[str, Any] = {
            name: getattr(view, name) for name in cls.model_fields if name not in ("number", "created")
        }
        known |= {"metadata": dict(view.metadata), **submitted}
        return cls.model_construct(None, **known)


class RefusedTask(BaseModel):
    """A refused task, while others were accepted."""

    number: int
    """Number of the task in the request, from 0."""
    problem: Problem


class Submitted(BaseModel):
    """Outcomes of the tasks."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"jobs": [_JOB], "refused": []}]})

    jobs: list[Job]
    refused: list[RefusedTask]


class Jobs(BaseModel):
    """Jobs, newest first."""

    jobs: list[Job]
    next: UUID | None
    """`before` of the next page, or null for the last page."""


class Parts(BaseModel):
    """Pages (of a video: segments) that have ended."""

    parts: list[PartOutcome]
    """`content` is a page, segment, summary or split. A failed part has a `failure`; a cancelled part has neither."""
    first_open: int | None
    """The least `ordinal` that may still change, or null if the job has ended."""
    more: bool
    """Whether more parts have ended: ask again, with these in `skip`."""


class FoundPages(BaseModel):
    """Bundles in conflict, then pages, the newest job first."""

    pages: list[FoundPage]


class Cancellation(_Body):
    """The reason of a cancellation or erasure."""

    reason: str | None = Field(default=None, max_length=storable.REASON)
    """Stored with the job's events: write no document content into it."""


class Cancelled(BaseModel):
    """A job after a request to cancel it; `cancelled` is false if it had ended before."""

    cancelled: bool
    job: Job


class NewBatch(_Body):
    """A batch to create."""

    name: str | None = Field(default=None, min_length=1, max_length=storable.BATCH)


class CountedBatch(Batch):
    """A batch with the counts of its jobs."""

    counts: Counts


class ListedBatch(CountedBatch):
    """A batch that also has the number of its pages that need a review, up to 1,000."""

    needs_review: int


class Retry(_Body):
    """The parts of a job to run again."""

    parts: list[UUID] | None = None
    """Null for all failed and cancelled parts."""


class SplitCorrection(_Body):
    """A correction of how a bundle is split."""

    change: SplitChange
    revision: int | None = Field(default=None, ge=0, lt=2**31)
    """Revision of the split that the caller has read; null accepts any."""


class NewWebhook(_Body):
    """A receiver to be notified of the tenant's jobs."""

    url: str = Field(max_length=storable.WEBHOOK_URL)
    events: list[NoticeType] | None = None
    """Null for the ends of jobs."""


class Rotation(_Body):
    """How long the former secret signs too."""

    overlap: timedelta = timedelta(days=1)


class Own(BaseModel):
    """The key of the request, and the used amounts of its limits."""

    key: AccessKey
    pages_of_day: int
    pages_in_flight: int


class NewKey(_Body):
    """A key to create. Its rights cannot exceed those of the creating key; of two limits, the lower one counts."""

    name: str
    scopes: Annotated[list[Scope], Field(min_length=1)]
    lanes: list[Lane] | None = None
    """Null for the lanes of the creating key."""
    pages_per_day: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    pages_in_flight: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    expires: timedelta | None = None
    """Lifetime of the key."""


class MadeKey(BaseModel):
    """A key that was created."""

    key: AccessKey
    secret: str
    """Text of the key for its user. Only this answer contains it."""
