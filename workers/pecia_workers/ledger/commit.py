"""Commit in Postgres: result, part, events, job counters and callbacks of a whole group, in one transaction.

Locks are taken jobs first, then parts, each in the order of their ids, and always FOR NO KEY UPDATE, so that groups,
cancellations and recovery never wait for each other in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pecia_schemas import (
    Failure,
    FailureCode,
    JobState,
    Page,
    PartState,
    Segment,
    Stage,
    Summary,
    new_id,
)
from pecia_schemas.encryption import Keyring
from pecia_schemas.held import HELD
from pecia_schemas.outbox import PROMISE_PARTS, TELLS_PARTS
from pecia_workers.ledger.accounts import ADD_TO_PART, ARRAYS, COLUMNS, Spent, values_of
from pecia_workers.ledger.claim import ClaimedPart, Fence
from pecia_workers.ledger.finish import finish_jobs
from pecia_workers.ledger.release import release_summaries
from pecia_workers.ledger.result_cache import keep_results


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPart:
    """A page or segment that ingest found."""

    ordinal: int
    cost: int
    """Tokens."""
    width: int | None = None
    height: int | None = None
    """Pixels."""
    start_s: float | None = None
    end_s: float | None = None
    """Where in the video it lies, in seconds."""


@dataclass(frozen=True, slots=True)
class Done:
    """The part has a result."""

    content: Page | Segment | Summary
    cache_key: bytes | None = None
    """By which later parts find it; None: not at all."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The payload has been cut into these parts of that stage."""

    stage: Stage
    parts: Sequence[NewPart]
    summary: NewPart | None = None
    """One more part, of `Stage.SUMMARIZE`: it is held until the others are over."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The part failed: for good, or to be tried again after `retry_in`."""

    failure: Failure
    retry_in: timedelta | None = None
    spent: Spent | None = None
    """None if it reached no engine."""
    sqlstate: str = ""
    """By which Postgres refused the outcome that this one stands for."""

    @property
    def reason(self) -> str:
        """Why, in one word or two, for the part's event."""
        return f"{self.failure.code} {self.sqlstate}".strip()


Outcome = Done | Cut | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A part this worker claimed, and what came of it."""

    part: ClaimedPart
    outcome: Outcome

    def refused(self, sqlstate: str) -> Finished:
        """Return what is committed instead, once Postgres has refused the outcome."""
        found = f"Postgres refused the result ({sqlstate})."
        failure = Failure.of(FailureCode.INTERNAL, found, attempt=self.part.attempt)
        return replace(self, outcome=Failed(failure, sqlstate=sqlstate))


@dataclass(slots=True)
class Committed:
    """What a group changed."""

    attempts: set[Fence] = field(default_factory=set)
    """Attempts whose outcome was taken; the others had been overtaken or were no longer this worker's."""
    jobs: dict[UUID, JobState] = field(default_factory=dict)
    """Jobs that were touched, and their state now."""


_LOCK_JOBS = text(
    f"""
    SELECT id, ({TELLS_PARTS}) AS tells_parts FROM jobs
    WHERE id = ANY(CAST(:job_ids AS uuid[])) ORDER BY id FOR NO KEY UPDATE
    """  # noqa: S608  a constant
)

