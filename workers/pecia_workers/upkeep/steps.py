"""The steps of upkeep. Each is short, changes nothing if there is nothing to do, and returns how much it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import JobState
from pecia_schemas.messages import CANCEL_CHANNEL
from pecia_schemas.settings import WorkerSettings
from pecia_workers.broker.connection import connect
from pecia_workers.bus import Bus
from pecia_workers.ledger.database import LONG_PATIENCE, open_database
from pecia_workers.ledger.judge import Judge
from pecia_workers.ledger.publication import (
    expected_in_redis,
    relay_due,
    unpublish_missing,
)
from pecia_workers.ledger.recovery import expire_jobs
from pecia_workers.ledger.workers import forget_gone
from pecia_workers.upkeep.queues import count_waiting_parts, held_parts, mend_turns

_BATCH = 1_000
_GRACE = timedelta(seconds=5)
"""A part that was published this recently is on its way: publisher and claim are left alone with it."""
_LONGEST_WITHOUT_COMPARISON_S = 300.0
_SHARE_OF_COMPARING = 5
"""A comparison that took a second is followed by the next no sooner than this many seconds later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What the steps work on."""

    database: AsyncEngine
    redis: Redis
    bus: Bus


@asynccontextmanager
async def open_stores(settings: WorkerSettings) -> AsyncIterator[Stores]:
    """Yield what the settings name, for the running loop."""
    redis_url = settings.redis_url.get_secret_value()
    stores = Stores(
        database=open_database(
            settings.database_url.get_secret_value(), connections=4, patience=LONG_PATIENCE
        ),
        redis=connect(redis_url),
        bus=Bus(redis_url, window=settings.window),
    )
    try:
        yield stores
    finally:
        await stores.bus.close()
        stores.redis.close()
        await stores.database.dispose()


class Judging:
    """Takes silent workers for dead; their parts are queued again, or fail as poisoned."""

    def __init__(self, stores: Stores, settings: WorkerSettings) -> None:
        self._bus = stores.bus
        self._judge = Judge(stores.database, settings.lease, max_deaths=settings.max_deaths)

    async def __call__(self) -> int:
        """Look once; return how many parts were taken back."""
        recovered = await self._judge.judge()
        await self._bus.tell(recovered.jobs)
        return recovered.queued + recovered.poisoned


async def expire(stores: Stores) -> int:
    """End the jobs whose time is over, and tell the workers that run their parts."""
    expired = await expire_jobs(stores.database, limit=_BATCH)
    if expired:
        await stores.bus.tell(dict.fromkeys(expired, JobState.EXPIRED))
        with suppress(RedisError, OSError):  # the fence refuses a result that comes too late
            await asyncio.to_thread(_tell_workers, stores.redis, expired)
    return len(expired)


def _tell_workers(redis: Redis, jobs: Sequence[UUID]) -> None:
    with redis.pipeline(transaction=False) as pipe:
        for job_id in jobs:
            pipe.publish(CANCEL_CHANNEL, str(job_id))
        pipe.execute()


async def forget_workers(stores: Stores, settings: WorkerSettings) -> int:
    """Delete the rows of workers that went long ago."""
    return await forget_gone(stores.database, age=settings.keep_workers) if settings.keep_workers else 0


async def relay(stores: Stores) -> int:
    """Publish what is due and not in Redis: a submit without Redis, a retry, a part that got lost."""
    total = relayed = await relay_due(stores.database, stores.bus, limit=_BATCH)
    while relayed >= _BATCH:
        relayed = await relay_due(stores.database, stores.bus, limit=_BATCH)
        total += relayed
    return total


class Reconciler:
    """Finds parts whose message Redis has lost: after FLUSHALL, a restart without data, the last second of the log.

    Two counts tell whether anything can be missing; only then, and every five minutes, all ids are compared.
    """

    def __init__(self) -> None:
        self._not_before = 0.0
        self._at_latest = time.monotonic() + _LONGEST_WITHOUT_COMPARISON_S

    async def __call__(self, stores: Stores) -> int:
        """Hand lost parts to the relay; return how many."""
        # Redis first: what is committed between the two counts lowers only the second.
        held = await asyncio.to_thread(count_waiting_parts, stores.redis)
        expected = await expected_in_redis(stores.database, grace=_GRACE)
        now = time.monotonic()
        if now < self._at_latest and (held >= expected.parts or now < self._not_before):
            return 0
        await asyncio.to_thread(mend_turns, stores.redis)
        present = await asyncio.to_thread(held_parts, stores.redis)
        lost = await unpublish_missing(stores.database, present, before=expected.before)
        self._rest(since=now)
        return lost

    def _rest(self, *, since: float) -> None:
        now = time.monotonic()
        self._not_before = now + (now - since) * _SHARE_OF_COMPARING
        self._at_latest = now + _LONGEST_WITHOUT_COMPARISON_S
