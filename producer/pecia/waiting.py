"""What waiting decides, with no I/O: whether a lane has room, when to give up, what to look at next, what was read.

Of a lane's limit, what counts is a part that is queued and may run now; a document counts as one until it is cut into
its pages. The count is made by Postgres, ends at the limit, and is made no more often than once a second, or twenty
times as long as it took; in between a client adds what it hands over itself. So a lane's limit is passed by no more
than what the other clients hand over in that time, a batch for each client, and the pages of documents that are cut.

A wait for jobs looks, subscribes, looks again, then waits for an announcement or for the polling interval to pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pecia.errors import JobNotFoundError, JobTimeoutError, QueueFullError
from pecia.handles import JobView
from pecia.records import AuditAction, PartOutcome
from pecia_schemas.messages import job_channel
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


CONFIRMATION_S = 2.0
"""How long Redis has to note subscriptions."""
LOOK_AT = 500
"""Rows in one query, and announcements that are taken in before a look."""
_OUTAGE_S = 30.0
_OUTAGE_PAUSE_S = 0.5
FETCH = 100
"""Outcomes in one query, so that a long document does not come all at once."""
_SETTLING_S = 10.0
"""How long a transaction may take from drawing an event's sequence to its commit."""


class Deadline:
    """When a caller's patience ends. None: never; 0: at once, so that things are looked at exactly once."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def within(self, seconds: float) -> float:
        """Return so many seconds, or those that are left if they are fewer."""
        return seconds if self._at is None else max(0.0, min(seconds, self._at - time.monotonic()))

    def check(self, job_id: UUID) -> None:
        """Raise `JobTimeoutError` if it has passed."""
        if self._at is not None and self.timeout is not None and time.monotonic() >= self._at:
            raise JobTimeoutError(job_id, self.timeout)


class Outage:
    """How long a wait puts up with a Postgres that is away: half a minute, or to the caller's deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._patience = Deadline(_OUTAGE_S)

    def pause(self) -> float:
        """Return the seconds until Postgres may be asked again; 0 when the patience is over."""
        return self._deadline.within(self._patience.within(_OUTAGE_PAUSE_S))


class Pending:
    """The jobs of one wait that are not over, and which of them to look at next."""

    def __init__(self, job_ids: Sequence[UUID], deadline: Deadline) -> None:
        self._open = dict.fromkeys(job_ids)
        self._deadline = deadline
        self.look_at = list(self._open)

    def __bool__(self) -> bool:
        return bool(self._open)

    def settle(self, view: JobView) -> bool:
        """Take in how a job is now; return whether it is over."""
        if view.state.is_terminal:
            del self._open[view.id]
        return view.state.is_terminal

    def check(self) -> None:
        """Raise `JobTimeoutError` about the first of them if the deadline has passed."""
        self._deadline.check(next(iter(self._open)))

    def hear(self, announced: Collection[UUID]) -> None:
        """Look next at those that were announced; at all of them if none was."""
        self.look_at = [job_id for job_id in self._open if not announced or job_id in announced]


class Channels:
    """On which channels jobs are announced, and which subscriptions Redis has confirmed."""

    def __init__(self, job_ids: Collection[UUID]) -> None:
        self._ids = {job_channel(job_id): job_id for job_id in job_ids}
        self._unconfirmed = 0

    def ask(self) -> list[str]:
        """Return the channels to subscribe to; none of them is confirmed from here on."""
        self._unconfirmed = len(self._ids)
        return list(self._ids)

    @property
    def confirmed(self) -> bool:
        """Whether what is published from now on will be heard."""
        return self._unconfirmed == 0

    def confirm(self, message: Mapping[str, Any] | None) -> None:
        """Take in what came while subscribing."""
        self._unconfirmed -= message is not None and message["type"] == "subscribe"

    def announced(self, message: Mapping[str, Any]) -> set[UUID]:
        """Return the job that a message is about, if it is about one."""
        return {self._ids[message["channel"]]} if message["type"] == "message" else set()


class ReadParts:
    """Which parts were read, and which of them wait for one before them."""

    def __init__(self, read: Collection[int] = ()) -> None:
        self.ordinals = set(read)
        self.read_as: AuditAction | None = AuditAction.PAGES
        """What to note of the next reading: one note for each call."""
        self._held: list[PartOutcome] = []
        self._given = len(self.ordinals)

    def wants_more(self, barrier: int | None) -> bool:
        """Return whether anything more could be ready: what ended behind a part that may change stays in the store."""
        return barrier is None or barrier > self._given

    def ready(self, fresh: Sequence[PartOutcome], barrier: int | None) -> list[PartOutcome]:
        """Take in what has just been read; return, in order, what comes before the first that may still change."""
        if any(outcome.content for outcome in fresh):
            self.read_as = None
        self.ordinals.update(outcome.ordinal for outcome in fresh)
        held = sorted([*self._held, *fresh], key=lambda outcome: outcome.ordinal)
        ready = [outcome for outcome in held if barrier is None or outcome.ordinal < barrier]
        self._held = held[len(ready) :]
        self._given += len(ready)
        return ready


class ReadEvents:
    """Which events were read. Sequences are drawn before the commit, so a lower one may show up after a higher one."""

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        """Nothing at or below it is still to come."""
        self.recent: dict[int, float] = {}

    def add(self, sequence: int) -> None:
        """Note an event that was read."""
        self.recent[sequence] = time.monotonic()

    def settle(self) -> None:
        """Raise the floor over what was read so long ago that nothing below it can still appear."""
        horizon = time.monotonic() - _SETTLING_S
        settled = [sequence for sequence, read_at in self.recent.items() if read_at < horizon]
        for sequence in settled:
            del self.recent[sequence]
        self.floor = max([self.floor, *settled])


def batches(job_ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """Yield the jobs as many at a time as one query looks at."""
    for start in range(0, len(job_ids), LOOK_AT):
        yield job_ids[start : start + LOOK_AT]


def in_order(job_ids: Sequence[UUID], views: Mapping[UUID, JobView]) -> Iterator[JobView]:
    """Yield the jobs as they were asked for. Raises `JobNotFoundError` for the first that does not exist."""
    for job_id in job_ids:
        if job_id not in views:
            raise JobNotFoundError(job_id)
        yield views[job_id]
