"""Ends or queues again what is not finished, and judges which workers are dead.

Locks are taken as a commit takes them, jobs before parts and each by id, so that no two wait for each other; all of it
is safe with any number of instances. A job that many workers commit to is locked nearly always: it is waited for.

A worker is dead if its heartbeat stood still over a lease of uninterrupted watching, or at once if its process is gone
from this machine. Only the judge's own monotonic clock is read. An outage of Postgres interrupts the watch, and so does
a Postgres that is read-only: for one lease after it no worker is taken for dead, and one that lives has beaten since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import Failure, FailureCode, JobState
from pecia_schemas.moves import OPEN, end_jobs, moving, promise_callbacks, settle
from pecia_workers import metrics
from pecia_workers.ledger.claim import Fence
from pecia_workers.ledger.database import change, fetch
from pecia_workers.ledger.workers import is_gone

_ACTOR = "upkeep"

# A worker that registered after the part began was taken for dead meanwhile: it has let go of the part.
_WORKER_IS_GONE = """
    (workers.name IS NULL OR workers.stopped_at IS NOT NULL OR workers.lost_at >= workers.seen_at
     OR workers.started_at > parts.started_at)
"""

_ORPHANED = text(
    f"""
    SELECT parts.id, parts.attempt
    FROM parts LEFT JOIN workers ON workers.name = parts.worker
    WHERE parts.state = 'running' AND {_WORKER_IS_GONE}
    ORDER BY parts.id
    LIMIT :limit
    """  # noqa: S608  a constant of this module
)

# Only what ends is counted in its job: the rest of a busy job's parts do not wait for it.
_LOCK_JOBS_OF_POISONED = text(
    """
    SELECT FROM jobs WHERE id IN (
        SELECT job_id FROM parts WHERE id = ANY(CAST(:ids AS uuid[])) AND deaths + 1 >= :max_deaths
    )
    ORDER BY id FOR NO KEY UPDATE
    """
)

_REQUEUE = moving(
    f"""
    lost AS (
        SELECT parts.id, parts.state AS former, parts.deaths
               + CAST(coalesce(workers.name IS NULL OR workers.lost_at >= workers.seen_at, false) AS int) AS counted
        FROM parts
        JOIN unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS asked (id, attempt) USING (id)
        LEFT JOIN workers ON workers.name = parts.worker
        WHERE parts.state = 'running' AND parts.attempt = asked.attempt AND {_WORKER_IS_GONE}
        FOR NO KEY UPDATE OF parts SKIP LOCKED
    ), chosen AS (
        SELECT id, former, counted, CASE WHEN counted < :max_deaths THEN 'queued' ELSE 'failed' END AS state,
               CASE WHEN counted < :max_deaths THEN 'worker_lost' ELSE CAST(:failure AS jsonb)->>'code' END AS reason
        FROM lost
    )
    """,  # noqa: S608  a constant of this module
    sets="""
            deaths = counted, published_at = NULL,
            failure = CASE WHEN chosen.state = 'failed'
                      THEN CAST(:failure AS jsonb) || jsonb_build_object('attempt', attempt) END""",
    answer="SELECT job_id, state FROM moved",
)

_DUE = """
    SELECT id FROM jobs WHERE state IN ('queued', 'running') AND expires_at <= now()
    ORDER BY expires_at, id LIMIT :limit FOR NO KEY UPDATE
