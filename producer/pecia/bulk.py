"""Many tasks at once, and one as many: what both kinds of client decide on the way from tasks to jobs.

Tasks go in steps: one is prepared (`waiting.prepare`) while the one before is written and published. A task that is
refused leaves the others alone; what refuses a whole step ends the call, and says what was accepted before. In each
task's span its job's trace begins.

Of a lane's limit, what counts is a part that is queued and may run now; a document counts as one until it is cut into
its pages. The count is made by Postgres, ends at the limit, and is made no more often than once a second, or twenty
times as long as it took; in between a client adds what it hands over itself. So a lane's limit is passed by no more
than what the other clients hand over in that time, a batch for each client, and the pages of documents that are cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pecia import arguments, sources
from pecia.errors import InvalidOptionError, QueueFullError, SubmitError, SubmitManyError, UnavailableError
from pecia.handles import Accepted, GroupHandle
from pecia.records import LaneLoad
from pecia.submission import Item, NewJob, Options, Submission
from pecia_schemas import tracing
from pecia_schemas.messages import PartMessage
from pecia_schemas.states import Lane
from pecia_schemas.tracing import Attributes, Span, SpanKind

if TYPE_CHECKING:
    from pecia_schemas.tasks import Task

J = TypeVar("J")
G = TypeVar("G", bound=GroupHandle[Any])

Outcome = tuple[int, Accepted | SubmitError]
"""The number of a task, and what became of it."""
Outcomes = Iterable[Outcome]
Prepared = list[tuple[int, NewJob | SubmitError]]
"""A step whose documents are stored, ready to be written: what came of each task, by its number."""

_MOST_TASKS: Final = 1_000
_MOST_BYTES: Final = 64 * 1024**2
"""Where a step ends: so many tasks, or so many bytes of documents that are held in memory."""


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
                # A traceback would keep every document that was on its way.
                outcome.__cause__ = outcome.__context__ = None
                self.failures[number] = outcome.with_traceback(None)
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
    def interrupted(self) -> Iterator[None]:
        """Let what ends the call early say which jobs there are, and what was refused."""
        try:
            yield
        except (UnavailableError, QueueFullError) as error:
            self.add(error.answered)
            error.accepted, error.failures = self._group(), self.failures
            raise


class Steps:
    """Tasks as many at a time as are held in memory and written together.

    Their idempotency keys are their own, else `prefix/n` for the n-th, or those that are given, or none.
    """

    def __init__(self, prefix: str | None, keys: Iterable[str] | None) -> None:
        if prefix is not None and keys is not None:
            raise InvalidOptionError("Give idempotency_prefix or idempotency_keys, not both.")
        self._prefix = None if prefix is None else arguments.checked_key(prefix)
        self._keys = None if keys is None else iter(keys)
        self._numbers = count()
        self._step: list[Item] = []
        self._held = 0

    def add(self, one: Task[Any] | Submission[Any]) -> bool:
        """Take in the next task; return whether it fills a step."""
        own = one if isinstance(one, Submission) else Submission(one)
        number = next(self._numbers)
        if own.key is None and self._keys is not None:
            try:
                own = replace(own, key=next(self._keys))
            except StopIteration:
                raise InvalidOptionError(
                    "idempotency_keys has fewer keys than there are tasks: give one for each."
                ) from None
        elif own.key is None and self._prefix is not None:
            own = replace(own, key=f"{self._prefix}/{number}")
        self._step.append(Item(number, own))
        source = getattr(own.task, "source", None)
        self._held += len(source) if isinstance(source, bytes) else 0
        return len(self._step) == _MOST_TASKS or self._held >= _MOST_BYTES

    def take(self) -> list[Item]:
        """Return what has been taken in since the last step."""
        step, self._step, self._held = self._step, [], 0
        return step


def by_lane(items: Sequence[Item], options: Options) -> list[tuple[list[Item], Options]]:
    """Return the tasks of each lane with their options; what is wrong with one is found when it is checked."""
    lanes: dict[Lane, list[Item]] = {}
    for item in items:
        lane = Lane(item.own.priority) if item.own.priority in tuple(Lane) else options.lane
        lanes.setdefault(lane, []).append(item)
    return [(some, replace(options, lane=lane)) for lane, some in lanes.items()]


def check(item: Item, options: Options) -> None:
    """Raise `InvalidOptionError` or `InvalidSourceError` for what can be seen without storing anything."""
    own = item.own
    arguments.checked_label(own.label)
    options.of(own)
    arguments.check_task(own.task)
    if own.key is not None:
        arguments.checked_key(own.key)
    sources.check(own.task.source)


def new_jobs(prepared: Prepared) -> list[NewJob]:
    """Return the jobs to write."""
    return [made for _, made in prepared if isinstance(made, NewJob)]


def outcomes(prepared: Prepared, accepted: Iterable[Accepted | SubmitError]) -> Outcomes:
    """Yield what became of each task, given what became of the jobs that were written."""
    written = iter(accepted)
    for number, made in prepared:
        yield number, next(written) if isinstance(made, NewJob) else made


def messages(new: Iterable[NewJob], accepted: Iterable[Accepted | SubmitError]) -> list[PartMessage]:
    """Return what to publish of jobs that were written."""
    return [
        message
        for job, known in zip(new, accepted, strict=True)
        if isinstance(known, Accepted) and known.created and (message := job.message(known.flow)) is not None
    ]


def submitting(lane: Lane) -> AbstractContextManager[Span]:
    """Submit one task in the span that its job's trace begins with, or goes on with from the application."""
    return tracing.first("submit", _about(lane), kind=SpanKind.PRODUCER)


