"""Back-pressure: how much of a lane waits, and whether there is room for more of it.

What counts is a part that is queued and may run now; a document counts as one until it is cut into its pages. The count
is made by Postgres, ends at the limit, and is made no more often than once a second, or twenty times as long as it
took; in between a client adds what it hands over itself. So a lane's limit is passed by no more than what the other
clients hand over in that time, a batch for each client, and the pages of documents that are cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pecia.errors import QueueFullError
from pecia_schemas.states import Lane

_REST_S = 1.0
_SHARE_OF_LOOKING = 20
"""A count that took a second is followed by the next no sooner than this many seconds later."""

_SHARE_OF_ROOM = 0.1
_SOONEST_S, _LATEST_S, _UNKNOWN_S = 1.0, 60.0, 10.0
"""When to come again: when a tenth of the limit is worked off, at the rate of the last minute, within bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a lane has before it."""

    waiting: int
    """Parts that are queued and may run now, counted up to the limit."""
    ended: int
    """Parts of that lane that the engines ended within the last minute."""


@dataclass(slots=True)
class _Seen:
    load: Load
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

    def saw(self, lane: Lane, load: Load, *, took: float) -> None:
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


class Patience:
    """How long a submit waits for room: not at all, or up to `timeout` seconds at a time; None: as long as it takes."""

    def __init__(self, *, block: bool, timeout: float | None) -> None:
        self._block = block
        self._until = math.inf if timeout is None else time.monotonic() + timeout

    def pause(self, refusal: QueueFullError) -> float:
        """Return the seconds until it is worth looking again. Raises the refusal when the patience is over."""
        left = self._until - time.monotonic()
        if not self._block or left <= 0:
            raise refusal
        return min(left, _REST_S)