"""
_LOCK_FREE = text(f"{_DUE} SKIP LOCKED")
_LOCK_BUSY = text(_DUE)
# Of a worker that was taken for dead and lives: the strikes on what it still had do not count, if that is not over.
_PARDON = text(
    """
    WITH pardoned AS (
        SELECT parts.id FROM parts
        JOIN unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS mine (id, attempt) USING (id)
        WHERE parts.attempt >= mine.attempt AND parts.deaths > 0 AND parts.state IN ('queued', 'running')
        FOR NO KEY UPDATE OF parts SKIP LOCKED
    )
    UPDATE parts SET deaths = deaths - 1 FROM pardoned WHERE parts.id = pardoned.id
    """
)
_WAIT_NO_LONGER = text("SELECT set_config('lock_timeout', '2s', true)")

_GIVE_BACK = moving(
    """
    chosen AS (
        SELECT id, state AS former, 'queued' AS state, id = ANY(CAST(:died_on AS uuid[])) AS died,
               CASE WHEN id = ANY(CAST(:died_on AS uuid[])) THEN 'engine_lost' ELSE 'given_back' END AS reason
        FROM parts
        WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'running' AND worker = :actor
        ORDER BY id FOR NO KEY UPDATE
    )
    """,
    sets="deaths = deaths + CAST(died AS int), published_at = CASE WHEN NOT died THEN published_at END",
    ends=False,
)

# A statement of its own: one that locks a newer version of the row than it sees would update the one it sees, and so
# wait for the process that waits for it.
_LOCK_OWNER = text(
    "SELECT id FROM jobs WHERE id = (SELECT job_id FROM parts WHERE parts.id = :id) FOR NO KEY UPDATE"
)

_REVOKE = moving(
    f"""
    chosen AS (
        SELECT id, state AS former, 'cancelled' AS state, 'revoked' AS reason FROM parts
        WHERE id = :id AND state IN {OPEN} FOR NO KEY UPDATE
    )
    """,  # noqa: S608  a constant
    answer="SELECT job_id FROM moved",
)

_WITHDRAWN = text(
    """
    SELECT asked.id FROM unnest(CAST(:ids AS uuid[])) AS asked (id) LEFT JOIN parts USING (id)
    WHERE parts.id IS NULL OR parts.state = 'cancelled'
    """
)

_RUNNING = text(
    "SELECT id FROM parts WHERE state = 'running' AND worker = :worker AND started_at < now() - :age"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of orphaned parts."""

    queued: int = 0
    poisoned: int = 0
    jobs: dict[UUID, JobState] = field(default_factory=dict)
    """Jobs that a poisoned part touched, and their state now."""


async def find_orphaned(database: AsyncEngine, *, limit: int) -> list[Fence]:
    """Return running parts whose worker stopped, was taken for dead, or never registered."""
    return [(row.id, row.attempt) for row in await fetch(database, _ORPHANED, limit=limit)]


async def requeue_orphaned(database: AsyncEngine, parts: Sequence[Fence], *, max_deaths: int) -> Recovered:
    """Queue the parts again; those on which `max_deaths` workers have died fail as poisoned.

    A worker that stopped of its own will has not died, nor one that has registered again. Parts that were
    claimed meanwhile stay as they are.
    """
    values = {
        **_listed(parts),
        "max_deaths": max_deaths,
        "failure": Failure.of(FailureCode.POISONED).model_dump_json(),
        "actor": _ACTOR,
    }

    def requeue(connection: Connection) -> Recovered:
        connection.execute(_LOCK_JOBS_OF_POISONED, {"ids": values["ids"], "max_deaths": max_deaths})
        moved = connection.execute(_REQUEUE, values).all()
        touched = {job_id for job_id, state in moved if state == "failed"}
        ended = settle(connection, touched, actor=_ACTOR) if touched else {}
        poisoned = sum(state == "failed" for _, state in moved)
        jobs = dict.fromkeys(touched, JobState.RUNNING) | ended
        return Recovered(queued=len(moved) - poisoned, poisoned=poisoned, jobs=jobs)

    async with database.begin() as connection:
        return await connection.run_sync(requeue)


async def pardon(database: AsyncEngine, parts: Sequence[Fence]) -> int:
    """Take one death back from each of these parts that is not over, for their worker lives; return how many."""
    return await change(database, _PARDON, **_listed(parts))


def _listed(parts: Sequence[Fence]) -> dict[str, Any]:
    return {"ids": [part for part, _ in parts], "attempts": [attempt for _, attempt in parts]}


async def expire_jobs(database: AsyncEngine, *, limit: int) -> list[UUID]:
    """End up to `limit` jobs whose time is over, with their open parts, and promise their callbacks; return them.

    Those that another transaction has locked come last, one by one: each lock is waited for, though not for long.
    """
    async with database.begin() as connection:
        expired = await connection.run_sync(_expire, _LOCK_FREE, limit)
    while len(expired) < limit:
        async with database.begin() as connection:
            await connection.execute(_WAIT_NO_LONGER)
            busy = await connection.run_sync(_expire, _LOCK_BUSY, 1)
        if not busy:
            break
        expired += busy
    return expired


def _expire(connection: Connection, lock: TextClause, limit: int) -> list[UUID]:
    due = list(connection.execute(lock, {"limit": limit}).scalars())
    if due:
        end_jobs(connection, due, state=JobState.EXPIRED, actor=_ACTOR, reason="expired")
        promise_callbacks(connection, due)
    return due


