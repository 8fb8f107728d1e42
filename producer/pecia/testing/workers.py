"""The fake fleet's workers: they run parts as the test's script says, at once or when they are told to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from pecia.testing.memory import Memory
from pecia.testing.payloads import MemoryPayloads
from pecia.testing.records import JobRecord, PartRecord, now
from pecia.testing.scripts import Script, Told
from pecia_schemas.failures import Failure
from pecia_schemas.references import PayloadRef
from pecia_schemas.states import PartState, Stage
from pecia_schemas.tasks import Task, task_from_json, task_type

_LONG = (Stage.READ, Stage.CAPTION)


class Workers:
    """All workers of one fleet. They hold the memory's lock while they work."""

    def __init__(self, memory: Memory, payloads: MemoryPayloads) -> None:
        self.held = False
        """Whether they wait to be told."""
        self.told = Told()
        """What to answer."""
        self._memory = memory
        self._payloads = payloads

    def settle(self) -> None:
        """Do what is due by now: end jobs whose time is over, end parts whose time has come, begin others."""
        for job in list(self._memory.open.values()):
            if job.expires_at is not None and job.expires_at <= now():
                self._memory.rules.expire(job)
        if not self._memory.lacks("workers", "redis"):
            for job in self._jobs():
                self._advance(job)

    def step(self, job_id: UUID | None = None) -> bool:
        """End one part, that which runs or the next in line; False if there is none."""
        with self._memory.moving():
            running = next(self._running(self._jobs(job_id)), None)
            part = running or self._next(job_id)
            if part is None:
                return False
            if running is None:
                self._begin(part)
            self._end(part)
            return True

    def begin(self, job_id: UUID) -> bool:
        """Begin one part of a job, which then runs until it is ended; False if none can begin."""
        with self._memory.moving():
            if part := self._next(job_id):
                self._begin(part)
                part.ends_at = None
            return part is not None

    def _jobs(self, job_id: UUID | None = None) -> list[JobRecord]:
        """Return the jobs that are not over, in the order of their lanes and their submission."""
        open_jobs = [job for job in self._memory.open.values() if job_id in (None, job.id)]
        return sorted(open_jobs, key=lambda job: job.lane.rank)

    def _running(self, jobs: list[JobRecord]) -> Iterator[PartRecord]:
        return (part for job in jobs for part in job.parts if part.state is PartState.RUNNING)

    def _next(self, job_id: UUID | None = None) -> PartRecord | None:
        return next((part for job in self._jobs(job_id) for part in job.parts if part.is_due), None)

    def _begin(self, part: PartRecord) -> None:
        takes = self._script_of(part)[1] if part.stage in _LONG else timedelta()
        self._memory.rules.claim(part)
        part.ends_at = now() + takes

    def _advance(self, job: JobRecord) -> None:
        """Do what is due of one job, also what becomes due by that: pages once the document is cut."""
        moved = True
        while moved:
            moved = False
            for part in list(job.parts):
                if part.is_due and not self.held:
                    self._begin(part)
                if part.ends_at is not None and part.ends_at <= now():
                    self._end(part)
                    moved = True

    def _end(self, part: PartRecord) -> None:
        rules, (script, _) = self._memory.rules, self._script_of(part)
        outcome = script.failure
        if outcome is None and part.stage is Stage.INGEST:
            stage = task_type(part.job.kind).stage
            rules.cut(part, script.pieces, stage, summary=script.summary is not None)
            return
        content = outcome or script.outcome(part.stage, part.ordinal)
        if isinstance(content, Failure):
            rules.fail(part, content)
        else:
            rules.done(part, content)

    def _script_of(self, part: PartRecord) -> tuple[Script, timedelta]:
        """Return what comes of the part's job in this run, and how long each page or segment takes."""
        job = part.job
        if job.script is None:
            job.script = self._write(job)
        return cast("tuple[Script, timedelta]", job.script)

    def _write(self, job: JobRecord) -> tuple[Script, timedelta]:
        size = next((part.size for part in job.parts if part.size), None)
        return self.told.script(self.task(job), size)

    def task(self, job: JobRecord) -> Task[Any]:
        """Return the task that was submitted, with the document's bytes for its source.

        None of them once it was purged; a URL is not fetched.
        """
        if job.payload == "":
            return task_from_json(job.kind, {**job.task, "source": b""})
        task = task_from_json(job.kind, job.task)
        return (
            replace(task, source=self._payloads.content(task.source))
            if isinstance(task.source, PayloadRef)
            else task
        )
