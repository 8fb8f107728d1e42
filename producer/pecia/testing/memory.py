"""The whole of a fake fleet: its jobs, batches and documents under one lock, and the workers that run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from threading import RLock
from uuid import UUID

from obstore.store import MemoryStore

from pecia.errors import DatabaseUnavailableError, PayloadStoreUnavailableError
from pecia.records import Batch
from pecia.testing.jobs import Callback, FakeJob, FakePart, callback, now
from pecia.testing.scripts import Rule, Script, script_of
from pecia_schemas.encryption import Keyring
from pecia_schemas.events import NoticeType, new_secret
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.states import JobState, PartState, Stage

SERVICES = ("postgres", "redis", "payloads", "workers")
"""What can be away."""


class NotFakedError(NotImplementedError):
    """A fake fleet does not do what was asked of it: a real one does."""

    def __init__(self) -> None:
        super().__init__(
            "A fake fleet has jobs, batches, results, events and callbacks; no purges, reports, reviews or "
            "registered endpoints. Test this with a real fleet: pip install 'pecia[local]', then `pecia up`."
        )


class Memory:
    """What Postgres and the payload store hold in a real fleet, which servers are away, and the workers."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, FakeJob] = {}
        """In the order in which they were submitted."""
        self.open: dict[UUID, FakeJob] = {}
        """Those that are not over."""
        self.by_key: dict[str, FakeJob] = {}
        self.batches: list[Batch] = []
        self.documents = MemoryStore()
        self._payloads = PayloadStore(self.documents, None, Keyring())
        self.rules: list[Rule] = []
        self.callbacks: list[Callback] = []
        self.secret = new_secret()
        self.held = False
        """Whether the workers wait to be told."""
        self.away: Counter[str] = Counter()
        """How many outages of each service there are at this moment."""
        self._lock = RLock()
        self._working = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock, once the fleet has done what is due. Raises `DatabaseUnavailableError` in an outage."""
        with self._lock:
            if self.lacks("postgres"):
                raise DatabaseUnavailableError("Postgres does not answer: the test took it away.")
            self.settle()
            yield

    def lacks(self, *services: str) -> bool:
        """Return whether one of these services is away."""
        return any(self.away[service] for service in services)

    def known(self, job_ids: Collection[UUID]) -> dict[UUID, FakeJob]:
        """Return those of the jobs that exist, in the order of their ids."""
        return {job_id: self.jobs[job_id] for job_id in sorted(job_ids) if job_id in self.jobs}

    @property
    def payloads(self) -> PayloadStore:
        """The documents. Raises `PayloadStoreUnavailableError` in an outage."""
        if self.lacks("payloads"):
            raise PayloadStoreUnavailableError("The payload store does not answer: the test took it away.")
        return self._payloads

    def notify(self, kind: NoticeType, job: FakeJob, part: FakePart | None) -> None:
        """Send a callback to a job's webhook, if it wants that."""
        if made := callback(kind, job, part, self.secret):
            self.callbacks.append(made)

    def age(self, by: timedelta) -> None:
        """Let time pass: every job becomes so much older."""
        with self._lock:
            for job in self.jobs.values():
                job.age(by)

    def settle(self) -> None:
        """Do what is due: end jobs whose time is over, end parts whose time has come, begin others."""
        with self._at_work() as first:
            if not first or self.lacks("postgres"):
                return
            for job in self._in_line():
                if job.expires_at is not None and job.expires_at <= now():
                    job.close(JobState.EXPIRED, "upkeep", "expired")
            for job in [] if self.lacks("workers", "redis") else self._in_line():
                for part in job.parts:  # more of them once the document is cut
                    if part.is_due and not self.held:
                        self._begin(job, part)
                    if _runs(part) and part.ends_at is not None and part.ends_at <= now():
                        job.end(part, self._script(job))

    def begin(self, job_id: UUID | None) -> bool:
        """Begin the next part, which then runs until it is ended; False if none can begin."""
        with self._at_work():
            return bool(self._start(job_id))

    def step(self, job_id: UUID | None) -> bool:
        """End one part, that which runs or the next in line; False if there is none."""
        with self._at_work():
            chosen = self._first(job_id, _runs) or self._start(job_id)
            for job, part in chosen:
                job.end(part, self._script(job))
            return bool(chosen)

    @contextmanager
    def _at_work(self) -> Iterator[bool]:
        """Hold the lock; yield False if the fleet is at work further up, for an answer may use a client."""
        with self._lock:
            first, self._working = not self._working, True
            try:
                yield first
            finally:
                self._working = not first

    def _in_line(self) -> list[FakeJob]:
        self.open = {job_id: job for job_id, job in self.open.items() if not job.view.state.is_terminal}
        return sorted(self.open.values(), key=lambda job: job.view.lane.rank)

    def _first(self, job_id: UUID | None, fits: Callable[[FakePart], bool]) -> list[tuple[FakeJob, FakePart]]:
        """Return the first part in line that fits, of this job or of any, if there is one."""
        jobs = [job for job in self._in_line() if job_id in (None, job.view.id)]
        return list(islice(((job, part) for job in jobs for part in job.parts if fits(part)), 1))

    def _start(self, job_id: UUID | None) -> list[tuple[FakeJob, FakePart]]:
        due = self._first(job_id, lambda part: part.is_due)
        for job, part in due:
            self._begin(job, part)
            part.ends_at = None
        return due

    def _begin(self, job: FakeJob, part: FakePart) -> None:
        takes = self._script(job).takes
        job.begin(part, now() + takes if part.stage in (Stage.READ, Stage.CAPTION) else now())

    def _script(self, job: FakeJob) -> Script:
        job.script = job.script or script_of(self.rules, job.submitted.task, job.size)
        return job.script


def _runs(part: FakePart) -> bool:
    return part.state is PartState.RUNNING