async def running_parts(database: AsyncEngine, worker: str, *, age: timedelta) -> set[UUID]:
    """Return what runs on a worker, as far as Postgres knows, and was claimed that long ago."""
    return {row.id for row in await fetch(database, _RUNNING, worker=worker, age=age)}


async def give_back(
    database: AsyncEngine, worker: str, parts: Collection[UUID], *, died_on: Collection[UUID] = ()
) -> set[UUID]:
    """Queue again what this worker still runs of these parts, and return it.

    It is no strike against them, but for those that the worker's engine `died_on`: that counts as a worker's death.
    """
    async with database.begin() as connection:
        values = {"ids": list(parts), "actor": worker, "died_on": list(died_on)}
        return set((await connection.execute(_GIVE_BACK, values)).scalars())


async def revoke_part(database: AsyncEngine, worker: str, part: UUID) -> dict[UUID, JobState]:
    """End a part that an operator revoked; return the state of its job, nothing if the part was over."""

    def revoke(connection: Connection) -> dict[UUID, JobState]:
        connection.execute(_LOCK_OWNER, {"id": part})
        job_ids = connection.execute(_REVOKE, {"id": part, "actor": worker}).scalars().all()
        ended = settle(connection, job_ids, actor=worker) if job_ids else {}
        return dict.fromkeys(job_ids, JobState.RUNNING) | ended

    async with database.begin() as connection:
        return await connection.run_sync(revoke)


async def find_withdrawn(database: AsyncEngine, parts: Sequence[UUID]) -> list[bool]:
    """Return for each part whether it was cancelled, or erased with its job."""
    found = {row.id for row in await fetch(database, _WITHDRAWN, ids=list(parts))}
    return [part in found for part in parts]


log = structlog.get_logger(__name__)

_PARTS = 1_000

# While no beat can be written, one that stands still says nothing.
_BEATS = text(
    "SELECT name, seen_at FROM workers WHERE stopped_at IS NULL AND (lost_at IS NULL OR lost_at < seen_at)"
    " AND cardinality(stages) > 0 AND current_setting('transaction_read_only') = 'off'"
)
_BURY = text(
    "UPDATE workers SET lost_at = greatest(now(), seen_at)"
    " WHERE name = :name AND seen_at = :seen_at AND stopped_at IS NULL"
)
_ALIVE = text(
    "SELECT name FROM workers WHERE name = ANY(CAST(:names AS text[])) AND stopped_at IS NULL"
    " AND (lost_at IS NULL OR lost_at < seen_at)"
)


class Watch:
    """Tells whose beats stand still. Looks more than a third of a lease apart begin the watch anew."""

    def __init__(self, lease: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease.total_seconds()
        self._clock = clock
        self._looked_at: float | None = None
        self._seen: dict[str, tuple[datetime, float]] = {}

    def silent(self, beats: Mapping[str, datetime]) -> list[str]:
        """Return the workers whose beat is the same as one lease ago."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at > self._lease_s / 3:
            self._seen.clear()
        self._looked_at = now
        former = self._seen
        self._seen = {
            name: former[name] if name in former and former[name][0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since >= self._lease_s]


class Judge:
    """Takes workers for dead, and their parts back. Any number may judge at a time."""

    def __init__(self, database: AsyncEngine, lease: timedelta, *, max_deaths: int) -> None:
        self._database = database
        self._watch = Watch(lease)
        self._max_deaths = max_deaths

    async def judge(self) -> Recovered:
        """Look once; return what became of the parts of workers that are gone."""
        beats = {row.name: row.seen_at for row in await fetch(self._database, _BEATS)}
        for name in {*self._watch.silent(beats), *filter(is_gone, beats)}:
            await self._bury(name, beats[name])
        if orphaned := await find_orphaned(self._database, limit=_PARTS):
            return await requeue_orphaned(self._database, orphaned, max_deaths=self._max_deaths)
        return Recovered()

    async def _bury(self, name: str, seen_at: datetime) -> None:
        if await change(self._database, _BURY, name=name, seen_at=seen_at):
            metrics.WORKERS_LOST.inc()
            log.warning("worker_lost", worker=name)


async def gone_of(database: AsyncEngine, workers: set[str]) -> set[str]:
    """Return those of the workers that have stopped, were taken for dead, or are unknown."""
    if not workers:
        return set()
    return workers - {row.name for row in await fetch(database, _ALIVE, names=list(workers))}
