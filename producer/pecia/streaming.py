"""Following one job while it runs: its parts as they end, its events as they are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pecia.completion import Deadline, announcements, outlast
from pecia.records import AuditAction, PartOutcome
from pecia_schemas.events import JobEvent

if TYPE_CHECKING:
    from pecia.connections import Connections

FETCH = 100
"""Outcomes in one query, so that a long document does not come all at once."""
_SETTLING_S = 10.0
"""How long a transaction may take from drawing an event's sequence to its commit."""


def parts(
    connections: Connections, job_id: UUID, is_over: Callable[[], bool], deadline: Deadline, *, in_order: bool
) -> Iterator[PartOutcome]:
    """Yield the parts of a job as they end, in the document's order or in that of ending.

    `is_over` looks at the job. Raises `JobTimeoutError` at the deadline.
    """
    store, read = connections.store, ReadParts()
    with announcements(connections, [job_id], deadline) as news:
        while True:
            over = outlast(is_over, deadline)  # asked first: what ended before is among the outcomes
            barrier = outlast(lambda: store.first_unfinished(job_id), deadline) if in_order else None
            fresh: Sequence[PartOutcome] = ()
            if read.wants_more(barrier):
                fresh = outlast(
                    lambda: store.outcomes(job_id, skip=read.ordinals, limit=FETCH, read_as=read.read_as),
                    deadline,
                )
            yield from read.ready(fresh, barrier)
            if len(fresh) == FETCH:
                continue
            if over:
                return
            deadline.check(job_id)
            news.wait()


def events(
    connections: Connections, job_id: UUID, is_over: Callable[[], bool], deadline: Deadline
) -> Iterator[JobEvent]:
    """Yield each event of a job once, until the job is over. Raises `JobTimeoutError` at the deadline."""
    store, read = connections.store, ReadEvents()
    with announcements(connections, [job_id], deadline) as news:
        while True:
            over = outlast(is_over, deadline)  # asked first: the event of the end is among those read next
            fresh = outlast(lambda: store.events(job_id, after=read.floor, skip=read.recent), deadline)
            for event in fresh:
                read.add(event.sequence)
                yield event
            if over:
                return
            deadline.check(job_id)
            news.wait()
            read.settle()


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
