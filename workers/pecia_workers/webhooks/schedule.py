"""When a delivery is tried again."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

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
