"""A claimed part, its outcomes, and attempts at it: early ends, working time, and the delay before a retry.

The time limit of a part counts work only: a page of a long document may wait for a decoder longer than its own limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final, cast
from uuid import UUID

from pecia_schemas.bundles import Split
from pecia_schemas.encryption import Keyring, unseal_task
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import PayloadRef
from pecia_schemas.results import Page, Segment, Summary, Timings, TokenUsage
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import JobState, Lane, Stage
from pecia_schemas.tasks import ReadBundle, Task, task_from_json

Fence = tuple[UUID, int]
"""A part and its attempt."""

Announce = Callable[[Mapping[UUID, JobState]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPart:
    """A part that this worker runs until it commits or is declared dead."""

    id: UUID
    job_id: UUID
    stage: Stage
    ordinal: int
    """Page or segment, counted from 0."""
    attempt: int
    strikes: int
    """Attempts that failed before this one."""
    deaths: int
    """Workers that died on it."""
    lane: Lane
    start_s: float | None
    end_s: float | None
    """End of a segment in the video, in seconds."""
    kind: str
    stored_task: Mapping[str, Any] = field(repr=False)
    queued_s: float
    """Seconds since it could first have run."""
    flow: UUID | None = None
    """Flow whose parts take turns together; None: those of its job alone."""
    client: str = ""
    """Who submitted it."""
    tenant: str | None = None
    """Its tenant, if it came through the gateway."""
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Metadata of the job."""
    traceparent: str | None = None
    """The span that it was submitted in."""
    keys: Keyring = field(default=Keyring(), repr=False, compare=False)
    """The keys of the fleet."""
    wrapped: Any = field(default=None, repr=False)
    """The data key of its job."""

    @property
    def fence(self) -> Fence:
        """Identifies this run of the part, also among runs on the same worker."""
        return self.id, self.attempt

    @property
    def may_release(self) -> bool:
        """Whether other parts of its job may be held until it ends."""
        return self.stage is Stage.CAPTION or (self.stage is Stage.READ and self.kind == ReadBundle.kind)

    @property
    def task(self) -> Task[Any]:
        """Return the job's task. Parsed only here, so that a newer version's task fails only its own part.

        Raises `KeyError` or `pydantic.ValidationError` if this version does not understand it, `DecryptionError` if
        this worker's keys do not decrypt it.
        """
        return task_from_json(self.kind, unseal_task(self.stored_task, self.job_id, self.ring))

    @property
    def ring(self) -> Keyring:
        """Return the keys of its job. Raises `DecryptionError` if this worker's keys do not unwrap them."""
        return self.keys.of_job(self.job_id, self.wrapped)

    @property
    def payload(self) -> PayloadRef:
        """Return its document; not available in an ingest part whose document has not been fetched."""
        return cast("PayloadRef", self.task.source)  # a task that was cut has no other source


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPart:
    """A page or segment that ingest found."""

    ordinal: int
    cost: int
    """Tokens."""
    width: int | None = None
    height: int | None = None
    """Pixels."""
    start_s: float | None = None
    end_s: float | None = None
    """Where in the video it lies, in seconds."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The payload has been cut into these parts of that stage."""

    stage: Stage
    parts: Sequence[NewPart]
    held: tuple[Stage, NewPart] | None = None
    """One more part, of a stage of `AWAITED`, which is held until the others end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Resources used by one attempt, added to columns of the part in the transaction that ends the attempt.

    Stored on the part and not with its result, because results are deleted long before their billing, and because
    failed parts have no result. The use of killed or cancelled attempts is unknown and not counted.
    """

    engine: str
    usage: TokenUsage
    timings: Timings
    saved_tokens: int | None = None
    """Tokens saved by a cached result; None without one."""

    @classmethod
    def on(cls, result: Page | Segment | Summary) -> Spent:
        """Return the use of a result."""
        earlier = result.cached_from and result.cached_from.usage
        saved = earlier.prompt + earlier.output if earlier else None
        return cls(engine=result.engine, usage=result.usage, timings=result.timings, saved_tokens=saved)

    @property
    def all_wasted(self) -> Spent:
        """Return the same for a failed attempt: all its tokens are wasted."""
        wasted = self.usage.prompt + self.usage.output
        usage = self.usage.model_copy(update={"wasted": wasted})
        return Spent(engine=self.engine, usage=usage, timings=self.timings)

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of `COLUMNS`."""
        return {
            "engine": self.engine,
            "saved_tokens": self.saved_tokens,
            **{f"{name}_tokens": tokens for name, tokens in self.usage},
            **{f"{name}_s": seconds for name, seconds in self.timings},
        }


@dataclass(frozen=True, slots=True)
class Done:
    """The part has a result."""

    content: Page | Segment | Summary | Split
    cache_key: bytes | None = None
    """Key of the result in the cache; None: not cached."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The part failed, finally or until a retry after `retry_in`."""

    failure: Failure
    retry_in: timedelta | None = None
    spent: Spent | None = None
    """None if it reached no engine."""
    sqlstate: str = ""
    """SQLSTATE with which Postgres refused the original outcome."""

    @property
    def reason(self) -> str:
        """Why, in one word or two, for the part's event."""
        return f"{self.failure.code} {self.sqlstate}".strip()


@dataclass(frozen=True, slots=True)
class Postponed:
    """The part could not be worked on and returns to its queue after a delay, without a strike."""

    retry_in: timedelta


