"""How jobs and parts move: the rules of the real fleet's SQL, written once more over records in memory.

Each function says where its rule stands. `tests/integration/test_client_contract.py` holds both to one behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from pecia.testing.memory import Memory
from pecia.testing.records import Content, JobRecord, PartRecord, Spent, now
from pecia_schemas.failures import Failure
from pecia_schemas.ids import new_id
from pecia_schemas.states import JobState, PartState, Stage
from pecia_schemas.tasks import CaptionVideo

WORKER = "fake"
"""The actor of what the fleet does."""

UPKEEP = "upkeep"


class Rules:
    """The moves of one fleet's jobs. The caller holds the memory's lock."""

    def __init__(
        self,
        memory: Memory,
        promise: Callable[[JobRecord], None],
        promise_part: Callable[[PartRecord], None],
    ) -> None:
        self._memory = memory
        self._promise = promise
        self._promise_part = promise_part

    def claim(self, part: PartRecord) -> None:
        """Begin an attempt at a part (`ledger/claim.py`)."""
        part.state, part.worker, part.failure = PartState.RUNNING, WORKER, None
        part.attempt += 1
        self._begin(part.job)
        self._tell_part(part, WORKER)
        self._memory.announce(part.job.id, part.job.state)

    def _begin(self, job: JobRecord) -> None:
        if job.state is JobState.QUEUED:
            job.state, job.started_at = JobState.RUNNING, job.started_at or now()
            self._memory.tell(job, job.state, WORKER)

    def cut(self, part: PartRecord, pieces: Collection[int], stage: Stage, *, summary: bool) -> None:
        """End an ingest with pages or segments of these ordinals, and a held summary (`ledger/commit.py`)."""
        job = part.job
        self._end(part, PartState.DONE)
        staged = [(stage, ordinal) for ordinal in sorted(pieces)]
        if summary:
            staged.append((Stage.SUMMARIZE, max(pieces, default=-1) + 1))
        for its_stage, ordinal in staged:
            new = PartRecord(
                id=new_id(),
                job=job,
                stage=its_stage,
                ordinal=ordinal,
                lane=job.lane,
                state=PartState.HELD if its_stage is Stage.SUMMARIZE else PartState.QUEUED,
                run_at=now(),
            )
            job.parts.append(new)
        job.total = len(staged)
        self._settle(job)

    def done(self, part: PartRecord, content: Content) -> None:
        """End a part with its result (`ledger/commit.py`)."""
        part.content = content
        part.spent = part.spent or Spent(engine=content.engine)
        part.spent.add(content)
        self._end(part, PartState.DONE)
        part.job.done += 1
        self._promise_part(part)
        self._settle(part.job)

    def fail(self, part: PartRecord, failure: Failure) -> None:
        """Give a part up for good (`ledger/commit.py`); a document that could not be cut has no parts."""
        part.failure = failure.model_copy(update={"attempt": part.attempt})
        self._end(part, PartState.FAILED, reason=failure.code)
        if part.stage is Stage.INGEST:
            part.job.total = 0
        else:
            part.job.failed += 1
        self._settle(part.job)

    def _settle(self, job: JobRecord) -> None:
        if job.kind == CaptionVideo.kind:
            self._release_summary(job)
        self._finish(job)
        self._memory.announce(job.id, job.state)

    def _release_summary(self, job: JobRecord) -> None:
        """Let a summary run once all segments are over, or end it if none has a caption (`pecia_schemas/moves.py`)."""
        segments = [part for part in job.parts if part.stage is Stage.CAPTION]
        if any(part.is_open for part in segments):
            return
        for part in job.parts:
            if part.state is not PartState.HELD:
                continue
            if any(segment.state is PartState.DONE for segment in segments):
                part.state, part.run_at = PartState.QUEUED, now()
                self._tell_part(part, WORKER)
            else:
                self._end(part, PartState.CANCELLED, reason="nothing_to_summarize")
                job.cancelled += 1

    def _finish(self, job: JobRecord) -> None:
        """End a job whose last part has ended (`pecia_schemas/moves.py`)."""
        if job.state.is_terminal or job.total is None or job.done + job.failed + job.cancelled < job.total:
            return
        failed = sorted(
            (part for part in job.parts if part.state is PartState.FAILED),
            key=lambda part: (part.stage.value, part.ordinal),
        )
        if job.total > 0 and job.failed + job.cancelled == 0:
            state = JobState.SUCCEEDED
        elif job.done:
            state = JobState.PARTIAL
        else:
            state = JobState.FAILED if failed else JobState.CANCELLED
        job.failure = failed[0].failure if failed and not job.done else None
        self._close(job, state, WORKER)
        self._promise(job)

    def _close(self, job: JobRecord, state: JobState, actor: str, *, reason: str | None = None) -> None:
        job.state, job.finished_at, job.script = state, now(), None
        self._memory.open.pop(job.id, None)
        self._memory.tell(job, state, actor, reason=reason)

    def cancel(self, job: JobRecord, actor: str, reason: str | None, *, promise: bool = True) -> None:
        """Cancel a job with its open parts (`pecia/transitions.py`); without its callback if it is erased."""
        self._end_open(job, JobState.CANCELLED, actor, reason)
        if promise:
            self._promise(job)

    def expire(self, job: JobRecord) -> None:
        """End a job whose time is over (`ledger/recovery.py`)."""
        self._end_open(job, JobState.EXPIRED, UPKEEP, "expired")
        self._promise(job)
        self._memory.announce(job.id, job.state)

    def _end_open(self, job: JobRecord, state: JobState, actor: str, reason: str | None) -> None:
        for part in job.parts:
            if part.is_open:
                self._end(part, PartState.CANCELLED, actor=actor, reason=reason)
                if part.stage is Stage.INGEST:
                    job.total = 0
                else:
                    job.cancelled += 1
        self._close(job, state, actor, reason=reason)

    def reopen(self, job: JobRecord, chosen: Collection[UUID] | None, actor: str) -> list[PartRecord]:
        """Queue what failed or was cancelled again, or what was chosen of it (`pecia/transitions.py`).

        Returns the parts; none if there is nothing to run again, and then nothing has changed.
        """
        again = _to_run_again(job, chosen)
        incomplete = any(part.stage is Stage.CAPTION for part in again)
        for part in again:
            held = part.stage is Stage.SUMMARIZE and incomplete
            part.state = PartState.HELD if held else PartState.QUEUED
            part.failure = part.finished_at = part.ends_at = part.content = None
            part.run_at = now()
            self._tell_part(part, actor, reason="retry")
        if again:
            self._reopen_job(job, again, actor)
        return again

    def _reopen_job(self, job: JobRecord, again: list[PartRecord], actor: str) -> None:
        counted = _counted(job)
        job.done, job.failed, job.cancelled = (
            counted[state] for state in (PartState.DONE, PartState.FAILED, PartState.CANCELLED)
        )
        job.state, job.failure, job.finished_at, job.script = JobState.QUEUED, None, None, None
        if any(part.stage is Stage.INGEST for part in again):
            job.total = None
        if job.expires_at is not None and job.expires_at <= now():
            job.expires_at = None
        self._memory.open[job.id] = job
        self._memory.tell(job, job.state, actor, reason="retry")

    def _end(
        self, part: PartRecord, state: PartState, *, actor: str = WORKER, reason: str | None = None
    ) -> None:
        part.state, part.finished_at, part.ends_at = state, now(), None
        self._tell_part(part, actor, reason=reason)

    def _tell_part(self, part: PartRecord, actor: str, *, reason: str | None = None) -> None:
        self._memory.tell(part.job, part.state, actor, part=part, reason=reason)


def _to_run_again(job: JobRecord, chosen: Collection[UUID] | None) -> list[PartRecord]:
    asked = [
        part
        for part in job.parts
        if part.state in (PartState.FAILED, PartState.CANCELLED) and (chosen is None or part.id in chosen)
    ]
    with_segments = any(part.stage is Stage.CAPTION for part in asked)
    return [part for part in job.parts if part in asked or (part.stage is Stage.SUMMARIZE and with_segments)]


def _counted(job: JobRecord) -> Mapping[PartState, int]:
    return {state: sum(part.state is state for part in job.pieces) for state in PartState}
