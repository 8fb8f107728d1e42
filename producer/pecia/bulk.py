"""Many tasks at once, and one as many: the way from tasks to jobs, for a client of either kind.

Tasks go in steps: one is prepared (`prepare`) while the one before is written (`Store.accept`) and published. A task
that is refused leaves the others alone; what refuses a whole step ends the call, and says what was accepted before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from pecia import asking, sources, submission
from pecia.errors import (
    InvalidOptionError,
    QueueFullError,
    SubmitError,
    SubmitManyError,
    UnavailableError,
)
from pecia.handles import Accepted, GroupHandle
from pecia.sources import StoredSource
from pecia.submission import NewJob, Options, Submission
from pecia_schemas import tracing
from pecia_schemas.encryption import Keyring
from pecia_schemas.media import PayloadRef
from pecia_schemas.messages import PartMessage
from pecia_schemas.states import Lane, new_id

if TYPE_CHECKING:
    from pecia_schemas.payloads import PayloadStore
    from pecia_schemas.tasks import Task

J = TypeVar("J")
G = TypeVar("G", bound=GroupHandle[Any])

Outcome = tuple[int, Accepted | SubmitError]
"""The number of a task, and what became of it."""
Outcomes = Iterable[Outcome]

PAYLOAD_THREADS: Final = 4
"""Documents that are stored at a time."""

_GROUPS: Final = 64
"""Of a step, for the threads: handing each document over alone took as long as making its row."""
_MOST_TASKS = 1_000
_MOST_BYTES = 64 * 1024**2
"""Where a step ends: so many tasks, or so many bytes of documents that are held in memory."""


@dataclass(frozen=True, slots=True)
class Item:
    """One task of those that are submitted together; counted from 0."""

    number: int
    task: Task[Any]
    key: str | None
    own: Submission[Any]
    """What is asked for it alone."""
    job_id: UUID = field(default_factory=new_id)
    """Drawn as the tasks come: documents are stored side by side, and jobs are listed in the order of their ids."""
    traceparent: str | None = None
    """The span in which it is submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A step whose documents are stored, ready to be written."""

    numbers: Sequence[int]
    made: Sequence[NewJob | SubmitError]
    """What came of each task."""

    @property
    def new(self) -> list[NewJob]:
        """The jobs to write."""
        return [new for new in self.made if isinstance(new, NewJob)]

    def outcomes(self, accepted: Iterable[Accepted | SubmitError]) -> Outcomes:
        """Yield what became of each task, given what became of the jobs that were written."""
        written = iter(accepted)
        for number, made in zip(self.numbers, self.made, strict=True):
            yield number, next(written) if isinstance(made, NewJob) else made


@dataclass(slots=True)
class Tally(Generic[J, G]):
    """What has become of the tasks so far."""

    job: Callable[[Accepted], J]
    """Makes a handle."""
    group: Callable[[Sequence[J]], G]
    """Makes them one."""
    jobs: dict[int, J] = field(default_factory=dict)
    """By the number of the task."""
    failures: dict[int, SubmitError] = field(default_factory=dict)

    def add(self, outcomes: Outcomes) -> None:
        """Count a step."""
        for number, outcome in outcomes:
            if isinstance(outcome, SubmitError):
                self.failures[number] = _bare(outcome)
            else:
                self.jobs[number] = self.job(outcome)

    def result(self) -> G:
        """Return all jobs as one. Raises `SubmitManyError` if a task was refused."""
        if self.failures:
            raise SubmitManyError(self._group(), self.failures)
        return self._group()

    def _group(self) -> G:
        return self.group([self.jobs[number] for number in sorted(self.jobs)])

    @contextmanager
    def told(self) -> Iterator[None]:
        """Let what ends the call early say which jobs there are, and what was refused."""
        try:
            yield
        except (UnavailableError, QueueFullError) as error:
            error.accepted, error.failures = self._group(), self.failures
            raise


class Named:
    """The idempotency keys of tasks: `prefix/n` for the n-th, those that are given, or none."""

    def __init__(self, prefix: str | None, keys: Iterable[str] | None) -> None:
        if prefix is not None and keys is not None:
            raise InvalidOptionError("Give idempotency_prefix or idempotency_keys, not both.")
        self._prefix = None if prefix is None else submission.checked_key(prefix)
        self._keys = None if keys is None else iter(keys)

    def key(self, number: int) -> str | None:
        """Return the key of the next task. Raises `InvalidOptionError` if there are fewer keys than tasks."""
        if self._keys is None:
            return None if self._prefix is None else f"{self._prefix}/{number}"
        for key in self._keys:
            return key
        raise InvalidOptionError("idempotency_keys has fewer keys than there are tasks: give one for each.")


class Steps:
    """Tasks as many at a time as are held in memory and written together."""

    def __init__(self, names: Named) -> None:
        self._names = names
        self._numbers = count()
        self._step: list[Item] = []
        self._held = 0

    def add(self, one: Task[Any] | Submission[Any]) -> bool:
        """Take in the next task; return whether it fills a step."""
        own = one if isinstance(one, Submission) else Submission(one)
        number = next(self._numbers)
        key = self._names.key(number) if own.key is None else own.key
        self._step.append(Item(number, own.task, key, own))
        self._held += _held(own.task)
        return len(self._step) == _MOST_TASKS or self._held >= _MOST_BYTES

    def take(self) -> list[Item]:
        """Return what has been taken in since the last step."""
        step, self._step, self._held = self._step, [], 0
        return step


def steps(tasks: Iterable[Task[Any] | Submission[Any]], names: Named) -> Iterator[list[Item]]:
    """Yield the tasks step by step."""
    waiting = Steps(names)
    for task in tasks:
        if waiting.add(task):
            yield waiting.take()
    if step := waiting.take():
        yield step


def by_lane(items: Sequence[Item], asked: Options) -> list[tuple[list[Item], Options]]:
    """Return the tasks of each lane with what is asked for them; what is wrong with one is found when it is checked."""
    lanes: dict[Lane, list[Item]] = {}
    for item in items:
        lane = Lane(item.own.priority) if item.own.priority in tuple(Lane) else asked.lane
        lanes.setdefault(lane, []).append(item)
    return [(some, replace(asked, lane=lane)) for lane, some in lanes.items()]


def row_of(item: Item, source: StoredSource, asked: Options, keys: Keyring) -> NewJob:
    """Return the rows of one of the tasks, whose document is stored."""
    return submission.new_job(
        item.task,
        source,
        asked.of(item.own),
        item.key,
        keys,
        job_id=item.job_id,
        label=item.own.label,
        traceparent=item.traceparent,
    )


def prepare(items: Sequence[Item], payloads: PayloadStore, asked: Options, keys: Keyring) -> Prepared:
    """Check the tasks, store their documents, a few at a time, and make their rows.

    Raises `PayloadStoreUnavailableError` if the store does not answer.
    """

    def make(item: Item) -> NewJob | SubmitError:
        try:
            check(item, asked)
            with tracing.under(item.traceparent, "store"):
                source = sources.store(payloads, item.task.source)
            return row_of(item, source, asked, keys)
        except SubmitError as error:
            return error

    def make_all(some: Sequence[Item]) -> list[NewJob | SubmitError]:
        return [make(item) for item in some]

    numbers = [item.number for item in items]
    if len(items) == 1 or all(_is_stored(item.task) for item in items):
        return Prepared(numbers=numbers, made=make_all(items))
    size = max(1, len(items) // _GROUPS)
    groups = [items[first : first + size] for first in range(0, len(items), size)]
    with ThreadPoolExecutor(PAYLOAD_THREADS, thread_name_prefix="pecia-payloads") as threads:
        return Prepared(numbers=numbers, made=list(chain.from_iterable(threads.map(make_all, groups))))


def check(item: Item, asked: Options) -> None:
    """Raise `InvalidOptionError` or `InvalidSourceError` for what can be seen without storing anything."""
    submission.checked_label(item.own.label)
    asked.of(item.own)
    submission.check_task(item.task)
    asking.check(item.task)
    if item.key is not None:
        submission.checked_key(item.key)
    sources.check(item.task.source)


def messages(new: Iterable[NewJob], accepted: Iterable[Accepted | SubmitError]) -> list[PartMessage]:
    """Return what to publish of jobs that were written."""
    return [
        message
        for job, known in zip(new, accepted, strict=True)
        if isinstance(known, Accepted) and known.created and (message := job.message(known.flow)) is not None
    ]


def _is_stored(task: Task[Any]) -> bool:
    return isinstance(getattr(task, "source", None), PayloadRef)


def _held(task: Task[Any]) -> int:
    source = getattr(task, "source", None)
    return len(source) if isinstance(source, bytes) else 0


def _bare(error: SubmitError) -> SubmitError:
    """Return an error that holds on to nothing: a traceback would keep every document that was on its way."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
