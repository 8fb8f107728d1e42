"""Decisions about waiting, without I/O, for both kinds of client; and waiting primitives for threads.

A wait for jobs looks, subscribes, looks again, then waits for an announcement or for the polling interval to pass.
`pecia.aio.waiting` has the names of the second half for a loop: what differs by nature.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from contextvars import copy_context
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar, cast
from uuid import UUID

from pecia import request, sources
from pecia.errors import JobTimeoutError, QueueFullError, SubmitError
from pecia.handles import JobView
from pecia.records import AuditAction, LaneLoad, PartOutcome
from pecia.request import Item, Options, Steps, Submission
from pecia.submission import NewJob, Prepared, new_job
from pecia_schemas import tracing
from pecia_schemas.encryption import Keyring
from pecia_schemas.media import Ordinals, PayloadRef
from pecia_schemas.messages import job_channel
from pecia_schemas.states import Lane

if TYPE_CHECKING:
    from pecia_schemas.payloads import PayloadStore
    from pecia_schemas.tasks import Task

log = logging.getLogger(__name__)

_REST_S: Final = 5.0
"""Pause before Redis is used again after a failure."""
CONFIRMATION_S = 2.0
"""Time in which Redis must confirm subscriptions."""
LOOK_AT = 500
"""Rows in one query, and announcements that are collected before a query."""
OUTAGE_S = 30.0
OUTAGE_PAUSE_S = 0.5
FETCH = 100
"""Outcomes in one query, so that a long document is not loaded at once."""
_SETTLING_S = 10.0
"""Longest time that a transaction may take from drawing an event's sequence number to its commit."""


class Deadline:
    """The end of a caller's timeout. None never ends; 0 ends at once, so that exactly one check is made."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def within(self, seconds: float) -> float:
        """Return this many seconds, or the remaining time if that is shorter."""
        return seconds if self._at is None else max(0.0, min(seconds, self._at - time.monotonic()))

    def check(self, job_id: UUID) -> None:
        """Raise `JobTimeoutError` if the deadline has passed."""
        if self._at is not None and self.timeout is not None and time.monotonic() >= self._at:
            raise JobTimeoutError(job_id, self.timeout)


class Pending:
    """The jobs of one wait that have not ended, and those to query next."""

    def __init__(self, job_ids: Sequence[UUID], deadline: Deadline) -> None:
        self._open = dict.fromkeys(job_ids)
        self._deadline = deadline
        self.look_at = list(self._open)

    def __bool__(self) -> bool:
        return bool(self._open)

    def settle(self, view: JobView) -> bool:
        """Record a job's current state; return whether it has ended."""
        if view.state.is_terminal:
            del self._open[view.id]
        return view.state.is_terminal

    def check(self) -> None:
        """Raise `JobTimeoutError` for the first open job if the deadline has passed."""
        self._deadline.check(next(iter(self._open)))

    def hear(self, announced: Collection[UUID]) -> None:
        """Query the announced jobs next, or all open ones if none was announced."""
        self.look_at = [job_id for job_id in self._open if not announced or job_id in announced]


class Channels:
    """The channels on which jobs are announced, and the number of subscriptions that Redis has not confirmed."""

    def __init__(self, job_ids: Collection[UUID]) -> None:
        self._ids = {job_channel(job_id): job_id for job_id in job_ids}
        self._unconfirmed = 0

    def reset(self) -> list[str]:
        """Return the channels to subscribe to, and mark all of them as unconfirmed."""
        self._unconfirmed = len(self._ids)
        return list(self._ids)

    @property
    def confirmed(self) -> bool:
        """Whether all subscriptions are confirmed, so that no later announcement is missed."""
        return self._unconfirmed == 0

    def confirm(self, message: Mapping[str, Any] | None) -> None:
        """Count a message that confirms a subscription."""
        self._unconfirmed -= message is not None and message["type"] == "subscribe"

    def announced(self, message: Mapping[str, Any]) -> set[UUID]:
        """Return the job that a message announces, or an empty set."""
        return {self._ids[message["channel"]]} if message["type"] == "message" else set()


class ReadParts:
    """Parts that a caller has read, and read parts that wait for an earlier one."""

    def __init__(self, read: Ordinals | None = None) -> None:
        self.ordinals = Ordinals() if read is None else read
        self.read_as: AuditAction | None = AuditAction.PAGES
        """Audit action of the next read; a call records only one."""
        self._held: list[PartOutcome] = []
        self._given = len(self.ordinals)

    def wants_more(self, barrier: int | None) -> bool:
        """Return whether another read could yield parts; those behind an unfinished part stay in the store."""
        return barrier is None or barrier > self._given

    def ready(self, fresh: Sequence[PartOutcome], barrier: int | None) -> list[PartOutcome]:
        """Add newly read parts. Return, in order, all read parts before the first that may still change."""
        if any(outcome.content for outcome in fresh):
            self.read_as = None
        for outcome in fresh:
            self.ordinals.add(outcome.ordinal)
        held = sorted([*self._held, *fresh], key=lambda outcome: outcome.ordinal)
        ready = [outcome for outcome in held if barrier is None or outcome.ordinal < barrier]
        self._held = held[len(ready) :]
        self._given += len(ready)
        return ready


