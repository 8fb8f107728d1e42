"""What upkeep does for parts of dead workers, done by each worker while no upkeep is on duty."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import text

from pecia_schemas.connecting import name_of
from pecia_schemas.duty import ON_DUTY
from pecia_workers.broker.connection import connect
from pecia_workers.broker.lists import hand_back, takers
from pecia_workers.ledger.judge import Judge, gone_of
from pecia_workers.ledger.publication import relay_due

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis
    from sqlalchemy.ext.asyncio import AsyncEngine

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.bus import Bus

log = structlog.get_logger(__name__)

_MOST_EVERY_S = 1.0
_RELAYED_AT_ONCE = 1_000

_UPKEEP = text(f"SELECT EXISTS (SELECT FROM workers WHERE role = 'upkeep' AND {ON_DUTY})")  # noqa: S608  a constant


def look_every_s(settings: WorkerSettings) -> float:
    """Return the seconds between two looks at the workers' beats."""
    return min(_MOST_EVERY_S, settings.lease.total_seconds() / 8)


async def hand_back_of_gone(database: AsyncEngine, redis: Redis) -> int:
    """Put back what workers took that are gone, and had not begun; return how much. Raises `redis.RedisError`."""
    gone = await gone_of(database, await asyncio.to_thread(takers, redis))
    handed = [await asyncio.to_thread(hand_back, redis, worker) for worker in gone]
    return sum(handed)


async def watch_workers(database: AsyncEngine, bus: Bus, settings: WorkerSettings) -> None:
    """Judge, relay and hand back for as long as no upkeep is on duty; for ever.

    What needs Redis has a task of its own: one that hangs must not interrupt the watch.
    """
    due = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_judge(database, bus, settings, due))
        tasks.create_task(_publish(database, bus, settings, due))


async def _judge(database: AsyncEngine, bus: Bus, settings: WorkerSettings, due: asyncio.Event) -> None:
    judge = Judge(database, settings.lease, max_deaths=settings.max_deaths)
    while True:
        await asyncio.sleep(look_every_s(settings))
        with _failure_told():
            if not await _upkeep_is_on_duty(database):
                await bus.tell((await judge.judge()).jobs)
                due.set()


async def _publish(database: AsyncEngine, bus: Bus, settings: WorkerSettings, due: asyncio.Event) -> None:
    with connect(settings.redis_url.get_secret_value()) as redis:
        while await due.wait():
            due.clear()
            with _failure_told():
                await hand_back_of_gone(database, redis)
                await relay_due(database, bus, limit=_RELAYED_AT_ONCE)


async def _upkeep_is_on_duty(database: AsyncEngine) -> bool:
    async with database.connect() as connection:
        return bool((await connection.execute(_UPKEEP)).scalar())


@contextmanager
def _failure_told() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  the next look may succeed, and there is no other
        log.info("watch_failed", error=name_of(error))
