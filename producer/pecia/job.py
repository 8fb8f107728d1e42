"""Handles of jobs: what was last seen of them, and what can be done with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Self, TypeVar, cast, overload
from uuid import UUID

from pydantic import BaseModel

from pecia import assembly, streaming
from pecia.audit import AuditAction
from pecia.completion import Deadline, finished, look
from pecia.connections import Connections
from pecia.errors import (
    JobCancelledError,
    JobErasedError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
)
from pecia.usage import UsageFigures
from pecia.view import JobView
from pecia_schemas.events import JobEvent, Progress
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Page
from pecia_schemas.states import JobState, Lane
from pecia_schemas.tasks import ReadDocument

R_co = TypeVar("R_co", bound=BaseModel, covariant=True)

_CANCEL_AT_ONCE = 200  # jobs in one transaction


class Job(Generic[R_co]):
    """One job. Its attributes are what was last seen and cost no I/O; `refresh` looks again.

    A `timeout` is in seconds and the caller's alone: when it passes, `JobTimeoutError` is raised and the job goes on.
    0 looks exactly once, None waits for as long as it takes.
    """

    def __init__(self, open_connections: Callable[[], Connections], view: JobView, *, created: bool) -> None:
        self._open = open_connections
        self._view = view
        self._created = created

    @property
    def id(self) -> UUID:
        """Its id, sorted by time of submission."""
        return self._view.id

    @property
    def kind(self) -> str:
        """The kind of its task, such as `document.read`."""
        return self._view.kind

    @property
    def state(self) -> JobState:
        """Where it was in its life."""
        return self._view.state

    @property
    def lane(self) -> Lane:
        """The lane its parts wait in."""
        return self._view.lane

    @property
    def progress(self) -> Progress:
        """How many of its parts were where."""
        return self._view.progress

    @property
    def failure(self) -> Failure | None:
        """Why it failed, if it did."""
        return self._view.failure

    @property
    def metadata(self) -> Mapping[str, str]:
        """What was attached to it when it was submitted."""
        return self._view.metadata

    @property
    def created(self) -> bool:
        """Whether this handle's submit made the job; False if its idempotency key named one that existed."""
        return self._created

    @property
    def submitted_at(self) -> datetime:
        """When it was accepted, by the database's clock."""
        return self._view.submitted_at

    @property
    def finished_at(self) -> datetime | None:
        """When it was over."""
        return self._view.finished_at

    @property
    def erased_at(self) -> datetime | None:
        """When its result was erased, by the fleet's retention or by a purge."""
        return self._view.erased_at

    @property
    def done(self) -> bool:
        """Whether it was over, well or badly."""
        return self.state.is_terminal

    def refresh(self) -> Self:
        """Look again. Raises `JobNotFoundError` if the job has been deleted."""
        view = self._open().store.views([self.id]).get(self.id)
        if view is None:
            raise JobNotFoundError(self.id)
        self._view = view
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return once the job is over, well or badly."""
        for view in finished(self._open(), [self.id], Deadline(timeout)):
            self._view = view
        return self

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job and return its result; that of a `partial` job says what is missing.

        Raises `JobFailedError`, `JobCancelledError` or `JobExpiredError` if there is none, `JobErasedError` if it was
        erased.
        """
        self.wait(timeout)
        self._raise_without_result()
        outcomes = self._open().store.outcomes(self.id, read_as=AuditAction.RESULT)
        return cast("R_co", assembly.assemble(self.kind, outcomes))

    def pages(self, *, as_completed: bool = False, timeout: float | None = None) -> Iterator[Page]:
        """Yield the document's pages while the job runs: in order, or each as soon as it is read.

        Pages that failed are left out. Ends as `result` does: it raises if the job has no result.
        """
        if self.kind != ReadDocument.kind:
            message = f"a job of kind {self.kind} has no pages"
            raise TypeError(message)
        deadline = Deadline(timeout)
        for outcome in streaming.parts(
            self._open(), self.id, self._is_over, deadline, in_order=not as_completed
        ):
            if outcome.content is not None:
                yield assembly.page(outcome)
        self.refresh()  # what was erased meanwhile was left out
        self._raise_without_result()

    def events(self, timeout: float | None = None) -> Iterator[JobEvent]:
        """Yield every event of the job and its parts, from the first, until the job is over.

        Events of parts that move at the same time may come out of the order of their sequence.
        """
        yield from streaming.events(self._open(), self.id, self._is_over, Deadline(timeout))

    def hint(self) -> str | None:
        """Say why the job cannot go on as the fleet is, if no running worker can do what it waits for.

        Looks into the database; None for a job that only waits for its turn.
        """
        return hints(self._open(), [self]).get(self.id)

    def usage(self) -> UsageFigures:
        """Return what its parts have taken so far, attempts that failed included; looks into the database."""
        return self._open().accounts.of_job(self.id)

    def cancel(self, *, reason: str | None = None) -> bool:
        """End the job now; return False if it was over already. Pages that are read stay in the database.

        `reason` is stored with the job's events: write nothing of the document into it.
        """
        connections = self._open()
        cancelled = connections.transitions.cancel([self.id], reason)
        connections.bus.announce(cancelled, JobState.CANCELLED)
        self.refresh()
        return bool(cancelled)

    def retry(self, parts: Collection[UUID] | None = None) -> Self:
        """Run what failed or was cancelled again, or those of it; what has a result keeps it.

        Raises `RetryRefusedError` while the job is at work or if it has succeeded.
        """
        connections = self._open()
        connections.publish(connections.transitions.retry(self.id, parts))
        connections.bus.announce([self.id], JobState.QUEUED)
        return self.refresh()

    def _is_over(self) -> bool:
        return self.refresh().done

    def _raise_without_result(self) -> None:
        if self.state is JobState.FAILED:
            raise JobFailedError(self.id, self.failure or Failure.of(FailureCode.INTERNAL))
        if self.state is JobState.CANCELLED:
            raise JobCancelledError(self.id)
        if self.state is JobState.EXPIRED:
            raise JobExpiredError(self.id)
        if self.erased_at is not None:
            raise JobErasedError(self.id, self.erased_at)

    def __repr__(self) -> str:
        progress = self.progress
        return f"<Job {self.id} {self.kind} {self.state} {progress.finished}/{progress.total or '?'}>"