class ReadEvents:
    """Events that a caller has read. Sequence numbers are drawn before the commit, so a lower one may appear later."""

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        """Sequence number up to which no further event can appear."""
        self.recent: dict[int, float] = {}

    def add(self, sequence: int) -> None:
        """Record an event that was read."""
        self.recent[sequence] = time.monotonic()

    def settle(self) -> None:
        """Raise the floor over entries so old that no event below them can still appear."""
        horizon = time.monotonic() - _SETTLING_S
        settled = [sequence for sequence, read_at in self.recent.items() if read_at < horizon]
        for sequence in settled:
            del self.recent[sequence]
        self.floor = max([self.floor, *settled])


def batches(job_ids: Sequence[UUID], size: int = LOOK_AT) -> Iterator[Sequence[UUID]]:
    """Yield the jobs in slices of `size`, by default as many as one query reads."""
    for start in range(0, len(job_ids), size):
        yield job_ids[start : start + size]


def redis_errors() -> tuple[type[Exception], ...]:
    """Return what Redis raises while it is away; its library is loaded once something was raised."""
    from redis import RedisError  # noqa: PLC0415  slow to load

    return RedisError, OSError


class Breaker:
    """A circuit breaker for Redis: after a failure Redis is not used for a while. A refusal is logged once."""

    def __init__(self, locate: Callable[[], str]) -> None:
        self._locate = locate
        self.url = locate()
        """URL of Redis at the last lookup."""
        self._has_failed = False
        self._rests_until = 0.0
        self._complained = False

    @property
    def resting(self) -> bool:
        """Whether Redis is not to be used now."""
        return time.monotonic() < self._rests_until

    def rest(self) -> None:
        """Do not use Redis for a while, after a failure."""
        self._has_failed = True
        self._rests_until = time.monotonic() + _REST_S

    def has_moved(self) -> bool:
        """Look up the URL of Redis again after a failure; return whether it has changed."""
        former, has_failed = self.url, self._has_failed
        self._has_failed = False
        if has_failed:
            self.url = self._locate()
        return self.url != former

    def failed(self, error: Exception) -> None:
        """Pause Redis after an error. Log a refusal once: unlike an outage it does not end by itself."""
        from pecia_schemas.connecting import refusal_of_redis  # noqa: PLC0415  brings psycopg, slow to load

        self.rest()
        if not self._complained and (refusal := refusal_of_redis(error, self.url)):
            self._complained = True
            log.warning("%s Until then work waits for the fleet's relay.", refusal)


RECOUNT_S = 1.0
_SHARE_OF_LOOKING = 20
"""Pause after a count, as a multiple of the time that the count took."""

_SHARE_OF_ROOM = 0.1
_SOONEST_S, _LATEST_S, _UNKNOWN_S = 1.0, 60.0, 10.0
"""Bounds of `retry_after`: time until a tenth of the limit has been processed, at the rate of the last minute."""


class Backlog:
    """One client's knowledge of lanes that have a limit. No I/O.

    Postgres counts no more often than once a second; in between a client adds what it hands over itself.
    """

    def __init__(self, limits: Mapping[Lane, int]) -> None:
        self._limits = limits
        self._waiting: dict[Lane, int] = {}
        self._per_second: dict[Lane, float] = {}
        self._stale_at: dict[Lane, float] = {}

    def limit(self, lane: Lane) -> int | None:
        """Return the maximum number of waiting parts of a lane, or None if unlimited."""
        return self._limits.get(lane)

    def is_stale(self, lane: Lane) -> bool:
        """Whether the lane must be counted again before its capacity is known."""
        return time.monotonic() >= self._stale_at.get(lane, 0.0)

    def saw(self, lane: Lane, load: LaneLoad, *, took: float) -> None:
        """Record a count and the seconds that it took."""
        self._waiting[lane], self._per_second[lane] = load.waiting, load.ended / 60
        self._stale_at[lane] = time.monotonic() + max(RECOUNT_S, _SHARE_OF_LOOKING * took)

    def add(self, lane: Lane, jobs: int) -> None:
        """Record that this client has submitted this many jobs."""
        self._waiting[lane] = self._waiting.get(lane, 0) + jobs

    def refusal(self, lane: Lane) -> QueueFullError | None:
        """Return the error to raise if the lane is full, or None."""
        limit = self._limits.get(lane)
        if limit is None or lane not in self._stale_at or self._waiting[lane] < limit:
            return None
        per_second = self._per_second[lane]
        sooner = _SHARE_OF_ROOM * limit / per_second if per_second else _UNKNOWN_S
        return QueueFullError(lane, limit, retry_after=round(min(_LATEST_S, max(_SOONEST_S, sooner)), 1))


