"""What Redis holds of parts, and what each worker does for those of dead ones while no upkeep is on duty."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any

import structlog
from redis import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.connecting import name_of
from pecia_schemas.duty import ON_DUTY
from pecia_schemas.messages import BEHIND_TURNS, BELL_TTL_MS, bell_name, marker, rest_name, standing_name
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.database import fetch
from pecia_workers.ledger.publication import relay_due
from pecia_workers.ledger.recovery import Judge, gone_of
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import QUARANTINES, QUEUES, connect, hand_back, taken_name, takers

_LISTS = (*QUEUES, *QUARANTINES)
_MESSAGES_PER_CALL = 5_000
_KEYS_PER_CALL = 1_000
_MEND = files("pecia_workers.upkeep").joinpath("mend.lua").read_text(encoding="utf-8")


def count_waiting(redis: Redis) -> Counter[str]:
    """Return how many messages wait in the list of each stage and lane, and in each quarantine: cheap."""
    with redis.pipeline(transaction=False) as pipe:
        for queue in _LISTS:
            pipe.llen(queue)
            pipe.hget(standing_name(queue), BEHIND_TURNS)
        replies = pipe.execute()
    found = zip(_LISTS, replies[::2], replies[1::2], strict=True)
    return Counter({queue: max(0, length + int(behind or 0)) for queue, length, behind in found})


def count_taken(redis: Redis) -> Counter[str]:
    """Return how many parts that came from each list are with workers."""
    return Counter(held.split(" ", 3)[2] for part, held in _taken(redis) if not part.endswith("+"))


def held_parts(redis: Redis) -> set[str]:
    """Return the ids of all parts that wait in a list or are with a worker.

    In the order in which they move, so that none is missed: behind a turn, in a list, taken.
    """
    rests = [rest_name(*rest) for rest in _rests(redis)]
    held = {part for queue in (*rests, *_LISTS) for part in _waiting(redis, queue)}
    return held.union(part.removesuffix("+") for part, _ in _taken(redis))


def _taken(redis: Redis) -> Iterator[tuple[str, str]]:
    for worker in takers(redis):
        held: Any = redis.hgetall(taken_name(worker))
        yield from ((part, message) for part, message in held.items() if part != "#")


def mend_turns(redis: Redis) -> int:
    """Set the marker of every flow for which messages wait and none stands in the list; return how many were missing.

    Nothing but a hand in Redis can make that so; but then nothing else would find them.
    """
    mended = 0
    for queue, flow in _rests(redis):
        keys = (queue, rest_name(queue, flow), bell_name(QUEUES[queue][0]))
        missing: Any = redis.eval(_MEND, len(keys), *keys, marker(flow), str(BELL_TTL_MS))
        mended += missing
    return mended


def _rests(redis: Redis) -> Iterator[tuple[str, str]]:
    """Yield list and flow of what waits behind a turn. Looks through the keys, which are few: parts have none."""
    found: Any = redis.scan_iter("*.*:*", count=_KEYS_PER_CALL, _type="list")
    for name in set(found):
        queue, _, flow = name.partition(":")
        if queue in QUEUES:
            yield queue, flow


def _waiting(redis: Redis, queue: str) -> Iterator[str]:
    # From the end that producers push to: a part that moves meanwhile is met twice rather than missed.
    start = 0
    messages: Any
    while messages := redis.lrange(queue, start, start + _MESSAGES_PER_CALL - 1):
        for message in messages:
            with suppress(ValueError, KeyError, TypeError):  # the claim sorts such messages out
                yield str(json.loads(message)["part"])
        start += len(messages)


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
            ((upkeep_is_on_duty,),) = await fetch(database, _UPKEEP)
            if not upkeep_is_on_duty:
                await bus.tell((await judge.judge()).jobs)
                due.set()


async def _publish(database: AsyncEngine, bus: Bus, settings: WorkerSettings, due: asyncio.Event) -> None:
    with connect(settings.redis_url.get_secret_value()) as redis:
        while await due.wait():
            due.clear()
            with _failure_told():
                await hand_back_of_gone(database, redis)
                await relay_due(database, bus, limit=_RELAYED_AT_ONCE)


@contextmanager
def _failure_told() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  the next look may succeed, and there is no other
        log.info("watch_failed", error=name_of(error))