def traced(
    items: Sequence[Item], lane: Lane, ending: ExitStack
) -> tuple[Sequence[Item], Callable[[Outcomes], Outcomes]]:
    """Give each task of a batch a trace that is linked to the current span and ends with `ending`.

    Returns the tasks, and what takes note of their outcomes as they pass.
    """
    if not tracing.is_on():
        return items, lambda outcomes: outcomes
    batch = tracing.current().traceparent
    links = [batch] if batch else []
    spans = {
        item.number: tracing.apart("submit", _about(lane), kind=SpanKind.PRODUCER, links=links)
        for item in items
    }

    def noted(outcomes: Outcomes) -> Iterator[Outcome]:
        for number, outcome in outcomes:
            became(spans[number], outcome)
            yield number, outcome

    for span in spans.values():
        ending.callback(span.end)
    return [replace(item, traceparent=spans[item.number].traceparent) for item in items], noted


def became(span: Span, outcome: Accepted | SubmitError) -> None:
    """Say what became of a task. A key that was known names an earlier job, whose trace is another."""
    if isinstance(outcome, SubmitError):
        span.fail(type(outcome).__name__)
    else:
        span.set_attributes({"pecia.job.id": str(outcome.view.id), "pecia.job.created": outcome.created})


def sending(messages: Sequence[PartMessage]) -> AbstractContextManager[Span]:
    """Publish messages in a span below the current one."""
    return tracing.span("send", tracing.messaging("send", len(messages)), kind=SpanKind.PRODUCER)


def _about(lane: Lane) -> Attributes:
    return tracing.messaging("submit") | {"messaging.operation.type": "create", "pecia.lane": lane}


_REST_S = 1.0
_SHARE_OF_LOOKING = 20
"""A count that took a second is followed by the next no sooner than this many seconds later."""

_SHARE_OF_ROOM = 0.1
_SOONEST_S, _LATEST_S, _UNKNOWN_S = 1.0, 60.0, 10.0
"""When to come again: when a tenth of the limit is worked off, at the rate of the last minute, within bounds."""


@dataclass(slots=True)
class _Seen:
    load: LaneLoad
    added: int
    stale_at: float


class Backlog:
    """What one client knows of the lanes that have a limit. No I/O."""

    def __init__(self, limits: Mapping[Lane, int]) -> None:
        self._limits = limits
        self._seen: dict[Lane, _Seen] = {}

    def limit(self, lane: Lane) -> int | None:
        """Return how many parts may wait in a lane; None: any number."""
        return self._limits.get(lane)

    def is_stale(self, lane: Lane) -> bool:
        """Whether it has to be counted before it is known if there is room."""
        seen = self._seen.get(lane)
        return seen is None or time.monotonic() >= seen.stale_at

    def saw(self, lane: Lane, load: LaneLoad, *, took: float) -> None:
        """Take in a count, and how many seconds it took."""
        rest = max(_REST_S, _SHARE_OF_LOOKING * took)
        self._seen[lane] = _Seen(load=load, added=0, stale_at=time.monotonic() + rest)

    def add(self, lane: Lane, jobs: int) -> None:
        """Take in that this client has handed over so many jobs."""
        if seen := self._seen.get(lane):
            seen.added += jobs

    def refusal(self, lane: Lane) -> QueueFullError | None:
        """Return what there is to say if there is no room."""
        limit, seen = self._limits.get(lane), self._seen.get(lane)
        if limit is None or seen is None or seen.load.waiting + seen.added < limit:
            return None
        per_second = seen.load.ended / 60
        sooner = _SHARE_OF_ROOM * limit / per_second if per_second else _UNKNOWN_S
        return QueueFullError(lane, limit, retry_after=round(min(_LATEST_S, max(_SOONEST_S, sooner)), 1))


class RoomWait:
    """How long a submit waits for room: not at all, or up to `timeout` seconds at a time; None: as long as it takes."""

    def __init__(self, *, block: bool, timeout: float | None) -> None:
        self._block = block
        self._until = math.inf if timeout is None else time.monotonic() + timeout

    def pause(self, refusal: QueueFullError, rest: float = _REST_S) -> float:
        """Return the seconds until it is worth looking again. Raises the refusal once the timeout has passed."""
        left = self._until - time.monotonic()
        if not self._block or left <= 0:
            raise refusal
        return min(left, rest)
