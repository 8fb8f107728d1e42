"""What the fleet keeps no longer: documents, results, events, callbacks, jobs and the audit trail, each by its age.

Every statement takes a bounded number of rows, the oldest first, and leaves alone what another transaction has
locked; so all of it is safe with any number of instances.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import discards
from pecia_workers.ledger.database import change, fetch

_RECORDED = {"actor": "upkeep", "reason": "retention"}

_RELEASE_PAYLOADS = text(
    """
    WITH due AS (
        SELECT id FROM jobs
        WHERE finished_at < now() - :age AND payload_released_at IS NULL
        ORDER BY finished_at LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ), released AS (
        UPDATE jobs SET payload_released_at = now(), task = task - 'password' - 'url'
        FROM due WHERE jobs.id = due.id RETURNING jobs.id, payload
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT id, :actor, :reason, jsonb_build_object('documents', count(payload)) FROM released GROUP BY id
    )
    SELECT payload FROM released
    """
)

# Jobs of so many parts in all, but one at least: one may have thousands.
_UP_TO_THE_LIMIT = """
        SELECT id FROM (
            SELECT id, sum(coalesce(total, 0)) OVER (ORDER BY finished_at, id) - coalesce(total, 0) AS before
            FROM oldest
        ) AS counted
        WHERE before < :limit