P = ParamSpec("P")
T = TypeVar("T")


sleep = time.sleep
Semaphore = threading.Semaphore


class Inheritable:
    """Resources that belong to the process that opened them; a forked child only drops them."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def are_inherited(self) -> bool:
        """Whether this process was forked from the process that opened them."""
        return os.getpid() != self._pid

    def close(self) -> Any:
        """Close this process's own resources, and drop those inherited from its parent without closing them."""
        raise NotImplementedError


C = TypeVar("C", bound=Inheritable)


class Opening(Generic[C]):
    """Holder of a client's connections, for all threads of a process."""

    _connections: C | None = None

    def __init__(self) -> None:
        self._opening = threading.Lock()

    def _connect(self) -> C:
        raise NotImplementedError

    def _open(self) -> C:
        """Return the connections; open them if they are closed or belong to the parent of this forked process."""
        with self._opening:
            if self._connections is not None and self._connections.are_inherited:
                self._connections.close()
                self._connections = None
            if self._connections is None:
                self._connections = self._connect()
            return self._connections

    def _take(self) -> C | None:
        """Return the open connections for closing, and forget them."""
        with self._opening:
            taken, self._connections = self._connections, None
        return taken


class Background(Generic[T]):
    """One background step that a thread runs while its caller prepares the next; results are taken in order."""

    def __init__(self, take: Callable[[T], object]) -> None:
        self._take = take
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pecia-submit")
        self._under_way: tuple[Future[T], Callable[[T], T], ExitStack] | None = None

    def start(self, work: Callable[[], T], passed: Callable[[T], T], held: ExitStack) -> None:
        """Start the step. When it is settled, its result passes through `passed`, and `held` is closed."""
        self._under_way = self._thread.submit(copy_context().run, work), passed, held

    def settle(self) -> None:
        """Wait for the step in flight. Raises its error."""
        if self._under_way is not None:
            (future, passed, held), self._under_way = self._under_way, None
            with held:
                self._take(passed(future.result()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with self._thread, suppress(Exception) if error else nullcontext():
            self.settle()


def closing(items: T) -> contextlib.AbstractContextManager[T]:
    """Close a generator or announcements at the end of the block, also if an exception keeps it alive."""
    return contextlib.closing(cast("Any", items))


def attentive(answer: T) -> T:
    """Return a driver's result unchanged: a waiting thread cannot be cancelled."""
    return answer


def run_blocking(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `work` and return its result."""
    return work(*args, **kwargs)


def within_work(call: Callable[P, T]) -> Callable[P, T]:
    """Return a function unchanged: code inside a transaction can call it directly."""
    return call


_PAYLOAD_THREADS: Final = 4
"""Documents that are stored at a time."""
_GROUPS: Final = 64
"""Groups of a step for the threads: passing single documents to threads took as long as building their rows."""


def steps(tasks: Iterable[Task[Any] | Submission[Any]], waiting: Steps) -> Iterator[list[Item]]:
    """Yield the tasks in steps."""
    for task in tasks:
        if waiting.add(task):
            yield waiting.take()
    if step := waiting.take():
        yield step


def prepare(items: Sequence[Item], payloads: PayloadStore, options: Options, keys: Keyring) -> Prepared:
    """Check the tasks, store their documents, a few at a time, and build their rows.

    Raises `PayloadStoreUnavailableError` if the store does not answer.
    """

    def make(item: Item) -> tuple[int, NewJob | SubmitError]:
        try:
            request.check(item, options)
            with tracing.under(item.traceparent, "store"):
                source = sources.store(payloads, item.own.task.source)
            return item.number, new_job(item, source, options, keys)
        except SubmitError as error:
            return item.number, error

    if len(items) == 1 or all(
        isinstance(getattr(item.own.task, "source", None), PayloadRef) for item in items
    ):
        return [make(item) for item in items]
    size = max(1, len(items) // _GROUPS)
    groups = [items[first : first + size] for first in range(0, len(items), size)]
    with ThreadPoolExecutor(_PAYLOAD_THREADS, thread_name_prefix="pecia-payloads") as threads:
        return list(chain.from_iterable(threads.map(lambda some: [make(item) for item in some], groups)))
