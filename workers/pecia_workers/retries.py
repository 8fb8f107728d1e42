"""When a failed part is tried again."""

from __future__ import annotations

import random
from datetime import timedelta

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
