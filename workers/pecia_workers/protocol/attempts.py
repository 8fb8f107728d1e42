"""Attempts at a part: early ends, working time, and the delay before a retry.

The time limit counts work only: a page of a long document may wait for a decoder longer than its own limit.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from pecia_schemas.failures import FailureCode
from pecia_schemas.settings import WorkerSettings


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