Outcome = Done | Cut | Failed | Postponed


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A part that this worker claimed, and its outcome."""

    part: ClaimedPart
    outcome: Outcome

    @property
    def is_too_slow(self) -> bool:
        """Whether the part could not be decoded in time."""
        return isinstance(self.outcome, Failed) and self.outcome.failure.code is FailureCode.DECODE_TIMEOUT

    def refused(self, sqlstate: str) -> Finished:
        """Return the outcome to commit instead of one that Postgres refused."""
        found = f"Postgres refused the result ({sqlstate})."
        failure = Failure.of(FailureCode.INTERNAL, found, attempt=self.part.attempt)
        return replace(self, outcome=Failed(failure, sqlstate=sqlstate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The result of an earlier part."""

    part: UUID
    content: Mapping[str, Any]
    read_at: datetime
    """By the database's clock."""


NO_FLOW = UUID(int=0)
"""Less than the id of any flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSpace:
    """How much one list may take from the relay."""

    stage: Stage
    lane: Lane
    parts: int
    turn: int
    """Most parts of one flow in its turn."""
    after: UUID
    """The flow served last."""
    is_waited_for: bool
    """Whether clients left parts to the relay because the list was full."""


class PartFailedError(Exception):
    """A part failed. Its text is only the code, since Celery shows it to operators."""

    def __init__(self, code: FailureCode) -> None:
        super().__init__(str(code))
        self.code = code


class PartCancelledError(Exception):
    """A part was cancelled, or erased, before its end."""


class StorageUnavailableError(Exception):
    """This worker's disk or the payload store fails at present: the part is requeued without a strike.

    Its text names neither a document nor a path.
    """


class RuntimeLostError(RuntimeError):
    """The worker cannot run parts any more: it requeues all parts and exits."""


class _Clock:
    """Measures a part's working time; overlapping waits pause it until the last of them ends."""

    def __init__(self) -> None:
        self._began = monotonic()
        self.limit: asyncio.Timeout | None = None
        self._left_s = 0.0
        self._waits = 0
        self._since = 0.0
        self._past_s = 0.0

    @property
    def worked_s(self) -> float:
        """Seconds of work so far."""
        waited_s = self._past_s + (monotonic() - self._since if self._waits else 0.0)
        return monotonic() - self._began - waited_s

    def stop(self) -> None:
        if not self._waits:
            self._since = monotonic()
            if self.limit and (end := self.limit.when()) is not None:
                self._left_s = end - asyncio.get_running_loop().time()
                self._reschedule(None)
        self._waits += 1

    def go_on(self) -> None:
        if self._waits == 1:
            self._past_s += monotonic() - self._since
            self._reschedule(asyncio.get_running_loop().time() + self._left_s)
        self._waits -= 1

    def _reschedule(self, end: float | None) -> None:
        if self.limit and not self.limit.expired():
            self.limit.reschedule(end)


_CLOCK: Final[ContextVar[_Clock | None]] = ContextVar("part_clock", default=None)
_clocks: Final[dict[UUID, _Clock]] = {}


@contextmanager
def clocked(part: UUID) -> Iterator[None]:
    """Measure the working time of the block, including all tasks that it starts."""
    clock = _clocks[part] = _Clock()
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)
        del _clocks[part]


@asynccontextmanager
async def limited(seconds: float) -> AsyncIterator[None]:
    """Raise `TimeoutError` in the block once its part has worked for that long."""
    clock = _CLOCK.get()
    assert clock is not None  # noqa: S101  only clocked parts are limited
    async with asyncio.timeout(seconds) as limit:
        clock.limit = limit
        try:
            yield
        finally:
            clock.limit = None


@contextmanager
def waiting() -> Iterator[None]:
    """Exclude the block from working time: it waits for a process, engine capacity, Postgres or the payload store."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()


def worked_s() -> float:
    """Return the seconds that this task's part has worked, or 0 outside a part."""
    clock = _CLOCK.get()
    return clock.worked_s if clock else 0.0


def worked_longer(seconds: float) -> list[UUID]:
    """Return the parts of this process that have worked longer than that."""
    return [part for part, clock in _clocks.items() if clock.worked_s > seconds]


_MOST_STEPS: Final = 64
"""By then the longest wait is reached; a float holds the product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """`first_s * factor ** (failed - 1)` seconds, at most `longest_s`, times a random number from `spread`.

    The spread keeps callers that failed together from returning together.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    spread: tuple[float, float] = (1.0, 1.0)

    def wait_s(self, failed: int) -> float:
        """Return the seconds to wait after `failed` tries, counted from 1."""
        return self.spread_s(self.first_s * self.factor ** min(max(0, failed - 1), _MOST_STEPS))

    def spread_s(self, wait_s: float) -> float:
        """Return this wait, bounded and spread, where a server names one."""
        return min(wait_s, self.longest_s) * random.uniform(*self.spread)  # noqa: S311  spreading load, no secret


_LONGEST_S = 600.0


def retry_delay(code: FailureCode, strikes: int, settings: WorkerSettings) -> timedelta | None:
    """Return the delay before the next attempt, or None if there is no further attempt.

    `strikes` counts the failed attempts before this one. The delay doubles with each and has a jitter of one half, so
    that parts which failed together do not return together.
    """
    if not code.retryable or strikes + 1 >= settings.max_attempts:
        return None
    backoff = Backoff(first_s=settings.retry_delay.total_seconds(), longest_s=_LONGEST_S, spread=(0.5, 1.0))
    return timedelta(seconds=backoff.wait_s(strikes + 1))