# The fence: only the attempt that runs now may move its part. A group may hold an earlier one beside it, whose caller
# lost its lease while its commit waited.
_MOVE = text(
    f"""
    WITH asked AS (
        SELECT * FROM unnest(
            CAST(:ids AS uuid[]), CAST(:attempts AS int[]), CAST(:states AS text[]),
            CAST(:contents AS text[]), CAST(:verdicts AS text[]), CAST(:failures AS text[]), CAST(:reasons AS text[]),
            CAST(:delays AS float[]),
            {ARRAYS}
        ) AS asked (id, attempt, state, content, verdict, failure, reason, delay, {COLUMNS})
    ), mine AS (
        SELECT parts.id, parts.attempt FROM parts JOIN asked USING (id, attempt)
        WHERE parts.state = 'running' AND parts.worker = :worker
        ORDER BY parts.id FOR NO KEY UPDATE OF parts
    ), moved AS (
        UPDATE parts
        SET state = asked.state, verdict = asked.verdict, failure = CAST(asked.failure AS jsonb),
            finished_at = CASE WHEN asked.state <> 'queued' THEN now() END,
            run_at = now() + make_interval(secs => asked.delay),
            published_at = CASE WHEN asked.state <> 'queued' THEN published_at END,
            strikes = strikes + CAST(asked.state = 'queued' AS int),
            {ADD_TO_PART}
        FROM asked JOIN mine USING (id, attempt)
        WHERE parts.id = asked.id
        RETURNING parts.id, parts.job_id, parts.ordinal, parts.state, parts.attempt, asked.reason, asked.content
    ), told AS (
        INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason)
        SELECT job_id, id, state, :worker, attempt, reason FROM moved
    ), stored AS (
        INSERT INTO results (part_id, job_id, ordinal, attempt, content)
        SELECT id, job_id, ordinal, attempt, CAST(content AS jsonb) FROM moved WHERE content IS NOT NULL
    )
    SELECT id, attempt FROM moved
    """  # noqa: S608  constants of the ledger
)

_ADD_PARTS = text(
    f"""
    INSERT INTO parts (id, job_id, stage, ordinal, lane, cost, width, height, start_s, end_s, run_at)
    SELECT new.id, jobs.id, new.stage, new.ordinal, jobs.lane, new.cost, new.width, new.height, new.start_s, new.end_s,
           CASE WHEN new.stage = 'summarize' THEN {HELD} ELSE now() END
    FROM jobs, unnest(
        CAST(:ids AS uuid[]), CAST(:stages AS text[]), CAST(:ordinals AS int[]), CAST(:costs AS int[]),
        CAST(:widths AS int[]), CAST(:heights AS int[]), CAST(:starts AS float[]), CAST(:ends AS float[])
    ) AS new (id, stage, ordinal, cost, width, height, start_s, end_s)
    WHERE jobs.id = :job_id
    """  # noqa: S608  a constant
)

# A job that somebody held while its first part was claimed has not begun yet: it begins here.
_COUNT = text(
    """
    WITH counted AS (
        SELECT asked.*, before.state AS former
        FROM unnest(
            CAST(:job_ids AS uuid[]), CAST(:done AS int[]), CAST(:failed AS int[]), CAST(:totals AS int[])
        ) AS asked (id, done, failed, total)
        JOIN jobs AS before USING (id)
    ), told AS (
        INSERT INTO job_events (job_id, state, actor) SELECT id, 'running', :worker FROM counted WHERE former = 'queued'
    )
    UPDATE jobs
    SET done = jobs.done + counted.done, failed = jobs.failed + counted.failed,
        total = coalesce(counted.total, jobs.total),
        state = 'running', started_at = coalesce(jobs.started_at, now())
    FROM counted WHERE jobs.id = counted.id
    """
)


async def commit_parts(
    database: AsyncEngine, worker: str, group: Sequence[Finished], keys: Keyring
) -> Committed:
    """Commit a group, all of it or nothing."""
    job_ids = list({finished.part.job_id for finished in group})
    async with database.begin() as connection:
        jobs = (await connection.execute(_LOCK_JOBS, {"job_ids": job_ids})).all()
        moved = await _move(connection, worker, group, keys)
        taken = [finished for finished in group if finished.part.fence in moved]
        for finished in taken:
            if isinstance(finished.outcome, Cut):
                await _add_parts(connection, finished.part.job_id, finished.outcome)
        if not taken:
            return Committed()
        await _count(connection, worker, taken)
        await _promise_parts(connection, taken, {job.id for job in jobs if job.tells_parts})
        if any(finished.part.stage is Stage.CAPTION for finished in taken):
            await release_summaries(connection, job_ids, actor=worker)
        ended = await finish_jobs(connection, job_ids, actor=worker)
        await keep_results(connection, _cache_keys(taken))
    touched = {finished.part.job_id: JobState.RUNNING for finished in taken}
    return Committed(attempts=moved, jobs=touched | ended)


async def _promise_parts(
    connection: AsyncConnection, taken: Sequence[Finished], telling: Collection[UUID]
) -> None:
    """Promise the callbacks of parts that have a result, for jobs of which somebody wants to know them."""
    done = [
        finished.part.id
        for finished in taken
        if isinstance(finished.outcome, Done) and finished.part.job_id in telling
    ]
    if done:
        await connection.execute(PROMISE_PARTS, {"part_ids": done})


