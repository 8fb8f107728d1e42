"""Shared base of both kinds of job handles: a job's last known state, and values derived from it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from uuid import UUID

from pydantic import BaseModel

from pecia.errors import (
    InvalidOptionError,
    JobCancelledError,
    JobErasedError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
)
from pecia.records import PartOutcome
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import Split
from pecia_schemas.encryption import DecryptionError, Keyring, unseal_label
from pecia_schemas.events import Progress
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment, SegmentFailure, Summary
from pecia_schemas.states import AWAITED, JobState, Lane

if TYPE_CHECKING:
    from pecia_schemas.running import Lack
    from pecia_schemas.tasks import Task

R_co = TypeVar("R_co", bound=BaseModel, covariant=True)
J_co = TypeVar("J_co", bound="JobHandle[Any]", covariant=True)

WRAPPED: Final = "(SELECT wrapped FROM job_keys WHERE job_id = jobs.id)"
"""SQL for the wrapped data key of a row of `jobs`, in the form that `Keyring.of_job` takes."""

COLUMNS: Final = f"""
    id, kind, lane, state, label, CASE WHEN label IS NOT NULL THEN {WRAPPED} END AS wrapped, batch, metadata, total,
    done, failed, cancelled, failure, created_at, started_at, finished_at, erased_at
