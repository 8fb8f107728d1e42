"""Differences between Postgres, Redis and the payload store, and their repair.

A working fleet always has some for a moment: a difference counts if it persists at a second look. Repairs are the steps
of upkeep and workers, run once more.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self
from uuid import UUID

from sqlalchemy import TextClause

from pecia_schemas.payloads import PayloadStore, payload_named
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger import standing
from pecia_workers.ledger.database import fetch
from pecia_workers.ledger.publication import expected_in_redis, unpublish
from pecia_workers.ledger.recovery import Judge, find_orphaned
from pecia_workers.queue.lists import DEAD, held_parts, mend_turns
from pecia_workers.upkeep.loop import GRACE, LATELY, Stores, find_lost, relay

SECOND_LOOK: Final = timedelta(seconds=3)
_MOST_ORPHANS: Final = 10_000
_LOOKS_AT_A_TIME: Final = 16

_ACTOR: Final = "doctor"
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Items = frozenset[Any]


class Difference(StrEnum):
    """A kind of difference. `sentence` follows a number of items."""

    sentence: str

    def __new__(cls, name: str, sentence: str) -> Self:  # noqa: D102
        member = str.__new__(cls, name)
        member._value_ = name
        member.sentence = sentence
        return member

    LOST_MESSAGES = "lost messages", "parts are queued in Postgres and have no message in Redis"
    ORPHANS = "orphaned parts", "parts run in Postgres on workers that are gone"
    MISCOUNTED = "miscounted jobs", "jobs have counters that are not those of their parts"
    UNENDED = "unended jobs", "jobs are open although all their parts have ended"
    STUCK_SUMMARIES = "stuck summaries", "summaries or splits wait for parts that have ended"
    DEAD_MESSAGES = "dead messages", "messages in Redis were invalid and have been set aside"
    STRANGERS = (
        "strangers",
        "parts in Redis are unknown to Postgres: do two fleets share this Redis, or was Postgres set back?",
    )
    MISSING_PAYLOADS = (
        "missing payloads",
        "open jobs have a document that is not in the payload store: restore it, or cancel them",
    )

    @property
    def is_mended(self) -> bool:
        """Whether `mend` can repair it."""
        return _KINDS[self][1] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The stores to compare."""

    stores: Stores
    payloads: PayloadStore
    settings: WorkerSettings


Found = dict[Difference, Items]
"""The differences of one look, with the ids of parts or jobs, or other keys by which a second look recognises them."""


async def differences(scene: Scene, *, second_look: timedelta = SECOND_LOOK) -> Found:
    """Return the differences that persist over two looks."""
    first = await _look(scene, tuple(Difference))
    if not first:
        return {}
    await asyncio.sleep(second_look.total_seconds())
    second = await _look(scene, tuple(first))
    both = {kind: first[kind] & items for kind, items in second.items()}
    return {kind: items for kind, items in both.items() if items}


async def _look(scene: Scene, kinds: tuple[Difference, ...]) -> Found:
    found = {kind: frozenset(await _KINDS[kind][0](scene)) for kind in kinds}
    return {kind: items for kind, items in found.items() if items}


async def _lost_messages(scene: Scene) -> set[Hashable]:
    expected = await expected_in_redis(scene.stores.database, grace=GRACE, lately=LATELY)
    return set(await find_lost(scene.stores, before=expected.before))


async def _dead_messages(scene: Scene) -> set[Hashable]:
    count = await asyncio.to_thread(scene.stores.redis.llen, DEAD)
    return set(range(count))


async def _strangers(scene: Scene) -> set[Hashable]:
    # The claim puts other messages aside.
    held = set(filter(_ID.fullmatch, await asyncio.to_thread(held_parts, scene.stores.redis)))
    return set(held - await standing.known_parts(scene.stores.database, held))


async def _missing_payloads(scene: Scene) -> set[Hashable]:
    needed = await fetch(scene.stores.database, standing.OPEN_PAYLOADS)
    at_a_time = asyncio.Semaphore(_LOOKS_AT_A_TIME)

    async def is_there(name: str) -> bool:
        async with at_a_time:
            return await asyncio.to_thread(scene.payloads.holds, payload_named(name))

    there = await asyncio.gather(*(is_there(row.payload) for row in needed))
    return {job for row, held in zip(needed, there, strict=True) if not held for job in row.job_ids}


async def _wrong_jobs(query: TextClause, scene: Scene) -> set[Hashable]:
    return {job_id for (job_id,) in await fetch(scene.stores.database, query)}


async def mend(scene: Scene, found: Found) -> None:
    """Repair the differences that can be repaired; items that have changed since are left alone."""
    for kind, items in found.items():
        if put_right := _KINDS[kind][1]:
            await put_right(scene, items)
    await relay(scene.stores)


async def _publish_lost(scene: Scene, parts: Items) -> None:
    await asyncio.to_thread(mend_turns, scene.stores.redis)
    expected = await expected_in_redis(scene.stores.database, grace=GRACE, lately=LATELY)
    await unpublish(scene.stores.database, parts, before=expected.before)


async def _requeue(scene: Scene, _items: Items) -> None:
    judge = Judge(scene.stores.database, scene.settings, scene.stores.bus.announce)
    while await judge.judge():
        pass


async def _mend_jobs(scene: Scene, items: Items) -> None:
    job_ids: list[UUID] = sorted(items)
    ended = await standing.mend_jobs(scene.stores.database, job_ids, actor=_ACTOR)
    await scene.stores.bus.announce(ended)


async def _forget_dead(scene: Scene, _items: Items) -> None:
    await asyncio.to_thread(scene.stores.redis.delete, DEAD)


_Look = Callable[[Scene], Awaitable[Iterable[Hashable]]]
_PutRight = Callable[[Scene, Items], Awaitable[None]]

# How each is found, and put right if it can be.
_KINDS: dict[Difference, tuple[_Look, _PutRight | None]] = {
    Difference.LOST_MESSAGES: (_lost_messages, _publish_lost),
    Difference.ORPHANS: (lambda scene: find_orphaned(scene.stores.database, limit=_MOST_ORPHANS), _requeue),
    Difference.MISCOUNTED: (partial(_wrong_jobs, standing.MISCOUNTED), _mend_jobs),
    Difference.UNENDED: (partial(_wrong_jobs, standing.UNENDED), _mend_jobs),
    Difference.STUCK_SUMMARIES: (partial(_wrong_jobs, standing.STUCK_SUMMARIES), _mend_jobs),
    Difference.DEAD_MESSAGES: (_dead_messages, _forget_dead),
    Difference.STRANGERS: (_strangers, None),
    Difference.MISSING_PAYLOADS: (_missing_payloads, None),
}
