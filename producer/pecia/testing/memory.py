"""The whole of a fake fleet's memory: jobs, events, audit entries and documents, under one lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pecia.errors import DatabaseUnavailableError
from pecia.records import Batch
from pecia.testing.records import (
    AuditRecord,
    DeliveryRecord,
    EndpointRecord,
    JobRecord,
    PartRecord,
    now,
)
from pecia_schemas.events import JobEvent
from pecia_schemas.states import JobState

if TYPE_CHECKING:
    from pecia.testing.rules import Rules

SERVICES = ("postgres", "redis", "payloads", "workers")
"""What can be away."""


class Memory:
    """What Postgres knows in a real fleet, and which of its servers are away."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, JobRecord] = {}
        """In the order in which they were submitted."""
        self.batches: dict[UUID, Batch] = {}
        self.by_key: dict[str, JobRecord] = {}
        self.open: dict[UUID, JobRecord] = {}
        """Those that are not over."""
        self.trail: list[AuditRecord] = []
        self.endpoints: dict[UUID, EndpointRecord] = {}
        self.deliveries: dict[UUID, DeliveryRecord] = {}
        """In the order in which they were promised."""
        self.post: Callable[[DeliveryRecord], None]
        """Makes a callback of a delivery."""
        self.removed: set[str] = set()
        """Documents that were purged, by name."""
        self.rules: Rules
        """How its jobs move."""
        self.away: dict[str, int] = {}
        """How many outages of each service there are at this moment."""
        self.settle: Callable[[], None] = lambda: None
        """Has the fleet do what is due by now."""
        self.announce: Callable[[UUID, JobState], None] = lambda _job_id, _state: None
        """Notifies all that wait for a job that it has changed."""
        self._lock = RLock()
        self._events: dict[UUID, list[JobEvent]] = {}
        self._sequence = count(1)
        self._moving = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock, once the fleet has done what is due. Raises `DatabaseUnavailableError` in an outage."""
        with self._lock:
            self._check()
            with self.moving() as first:
                if first:
                    self.settle()
            yield

    @contextmanager
    def moving(self) -> Iterator[bool]:
        """Hold the lock while the fleet works; yield False if it is at work already, further up."""
        with self._lock:
            first, self._moving = not self._moving, True
            try:
                yield first
            finally:
                self._moving = not first

    def lacks(self, *services: str) -> bool:
        """Return whether one of these services is away."""
        return any(self.away.get(service) for service in services)

    def _check(self) -> None:
        if self.lacks("postgres"):
            raise DatabaseUnavailableError("Postgres does not answer: the test has taken it away.")

    def tell(
        self,
        job: JobRecord,
        state: str,
        actor: str,
        *,
        part: PartRecord | None = None,
        reason: str | None = None,
    ) -> None:
        """Write down one event of a job or of one of its parts."""
        event = JobEvent(
            sequence=next(self._sequence),
            job_id=job.id,
            part_id=part and part.id,
            state=str(state),
            at=now(),
            actor=actor,
            attempt=part and part.attempt,
            reason=reason,
        )
        self._events.setdefault(job.id, []).append(event)

    def events(self, job_id: UUID) -> list[JobEvent]:
        """Return what was told of a job, in order."""
        return list(self._events.get(job_id, ()))

    def deliveries_of(self, job_id: UUID) -> list[DeliveryRecord]:
        """Return the callbacks about a job."""
        return [delivery for delivery in self.deliveries.values() if delivery.job_id == job_id]

    def forget_deliveries(self, deliveries: Iterable[DeliveryRecord]) -> None:
        """Take callbacks out of memory."""
        for delivery in deliveries:
            del self.deliveries[delivery.id]

    def forget_reasons(self, job_id: UUID) -> int:
        """Take the reasons out of a job's events; return how many there were."""
        told = self.events(job_id)
        self._events[job_id] = [event.model_copy(update={"reason": None}) for event in told]
        return sum(event.reason is not None for event in told)

    def age(self, by: timedelta) -> None:
        """Let time pass: everything there is becomes so much older."""
        for job in self.jobs.values():
            job.age(by)
            for part in job.parts:
                part.age(by)
        for record in (*self.trail, *self.endpoints.values(), *self.deliveries.values()):
            record.age(by)
        self._events = {job_id: [_aged(event, by) for event in told] for job_id, told in self._events.items()}

    def known(self, job_ids: Iterable[UUID]) -> list[JobRecord]:
        """Return those of the jobs that exist, each once, in the order of their ids."""
        return [self.jobs[job_id] for job_id in sorted(set(job_ids)) if job_id in self.jobs]


def _aged(event: JobEvent, by: timedelta) -> JobEvent:
    changes: dict[str, Any] = {"at": event.at - by}
    return event.model_copy(update=changes)