"""
"""The columns of `jobs` that form a `JobView`."""


@lru_cache(maxsize=1024)
def progress(total: int | None, done: int, failed: int, cancelled: int) -> Progress:
    """Return the counts as one object. Jobs with equal counts share it, because a client may hold many jobs."""
    return Progress(total=total, done=done, failed=failed, cancelled=cancelled)


def label_in(stored: str | None, job_id: UUID, wrapped: Any, keys: Keyring) -> str | None:
    """Return the label of a row of `jobs`; None also if it is encrypted under a key that this process lacks."""
    try:
        return unseal_label(stored, job_id, keys.of_job(job_id, wrapped))
    except DecryptionError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The row of a job, without its task."""

    id: UUID
    kind: str
    lane: Lane
    state: JobState
    progress: Progress
    failure: Failure | None
    label: str | None
    """The caller's name of the document; None also if it is encrypted under a key that this process lacks."""
    batch: UUID | None
    metadata: Mapping[str, str]
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    erased_at: datetime | None

    @classmethod
    def of(cls, row: Mapping[str, Any], keys: Keyring) -> JobView:
        """Return the view of a row of `jobs`."""
        return cls(
            id=row["id"],
            kind=row["kind"],
            lane=Lane(row["lane"]),
            state=JobState(row["state"]),
            progress=progress(row["total"], row["done"], row["failed"], row["cancelled"]),
            failure=Failure.model_validate(row["failure"]) if row["failure"] else None,
            label=label_in(row["label"], row["id"], row["wrapped"], keys),
            batch=row["batch"],
            metadata=MappingProxyType(row["metadata"]),
            submitted_at=row["created_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            erased_at=row["erased_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A job in the database; `created` is False if its idempotency key named an existing job."""

    view: JobView
    created: bool
    flow: UUID
    """Random id of the jobs that take turns as one."""


PDF_QUALITY: Final = 75
"""Default quality of JPEG pictures in a PDF, on the scale of Pillow and libjpeg: 1 to 95."""


class JobHandle(Generic[R_co]):
    """The last known state of a job. Reading an attribute costs no I/O."""

    __slots__ = ("_created", "_view")  # there may be a hundred thousand of them

    def __init__(self, view: JobView, *, created: bool) -> None:
        self._view = view
        self._created = created

    @property
    def id(self) -> UUID:
        """The job's id; ids sort by time of submission."""
        return self._view.id

    @property
    def kind(self) -> str:
        """The kind of its task, such as `document.read`."""
        return self._view.kind

    @property
    def state(self) -> JobState:
        """The job's last known state."""
        return self._view.state

    @property
    def lane(self) -> Lane:
        """The lane in which the job's parts wait."""
        return self._view.lane

    @property
    def progress(self) -> Progress:
        """Number of the job's parts by state."""
        return self._view.progress

    @property
    def failure(self) -> Failure | None:
        """Why the job failed, or None."""
        return self._view.failure

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata that was attached to the job when it was submitted."""
        return self._view.metadata

    @property
    def label(self) -> str | None:
        """The document's name from the submit, or None."""
        return self._view.label

    @property
    def batch(self) -> UUID | None:
        """The batch with which the job was submitted, or None."""
        return self._view.batch

    @property
    def created(self) -> bool:
        """Whether this handle's submit made the job; False if its idempotency key named an existing job."""
        return self._created

    @property
    def submitted_at(self) -> datetime:
        """When the job was accepted, by the database's clock."""
        return self._view.submitted_at

    @property
    def started_at(self) -> datetime | None:
        """When work on the job began, since its last retry; None while it waits."""
        return self._view.started_at

    @property
    def finished_at(self) -> datetime | None:
        """When the job ended, or None."""
        return self._view.finished_at

    @property
    def erased_at(self) -> datetime | None:
        """When the job's result was erased, by the fleet's retention or by a purge; None if it was not."""
        return self._view.erased_at

    @property
    def done(self) -> bool:
        """Whether the job has ended, in whatever state."""
        return self.state.is_terminal

    @staticmethod
    def _check_revision(revision: int | None) -> None:
        if revision is not None and not 0 <= revision < 2**31:
            raise InvalidOptionError(
                "revision is 0, the result as it was read, or the number of a later one."
            )

    def _check_pages(self) -> None:
        from pecia_schemas.tasks import has_pages  # noqa: PLC0415  tasks are slow to load

        if not has_pages(self.kind):
            message = f"a job of kind {self.kind} has no pages"
            raise TypeError(message)

    def _check_result(self, *, partial: bool = False) -> None:
        """Raise the error that explains why the result is missing, if it is. With `partial`, only erasure counts."""
        if self.state is JobState.FAILED and not partial:
            raise JobFailedError(self.id, self.failure or Failure.of(FailureCode.INTERNAL))
        if self.state is JobState.CANCELLED and not partial:
            raise JobCancelledError(self.id)
        if self.state is JobState.EXPIRED and not partial:
            raise JobExpiredError(self.id)
        if self.erased_at is not None:
            raise JobErasedError(self.id, self.erased_at)

    def __repr__(self) -> str:
        progress = self.progress
        name = type(self).__name__
        return f"<{name} {self.id} {self.kind} {self.state} {progress.done}/{progress.total or '?'}>"


class GroupHandle(Sequence[J_co]):
    """An ordered group of jobs. A job may be in it twice."""

    def __init__(self, jobs: Sequence[J_co]) -> None:
        self._jobs = tuple(jobs)

    @cached_property
    def _by_id(self) -> dict[UUID, list[J_co]]:
        by_id: dict[UUID, list[J_co]] = {}
        for job in self._jobs:
            by_id.setdefault(job.id, []).append(job)
        return by_id

    @property
    def batch(self) -> UUID | None:
        """The batch to which all jobs belong, or None if they do not share one."""
        batches = {job.batch for job in self._jobs}
        return batches.pop() if len(batches) == 1 else None

    @overload
    def __getitem__(self, index: int) -> J_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[J_co]: ...
    def __getitem__(self, index: int | slice) -> J_co | Sequence[J_co]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def _see(self, view: JobView) -> J_co:
        """Store a job's current view in its handles, and return the first of these."""
        for job in self._by_id[view.id]:
            job._view = view  # noqa: SLF001  a group updates its jobs
        return self._by_id[view.id][0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


def existing_view(
    job_id: UUID, views: Mapping[UUID, JobView], task: type[Task[Any]] | None = None
) -> JobView:
    """Return the job with this id and this type of task. Raises `JobNotFoundError` if it does not exist."""
    view = views.get(job_id)
    if view is None or (task is not None and view.kind != task.kind):
        raise JobNotFoundError(job_id)
    return view


def hints_of(lacks: Iterable[Lack]) -> dict[UUID, str]:
    """Return, for each job that lacks something, what no running worker can do, and which worker to start."""
    said: dict[UUID, list[str]] = {}
    for lack in lacks:
        assert lack.job_id is not None  # noqa: S101  asked by job
        said.setdefault(lack.job_id, []).append(lack.sentence)
    return {job_id: "; ".join(sentences) for job_id, sentences in said.items()}


def assemble(kind: str, outcomes: Sequence[PartOutcome]) -> Document | Captions:
    """Return the result of a job of this kind. Raises `KeyError` for a kind that this version does not know."""
    from pecia_schemas.tasks import task_type  # noqa: PLC0415  tasks are slow to load

    result_type = task_type(kind).result_type
    piece: Any = Segment if result_type is Captions else Page
    lack: Any = SegmentFailure if result_type is Captions else PageFailure
    pieces = [one for one in outcomes if one.stage not in AWAITED]
    read = tuple(piece.model_validate(one.content) for one in pieces if one.content is not None)
    failed = tuple(lack(number=one.ordinal + 1, failure=one.failure) for one in pieces if one.failure)
    last = next((one.content for one in outcomes if one.stage in AWAITED), None)
    if result_type is Captions:
        summary = Summary.model_validate(last) if last else None
        return Captions(segments=read, failed=failed, summary=summary)
    if result_type is Bundle:
        return Bundle(pages=read, failed=failed, split=Split.model_validate(last) if last else None)
    return Document(pages=read, failed=failed)
