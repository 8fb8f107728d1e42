"""Retention: erases documents, results, events, callbacks, jobs and audit records, each at its age.

Every statement takes a bounded number of rows, the oldest first, and skips rows that another transaction has locked, so
any number of instances may run. A step of upkeep erases one kind, transaction by transaction.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from obstore.exceptions import BaseError
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import discards
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.database import change, fetch

_JOBS = 500
"""Jobs in one transaction; also the most parts that these jobs may have."""
_ROWS = 5_000
_BATCHES = 1_000
_PAYLOADS = 2_000
_REMOVALS_AT_ONCE = 3
_BUDGET_S = 5.0
"""How long one step may delay the others."""
_FORGETS_EVERY_S = 3_600.0
_SEARCHES_EVERY_S = 86_400.0
_NEW_BATCH = timedelta(days=1)
"""A younger batch may be empty because its client has not added jobs yet."""
_BEGINNINGS = 256
"""First two hexadecimal digits of names in the store."""

Step = Callable[[AsyncEngine], Awaitable[int]]

# What returns documents lets go of them: each leaves the store once no job holds it.
PAYLOADS = text(
    """
    WITH due AS (
        SELECT id FROM jobs
        WHERE finished_at < now() - :age AND payload_released_at IS NULL
        ORDER BY finished_at LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ), released AS (
        UPDATE jobs SET payload_released_at = now(), task = task - 'password' - 'url' #- '{source,secret}'
        FROM due WHERE jobs.id = due.id RETURNING jobs.id, payload, erased_at
    ), keys_gone AS (
        DELETE FROM job_keys USING released WHERE job_id = released.id AND erased_at IS NOT NULL
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT id, 'upkeep', 'retention', jsonb_build_object('documents', count(payload)) FROM released GROUP BY id
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

# Of jobs that ended, whose counters stay. A data key goes with the last that is encrypted under it.
RESULTS = text(
    f"""
    WITH oldest AS (
        SELECT id, total, finished_at, payload_released_at FROM jobs
        WHERE finished_at < now() - :age AND erased_at IS NULL
        ORDER BY finished_at LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ), due AS ({_UP_TO_THE_LIMIT}), gone AS (
        DELETE FROM results USING due WHERE results.job_id = due.id RETURNING results.job_id
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT job_id, 'upkeep', 'retention', jsonb_build_object('results', count(*)) FROM gone GROUP BY job_id
    ), keys_gone AS (
        DELETE FROM job_keys USING oldest JOIN due USING (id)
        WHERE job_id = oldest.id AND payload_released_at IS NOT NULL
    )
    UPDATE jobs SET erased_at = now(), label = NULL FROM due WHERE jobs.id = due.id
    """  # noqa: S608  a constant of this module
)

# With a job go its parts, results, events and callbacks, by the rules of their foreign keys.
JOBS = text(
    f"""
    WITH oldest AS (
        SELECT id, total, finished_at FROM jobs WHERE finished_at < now() - :age
        ORDER BY finished_at LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ), due AS ({_UP_TO_THE_LIMIT}), gone AS (
        DELETE FROM jobs USING due WHERE jobs.id = due.id RETURNING jobs.id, payload
    ), recorded AS (
        INSERT INTO erasures (job_id, actor, reason, counts)
        SELECT id, 'upkeep', 'retention', jsonb_build_object('jobs', 1) FROM gone
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


# A client may be about to put jobs into a batch without a job: hence the age.
BATCHES = _deletion(
    "batches", "opened_at < now() - :age AND NOT EXISTS (SELECT FROM jobs WHERE jobs.batch = batches.id)"
)
DELIVERIES = _deletion("deliveries", "finished_at < now() - :age ORDER BY finished_at")
READS, ERASURES = (_deletion(table, "at < now() - :age ORDER BY at") for table in ("reads", "erasures"))
# Sequences grow with time: if the oldest are young, there is nothing to do.
EVENTS = text(
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

_NOW = text("SELECT now()")

_POSTPONE = text(
    "UPDATE discarded_payloads SET discarded_at = clock_timestamp() WHERE payload = ANY(CAST(:payloads AS text[]))"
)


async def forget(database: AsyncEngine, kinds: Sequence[TextClause], *, age: timedelta, limit: int) -> int:
    """Erase records of a kind, such as `RESULTS`, that are older than `age`; return the number of jobs or rows."""
    return sum([await _let_go(database, kind, age=age, limit=limit) for kind in kinds])


async def _let_go(database: AsyncEngine, statement: TextClause, **values: Any) -> int:
    async with database.begin() as connection:
        found = await connection.execute(statement, values)
        if not found.returns_rows:
            return found.rowcount
        payloads = found.scalars().all()
        if payloads:
            await connection.execute(discards.DISCARD, {"payloads": payloads})
        return len(payloads)


class PayloadsStayedError(Exception):
    """The payload store did not delete some documents; they are tried again."""


class PayloadStoreSilentError(Exception):
    """The payload store did not list its contents; it is asked again."""


def retention_steps(settings: WorkerSettings) -> dict[str, Step]:
    """Return a step for each retention period, by name, and the step that removes documents."""
    subjects = {
        "payload_retention": ([PAYLOADS], settings.keep_payloads, _JOBS),
        "result_retention": ([RESULTS], settings.keep_results, _JOBS),
        "event_retention": ([EVENTS], settings.keep_events, _ROWS),
        "delivery_retention": ([DELIVERIES], settings.keep_deliveries, _ROWS),
        "job_retention": ([JOBS], settings.keep_jobs, _JOBS),
        "audit_retention": ([READS, ERASURES], settings.keep_audit, _ROWS),
    }
    steps: dict[str, Step] = {
        name: partial(_until_nothing_is_left, partial(forget, kinds=kinds, age=age, limit=limit))
        for name, (kinds, age, limit) in subjects.items()
        if age > timedelta()
    }
    if settings.keep_payloads:
        steps["strays"] = StraySearch(settings)
    return steps | {
        "batches": _daily(partial(forget, kinds=[BATCHES], age=_NEW_BATCH, limit=_BATCHES)),
        "payloads": partial(_until_nothing_is_left, PayloadRemoval(settings)),
    }


async def _until_nothing_is_left(step: Step, database: AsyncEngine) -> int:
    """Repeat a step until nothing is left, or until its time is up so that others run."""
    total, until = 0, time.monotonic() + _BUDGET_S
    while done := await step(database):
        total += done
        if time.monotonic() >= until:
            break
    return total


def _daily(step: Step) -> Step:
    """Repeat a step until it finds fewer than `_BATCHES`; then pause it for a day."""
    rests_until = 0.0

    async def run(database: AsyncEngine) -> int:
        nonlocal rests_until
        if time.monotonic() < rests_until:
            return 0
        if (found := await step(database)) < _BATCHES:
            rests_until = time.monotonic() + _SEARCHES_EVERY_S
        return found

    return run


class PayloadRemoval:
    """Removes documents from the store that no job needs any more, after retention, a purge or a change of keys."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._forgets_at = 0.0

    async def __call__(self, database: AsyncEngine) -> int:
        """Remove the documents that wait for removal; return how many. Raises `PayloadsStayedError` if some stayed."""
        if time.monotonic() >= self._forgets_at:
            # By then nothing can be about to submit them.
            await change(database, discards.FORGET, memory=discards.MEMORY)
            self._forgets_at = time.monotonic() + _FORGETS_EVERY_S
        buckets = [row.payloads for row in await fetch(database, discards.WAITING, limit=_PAYLOADS)]
        if not buckets:
            return 0
        store = await asyncio.to_thread(_store, self._settings)
        at_once = asyncio.Semaphore(_REMOVALS_AT_ONCE)

        async def empty(bucket: Sequence[str]) -> tuple[int, int]:
            """Remove documents that no job holds and no process works on; one that the store keeps goes to the end."""
            async with at_once, database.begin() as connection:
                await connection.execute(discards.LOCK, {"payloads": bucket})
                waiting = (await connection.execute(discards.STILL_HELD, {"payloads": bucket})).all()
                free = [row.payload for row in waiting if not row.held]
                stayed = await store.delete_many(free) if free else set()
                settled = [row.payload for row in waiting if row.payload not in stayed]
                await connection.execute(discards.SETTLE, {"payloads": settled})
                await connection.execute(_POSTPONE, {"payloads": list(stayed)})
            return len(free) - len(stayed), len(stayed)

        try:
            async with asyncio.TaskGroup() as group:  # a failing task leaves none behind with a connection
                emptied = [group.create_task(empty(bucket)) for bucket in buckets]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        removed, stayed = map(sum, zip(*(task.result() for task in emptied), strict=True))
        if stayed:
            raise PayloadsStayedError(f"{stayed} of {sum(map(len, buckets))}")
        return removed


class StraySearch:
    """Finds documents in the store without any job, because the submit that stored them failed.

    It examines 1/256 of the store in each round, and all of it once a day.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._age = max(settings.keep_payloads, discards.MEMORY)
        self._next = 0
        self._rests_until = 0.0

    async def __call__(self, database: AsyncEngine) -> int:
        """Mark strays for removal that are older than the retention of documents and than a day; return how many."""
        if time.monotonic() < self._rests_until:
            return 0
        ((now,),) = await fetch(database, _NOW)
        before = min(now, datetime.now(UTC)) - self._age  # a clock that is wrong must not make a document old
        try:
            store = await asyncio.to_thread(_store, self._settings)
            there = await asyncio.to_thread(list, store.names(f"{self._next:02x}"))
        except (BaseError, OSError) as error:
            raise PayloadStoreSilentError(type(error).__name__) from error
        names = [name for name, written in there if written < before]
        found = await _let_go(database, discards.UNHELD, payloads=names) if names else 0
        self._next = (self._next + 1) % _BEGINNINGS
        if self._next == 0:
            self._rests_until = time.monotonic() + _SEARCHES_EVERY_S
        return found


def _store(settings: WorkerSettings) -> PayloadStore:
    if not settings.payload_url:
        raise FileNotFoundError("no payload store is set")
    return PayloadStore.open(settings.payload_url, settings.payload_options)