def _cache_keys(taken: Sequence[Finished]) -> dict[UUID, bytes]:
    keys = {
        finished.part.id: finished.outcome.cache_key
        for finished in taken
        if isinstance(finished.outcome, Done)
    }
    return {part: key for part, key in keys.items() if key is not None}


async def _move(
    connection: AsyncConnection, worker: str, group: Sequence[Finished], keys: Keyring
) -> set[Fence]:
    outcomes = [finished.outcome for finished in group]
    failures = [outcome.failure if isinstance(outcome, Failed) else None for outcome in outcomes]
    delays = [outcome.retry_in if isinstance(outcome, Failed) else None for outcome in outcomes]
    rows = await connection.execute(
        _MOVE,
        {
            "worker": worker,
            "ids": [finished.part.id for finished in group],
            "attempts": [finished.part.attempt for finished in group],
            "states": [_state_after(outcome) for outcome in outcomes],
            "contents": [_content(finished, keys) for finished in group],
            "verdicts": [
                outcome.content.verdict if isinstance(outcome, Done) else None for outcome in outcomes
            ],
            "failures": [failure and failure.model_dump_json() for failure in failures],
            "reasons": [outcome.reason if isinstance(outcome, Failed) else None for outcome in outcomes],
            "delays": [delay.total_seconds() if delay else 0.0 for delay in delays],
            **values_of([_spent_on(outcome) for outcome in outcomes]),
        },
    )
    return {(part, attempt) for part, attempt in rows}


def _content(finished: Finished, keys: Keyring) -> str | None:
    if not isinstance(finished.outcome, Done):
        return None
    return keys.seal(finished.outcome.content.stored_json(), finished.part.id)


def _state_after(outcome: Outcome) -> PartState:
    if not isinstance(outcome, Failed):
        return PartState.DONE
    return PartState.FAILED if outcome.retry_in is None else PartState.QUEUED


def _spent_on(outcome: Outcome) -> Spent | None:
    if isinstance(outcome, Failed):
        return outcome.spent and outcome.spent.in_vain
    return Spent.on(outcome.content) if isinstance(outcome, Done) else None


async def _add_parts(connection: AsyncConnection, job_id: UUID, cut: Cut) -> None:
    staged = [(cut.stage, part) for part in cut.parts]
    if cut.summary:
        staged.append((Stage.SUMMARIZE, cut.summary))
    await connection.execute(
        _ADD_PARTS,
        {
            "job_id": job_id,
            "ids": [new_id() for _ in staged],
            "stages": [stage for stage, _ in staged],
            "ordinals": [part.ordinal for _, part in staged],
            "costs": [part.cost for _, part in staged],
            "widths": [part.width for _, part in staged],
            "heights": [part.height for _, part in staged],
            "starts": [part.start_s for _, part in staged],
            "ends": [part.end_s for _, part in staged],
        },
    )


async def _count(connection: AsyncConnection, worker: str, taken: Sequence[Finished]) -> None:
    """Add what ended to its job's counters. An ingest is no part of the total: it sets it, to 0 if it failed."""
    done: Counter[UUID] = Counter()
    failed: Counter[UUID] = Counter()
    totals: dict[UUID, int] = {}
    for finished in taken:
        job_id, outcome = finished.part.job_id, finished.outcome
        state = _state_after(outcome)
        if isinstance(outcome, Cut):
            totals[job_id] = len(outcome.parts) + bool(outcome.summary)
        elif state is PartState.FAILED and finished.part.stage is Stage.INGEST:
            totals[job_id] = 0
        else:
            done[job_id] += state is PartState.DONE
            failed[job_id] += state is PartState.FAILED
    job_ids = list({finished.part.job_id for finished in taken})
    await connection.execute(
        _COUNT,
        {
            "worker": worker,
            "job_ids": job_ids,
            "done": [done[job_id] for job_id in job_ids],
            "failed": [failed[job_id] for job_id in job_ids],
            "totals": [totals.get(job_id) for job_id in job_ids],
        },
    )
