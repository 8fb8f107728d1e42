"""The steps of upkeep. Each is short, changes nothing if there is nothing to do, and returns how much it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import JobState, Lane
from pecia_schemas.messages import CANCEL_CHANNEL
from pecia_schemas.settings import WorkerSettings
from pecia_workers import metrics
from pecia_workers.ledger.database import LONG_PATIENCE, open_database
from pecia_workers.ledger.publication import expected_in_redis, relay_due, unpublish_missing
from pecia_workers.ledger.recovery import Judge, expire_jobs
from pecia_workers.ledger.standing import Left, Standing, standing
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import DEAD, QUARANTINES, QUEUES, connect
from pecia_workers.upkeep.watching import count_taken, count_waiting, held_parts, mend_turns

_BATCH = 1_000
GRACE = timedelta(seconds=5)
"""A part that was published this recently is on its way: publisher and claim are left alone with it."""
_LONGEST_WITHOUT_COMPARISON_S = 300.0
_SHARE_OF_COMPARING = 5
"""A comparison that took a second is followed by the next no sooner than this many seconds later."""
_MEASURE_EVERY_S = 5.0
_ROLES = ("ingest", "engine", "webhooks", "upkeep")


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
        database=open_database(settings.database_url.get_secret_value(), patience=LONG_PATIENCE),
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


async def relay(stores: Stores) -> int:
    """Publish what is due and not in Redis: a submit without Redis, a retry, a part that got lost."""
    total, relayed = 0, _BATCH
    while relayed >= _BATCH:
        relayed = await relay_due(stores.database, stores.bus, limit=_BATCH)
        total += relayed
    return total


async def republish_lost(stores: Stores, *, before: datetime) -> int:
    """Hand parts to the relay that were published before that moment and are not in Redis; return how many."""
    await asyncio.to_thread(mend_turns, stores.redis)
    present = await asyncio.to_thread(held_parts, stores.redis)
    return await unpublish_missing(stores.database, present, before=before)


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
        held = (await asyncio.to_thread(count_waiting, stores.redis)).total()
        expected, before = await expected_in_redis(stores.database, grace=GRACE)
        began = time.monotonic()
        if began < self._at_latest and (held >= expected or began < self._not_before):
            return 0
        lost = await republish_lost(stores, before=before)
        ended = time.monotonic()
        self._not_before = ended + (ended - began) * _SHARE_OF_COMPARING
        self._at_latest = ended + _LONGEST_WITHOUT_COMPARISON_S
        return lost


class Measurement:
    """A step of upkeep that changes nothing. A few short look-ups, every five seconds at most."""

    def __init__(self, *, window: int) -> None:
        self._window = window
        self._not_before = 0.0

    async def __call__(self, stores: Stores) -> int:
        """Look, and return 0."""
        if time.monotonic() < self._not_before:
            return 0
        async with stores.database.connect() as connection:
            found = await connection.run_sync(standing, window=self._window)
        await asyncio.to_thread(_show_lists, stores.redis, found.left)
        _show_postgres(found)
        metrics.MEASURED.set_to_current_time()
        self._not_before = time.monotonic() + _MEASURE_EVERY_S
        return 0


def _show_lists(redis: Redis, left: Sequence[Left]) -> None:
    in_postgres = {(one.stage, one.lane): one.parts for one in left}
    waiting = count_waiting(redis)
    for queue, (stage, lane) in QUEUES.items():
        metrics.QUEUE_PARTS.labels(stage, lane).set(waiting[queue] + in_postgres.get((stage, lane), 0))
    for queue, stage in QUARANTINES.items():
        metrics.QUEUE_PARTS.labels(stage, "quarantine").set(waiting[queue])
    strange: Any = redis.llen(DEAD)
    metrics.LEASED_PARTS.set(count_taken(redis).total())
    metrics.STRANGE_MESSAGES.set(strange)


def _show_postgres(found: Standing) -> None:
    for lane in Lane:
        metrics.QUEUE_OLDEST.labels(lane).set(found.oldest_s.get(lane, 0.0))
    for role in _ROLES:
        metrics.WORKERS.labels(role).set(found.roles.get(role, 0))
    metrics.REMOVALS.set(found.removals)
    metrics.REMOVALS_OLDEST.set(found.removals_s)
    lag = found.lag
    metrics.UNPUBLISHED.set(lag.unpublished)
    metrics.UNPUBLISHED_OLDEST.set(lag.unpublished_s)
    metrics.DUE_WEBHOOKS.set(lag.deliveries)
    metrics.DUE_WEBHOOKS_OLDEST.set(lag.deliveries_s)
    metrics.PAUSED_RECEIVERS.set(lag.paused)
