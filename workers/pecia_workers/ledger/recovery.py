"""Recovery: decides which workers are dead, requeues their parts, ends expired jobs.

Rows are locked in the order in which a commit locks them, jobs before parts and each by id, so that no deadlock arises;
any number of instances may run. A job that many workers commit to is locked nearly always, so its lock is waited for.

A worker is dead if its heartbeat did not change during one lease of uninterrupted watching, or at once if its process
is gone from this machine. Only the judge's own monotonic clock is used. An outage of Postgres, or a read-only Postgres,
interrupts the watch: for one lease after it no worker is declared dead, in which live workers renew their heartbeats.
"""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.moves import end_jobs, moving, promise_callbacks, settle
from pecia_schemas.running import LIVING, LOST
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import JobState
from pecia_workers.ledger.database import change, fetch
from pecia_workers.ledger.publication import REQUESTED, requested
from pecia_workers.ledger.workers import Watch, is_gone
from pecia_workers.observability import metrics
from pecia_workers.protocol.parts import Announce, ClaimedPart, Fence

log = structlog.get_logger(__name__)

_ACTOR = "upkeep"
_PARTS = 1_000
_JUDGE_EVERY_S = 1.0


# A worker that registered after the part began was taken for dead meanwhile: it has let go of the part.
_WORKER_IS_GONE = f"(workers.name IS NULL OR NOT ({LIVING}) OR workers.started_at > parts.started_at)"

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
               + CAST(workers.name IS NULL OR {LOST} AS int) AS counted
        FROM parts
        JOIN {REQUESTED} USING (id)
        LEFT JOIN workers ON workers.name = parts.worker
        WHERE parts.state = 'running' AND parts.attempt = requested.attempt AND {_WORKER_IS_GONE}
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

_OVER_TIME = """
    SELECT id FROM jobs WHERE state IN ('queued', 'running') AND expires_at <= now()
    ORDER BY expires_at, id LIMIT :limit FOR NO KEY UPDATE
"""
_LOCK_FREE = text(f"{_OVER_TIME} SKIP LOCKED")
_LOCK_BUSY = text(_OVER_TIME)
# Of a worker that was taken for dead and lives: the deaths counted on what it still had do not count, unless the part
# has failed. On some none was counted yet, or it was taken back before, by a try whose reply was lost.
_PARDON = text(
    """
    WITH chosen AS (
        SELECT parts.id FROM parts
        JOIN unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[]), CAST(:deaths AS int[]))
             AS claimed (id, attempt, deaths) USING (id)
        WHERE parts.attempt >= claimed.attempt AND parts.deaths > claimed.deaths AND state <> 'failed'
        ORDER BY parts.id FOR NO KEY UPDATE OF parts
    )
    UPDATE parts SET deaths = deaths - 1 FROM chosen WHERE parts.id = chosen.id
    """
)
_WAIT_NO_LONGER = text("SELECT set_config('lock_timeout', '2s', true)")


async def find_orphaned(database: AsyncEngine, *, limit: int) -> list[Fence]:
    """Return running parts whose worker stopped, was declared dead, or never registered."""
    return [(row.id, row.attempt) for row in await fetch(database, _ORPHANED, limit=limit)]


async def requeue_orphaned(
    database: AsyncEngine, parts: Sequence[Fence], *, max_deaths: int
) -> tuple[int, dict[UUID, JobState]]:
    """Queue the parts again; those on which `max_deaths` workers have died fail as poisoned.

    A worker that stopped in order or registered again has not died. Parts that were claimed meanwhile are left alone.
    Returns how many were changed, and the jobs of those that failed, with their states.
    """
    values = {
        **requested(parts),
        "max_deaths": max_deaths,
        "failure": Failure.of(FailureCode.POISONED).model_dump_json(),
        "actor": _ACTOR,
    }

    def requeue(connection: Connection) -> tuple[int, dict[UUID, JobState]]:
        connection.execute(_LOCK_JOBS_OF_POISONED, {"ids": values["ids"], "max_deaths": max_deaths})
        moved = connection.execute(_REQUEUE, values).all()
        touched = {job_id for job_id, state in moved if state == "failed"}
        ended = settle(connection, touched, actor=_ACTOR) if touched else {}
        return len(moved), dict.fromkeys(touched, JobState.RUNNING) | ended

    async with database.begin() as connection:
        return await connection.run_sync(requeue)


async def pardon(database: AsyncEngine, parts: Sequence[ClaimedPart]) -> int:
    """Undo the counted death of a worker that lives, on its claims that did not fail; return how many."""
    deaths = [part.deaths for part in parts]
    return await change(database, _PARDON, **requested([part.fence for part in parts]), deaths=deaths)


async def expire_jobs(
    database: AsyncEngine, *, limit: int, notify: Callable[[Sequence[UUID]], Awaitable[None]]
) -> int:
    """End up to `limit` expired jobs with their open parts, and add their callbacks to the outbox; return how many.

    Jobs locked by another transaction come last, one by one, each with a short wait for its lock. `notify` gets the
    jobs of each transaction immediately, since a later transaction may fail.
    """
    async with database.begin() as connection:
        expired = await connection.run_sync(_expire, _LOCK_FREE, limit)
    total = len(expired)
    if expired:
        await notify(expired)
    while total < limit:
        async with database.begin() as connection:
            await connection.execute(_WAIT_NO_LONGER)
            busy = await connection.run_sync(_expire, _LOCK_BUSY, 1)
        if not busy:
            break
        total += 1
        await notify(busy)
    return total


def _expire(connection: Connection, lock: TextClause, limit: int) -> list[UUID]:
    due = list(connection.execute(lock, {"limit": limit}).scalars())
    if due:
        end_jobs(connection, due, state=JobState.EXPIRED, actor=_ACTOR, reason="expired")
        promise_callbacks(connection, due)
    return due


# While no heartbeat can be written, a heartbeat that stands still means nothing.
_BEATS = text(
    f"SELECT name, seen_at FROM workers WHERE {LIVING}"  # noqa: S608  a constant
    " AND cardinality(stages) > 0 AND current_setting('transaction_read_only') = 'off'"
)
_DECLARE_DEAD = text(
    "UPDATE workers SET lost_at = greatest(now(), seen_at)"
    " WHERE name = :name AND seen_at = :seen_at AND stopped_at IS NULL"
)


class Judge:
    """Declares workers dead and requeues their parts or fails them as poisoned. Any number of judges may run."""

    def __init__(self, database: AsyncEngine, settings: WorkerSettings, announce: Announce) -> None:
        self._database = database
        self._announce = announce
        self._watch = Watch(settings.lease)
        self._max_deaths = settings.max_deaths
        self.every_s = min(_JUDGE_EVERY_S, settings.lease.total_seconds() / 8)
        """Seconds between two looks at the workers' heartbeats."""

    async def judge(self) -> int:
        """Look once; return how many parts were requeued or failed."""
        beats = {row.name: row.seen_at for row in await fetch(self._database, _BEATS)}
        for name in {*self._watch.silent(beats), *filter(is_gone, beats)}:
            if await change(self._database, _DECLARE_DEAD, name=name, seen_at=beats[name]):
                metrics.WORKERS_LOST.inc()
                log.warning("worker_lost", worker=name)
        orphaned = await find_orphaned(self._database, limit=_PARTS)
        if not orphaned:
            return 0
        taken_back, jobs = await requeue_orphaned(self._database, orphaned, max_deaths=self._max_deaths)
        await self._announce(jobs)
        return taken_back