"""

_ERASE_RESULTS = text(
    f"""
    WITH oldest AS (
        SELECT id, total, finished_at FROM jobs
        WHERE finished_at < now() - :age AND erased_at IS NULL
        ORDER BY finished_at LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ), due AS ({_UP_TO_THE_LIMIT}), gone AS (
        DELETE FROM results USING due WHERE results.job_id = due.id RETURNING results.job_id
    ), marked AS (
        UPDATE jobs SET erased_at = now(), label = NULL FROM due WHERE jobs.id = due.id RETURNING jobs.id
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT job_id, :actor, :reason, jsonb_build_object('results', count(*)) FROM gone GROUP BY job_id
    )
    SELECT count(*) FROM marked
    """  # noqa: S608  a constant of this module
)

# With a job go its parts, results, events and callbacks, by the rules of their foreign keys.
_FORGET_JOBS = text(
    f"""
    WITH oldest AS (
        SELECT id, total, finished_at FROM jobs WHERE finished_at < now() - :age
        ORDER BY finished_at LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ), due AS ({_UP_TO_THE_LIMIT}), gone AS (
        DELETE FROM jobs USING due WHERE jobs.id = due.id RETURNING jobs.id, payload
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT id, :actor, :reason, jsonb_build_object('jobs', 1) FROM gone
    )
    SELECT payload FROM gone
    """  # noqa: S608  a constant of this module
)


def _deletion(table: str, due: str) -> TextClause:
    return text(
        f"""
        WITH due AS (SELECT id FROM {table} WHERE {due} LIMIT :limit FOR UPDATE SKIP LOCKED)
        DELETE FROM {table} USING due WHERE {table}.id = due.id
        """  # noqa: S608  names and conditions of this module
    )


_FORGET_DELIVERIES = _deletion("deliveries", "finished_at < now() - :age ORDER BY finished_at")
_FORGET_TRAIL = [_deletion(table, "at < now() - :age ORDER BY at") for table in ("reads", "erasures")]

# Not those that were opened lately: a client may be about to put jobs into them.
_FORGET_BATCHES = _deletion(
    "batches",
    "opened_at < now() - interval '1 day' AND NOT EXISTS (SELECT FROM jobs WHERE jobs.batch = batches.id)",
)

# Sequences grow with time: if the oldest are young, there is nothing to do.
_FORGET_EVENTS = text(
    """
    WITH oldest AS (
        SELECT sequence, at FROM job_events ORDER BY sequence LIMIT :limit
    ), due AS (
        SELECT job_events.sequence FROM job_events JOIN oldest USING (sequence)
        WHERE oldest.at < now() - :age
        FOR UPDATE OF job_events SKIP LOCKED
    )
    DELETE FROM job_events USING due WHERE job_events.sequence = due.sequence
    """
)

_POSTPONE = text(
    "UPDATE discarded_payloads SET discarded_at = clock_timestamp() WHERE payload = ANY(CAST(:payloads AS text[]))"
)


async def release_payloads(database: AsyncEngine, *, age: timedelta, limit: int) -> int:
    """Let go of the documents of jobs that ended that long ago; return of how many jobs.

    A document leaves the store once no job holds it.
    """
    return await _let_go(database, _RELEASE_PAYLOADS, age, limit)


async def forget_jobs(database: AsyncEngine, *, age: timedelta, limit: int) -> int:
    """Delete jobs that ended that long ago, with all that belongs to them; return how many."""
    return await _let_go(database, _FORGET_JOBS, age, limit)


async def _let_go(database: AsyncEngine, statement: TextClause, age: timedelta, limit: int) -> int:
    async with database.begin() as connection:
        due = {"age": age, "limit": limit, **_RECORDED}
        payloads = (await connection.execute(statement, due)).scalars().all()
        if payloads:
            await connection.execute(discards.DISCARD, {"payloads": payloads})
    return len(payloads)


async def erase_results(database: AsyncEngine, *, age: timedelta, limit: int) -> int:
    """Erase the results of jobs that ended that long ago; return of how many jobs. Their counters stay."""
    async with database.begin() as connection:
        due = {"age": age, "limit": limit, **_RECORDED}
        return int((await connection.execute(_ERASE_RESULTS, due)).scalar_one())


async def forget_events(database: AsyncEngine, *, age: timedelta, limit: int) -> int:
    """Delete events that are that old; return how many."""
    return await change(database, _FORGET_EVENTS, age=age, limit=limit)


async def forget_deliveries(database: AsyncEngine, *, age: timedelta, limit: int) -> int:
    """Delete callbacks that arrived, or were given up, that long ago; return how many."""
    return await change(database, _FORGET_DELIVERIES, age=age, limit=limit)


async def forget_batches(database: AsyncEngine, *, limit: int) -> int:
    """Delete batches that have no job any more; return how many."""
    return await change(database, _FORGET_BATCHES, limit=limit)


async def forget_trail(database: AsyncEngine, *, age: timedelta, limit: int) -> int:
    """Delete what the audit trail holds from that long ago; return how many lines."""
    return sum([await change(database, statement, age=age, limit=limit) for statement in _FORGET_TRAIL])


async def discard_strays(database: AsyncEngine, payloads: Collection[str]) -> int:
    """Have those of the payloads removed that no job holds; return how many."""
    async with database.begin() as connection:
        strays = (await connection.execute(discards.UNHELD, {"payloads": list(payloads)})).scalars().all()
        if strays:
            await connection.execute(discards.DISCARD, {"payloads": strays})
    return len(strays)


async def discarded_payloads(database: AsyncEngine, *, limit: int) -> list[list[str]]:
    """Return payloads that were let go of and may have to leave the store, the oldest first.

    Each list is of those that share a lock: `remove_payloads` takes one.
    """
    return [row.payloads for row in await fetch(database, discards.WAITING, limit=limit)]


async def remove_payloads(
    database: AsyncEngine, payloads: Sequence[str], remove: Callable[[Sequence[str]], Awaitable[set[str]]]
) -> tuple[int, int]:
    """Call `remove` with those of the payloads that no job holds and no other process works on.

    It returns those that the store kept: they wait on, behind the others. Returns how many it removed, and kept.
    """
    async with database.begin() as connection:
        await connection.execute(discards.LOCK, {"payloads": payloads})
        waiting = (await connection.execute(discards.STILL_HELD, {"payloads": payloads})).all()
        free = [row.payload for row in waiting if not row.held]
        stayed = await remove(free) if free else set()
        settled = [row.payload for row in waiting if row.payload not in stayed]
        await connection.execute(discards.SETTLE, {"payloads": settled})
        await connection.execute(_POSTPONE, {"payloads": list(stayed)})
    return len(free) - len(stayed), len(stayed)


async def forget_removals(database: AsyncEngine) -> None:
    """Forget which payloads were removed, long after anybody can have been about to submit them."""
    await change(database, discards.FORGET, memory=discards.MEMORY)


async def unheld(database: AsyncEngine, payloads: Collection[str]) -> set[str]:
    """Return those of the payloads that no job holds."""
    return {payload for (payload,) in await fetch(database, discards.UNHELD, payloads=list(payloads))}