class JobGroup(Sequence[Job[R_co]]):
    """Jobs that were submitted together, in the order of their tasks. Timeouts are those of `Job`."""

    def __init__(self, open_connections: Callable[[], Connections], jobs: Sequence[Job[R_co]]) -> None:
        self._open = open_connections
        self._jobs = tuple(jobs)
        self._by_id: dict[UUID, list[Job[R_co]]] = {}
        for job in self._jobs:
            self._by_id.setdefault(job.id, []).append(job)

    @overload
    def __getitem__(self, index: int) -> Job[R_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Job[R_co]]: ...
    def __getitem__(self, index: int | slice) -> Job[R_co] | Sequence[Job[R_co]]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def refresh(self) -> Self:
        """Look at all jobs again, some hundred in a query. Raises `JobNotFoundError` if one has been deleted."""
        for view in look(self._open(), [job.id for job in self._jobs]):
            for job in self._by_id[view.id]:
                job._view = view  # noqa: SLF001  a group and its jobs are one thing
        return self

    def hints(self) -> dict[UUID, str]:
        """Return what `Job.hint` says of each job of which it says something."""
        return hints(self._open(), self._jobs)

    def as_completed(self, timeout: float | None = None) -> Iterator[Job[R_co]]:
        """Yield each job once it is over, well or badly. A job that is in the group twice comes once."""
        for view in finished(self._open(), list(self._by_id), Deadline(timeout)):
            for job in self._by_id[view.id]:
                job._view = view  # noqa: SLF001
            yield self._by_id[view.id][0]

    def wait(self, timeout: float | None = None) -> Self:
        """Return once all jobs are over, well or badly."""
        for _ in self.as_completed(timeout):
            pass
        return self

    def results(self, timeout: float | None = None) -> list[R_co]:
        """Wait for all and return their results, in order. Raises what the first job without one raises."""
        self.wait(timeout)
        return [job.result(timeout=0) for job in self._jobs]

    def cancel(self, *, reason: str | None = None) -> int:
        """End all jobs that are not over; return how many that were."""
        connections = self._open()
        cancelled: list[UUID] = []
        job_ids = [job.id for job in self._jobs]
        for start in range(0, len(job_ids), _CANCEL_AT_ONCE):
            cancelled += connections.transitions.cancel(job_ids[start : start + _CANCEL_AT_ONCE], reason)
        connections.bus.announce(cancelled, JobState.CANCELLED)
        return len(cancelled)

    def __repr__(self) -> str:
        return f"<JobGroup of {len(self)}>"


def hints(connections: Connections, jobs: Sequence[Job[Any]]) -> dict[UUID, str]:
    """Return, for each job that waits in vain, what no running worker can do, and what to start."""
    waiting = [job.id for job in jobs if not job.done]
    said: dict[UUID, list[str]] = {}
    for lack in connections.store.lacking(waiting) if waiting else ():
        assert lack.job_id is not None  # noqa: S101  asked by job
        said.setdefault(lack.job_id, []).append(lack.sentence)
    return {job_id: "; ".join(sentences) for job_id, sentences in said.items()}


AnyJob = Job[Any]
"""A job whose kind of result is not known to the type checker."""
