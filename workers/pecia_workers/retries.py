"""When a part, a delivery or a call of a server is tried again."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from pecia_schemas import FailureCode
from pecia_schemas.settings import WorkerSettings

_LONGEST = timedelta(minutes=10)
_MOST_DOUBLINGS = 20


def retry_delay(code: FailureCode, strikes: int, settings: WorkerSettings) -> timedelta | None:
    """Return how long to wait before the next attempt, None if there is to be none.

    `strikes` counts the attempts that failed before this one. The wait doubles with each and is spread by half, so that
    parts which failed together do not come back together.
    """
    if not code.retryable or strikes + 1 >= settings.max_attempts:
        return None
    longest: timedelta = min(settings.retry_delay * 2 ** min(strikes, _MOST_DOUBLINGS), _LONGEST)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  spreading load, no secret


_JITTER = 0.2
_MOST_STEPS = 64  # by then the longest wait is reached; a float holds what comes out


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySchedule:
    """Exponential backoff with jitter: by default 5 s, 15 s, 45 s … 12 h, two days and a half over fourteen tries."""

    first: timedelta = timedelta(seconds=5)
    factor: float = 3.0
    longest: timedelta = timedelta(hours=12)

    def after(self, attempt: int, *, asked: timedelta | None = None) -> timedelta:
        """Return the wait after the `attempt`-th try, counted from 1.

        A receiver that asked for a wait gets it, within `first` and `longest`.
        """
        if asked is not None:
            return min(max(asked, self.first), self.longest)
        steps = min(attempt - 1, _MOST_STEPS)
        wait_s = min(self.first.total_seconds() * self.factor**steps, self.longest.total_seconds())
        return timedelta(seconds=wait_s * secrets.SystemRandom().uniform(1 - _JITTER, 1 + _JITTER))


def parse_retry_after(header: str | None) -> timedelta | None:
    """Return the wait that a `Retry-After` header asks for; None if there is none, or none that makes sense."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return timedelta(seconds=min(int(header), 10**9))
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)
