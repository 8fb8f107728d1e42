"""How each difference is put right: by what upkeep and workers do all day, once more and for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

from pecia_workers.broker.lists import DEAD
from pecia_workers.ledger.inspection import mend_jobs
from pecia_workers.ledger.publication import expected_in_redis, unpublish_missing
from pecia_workers.upkeep.differences import GRACE, Difference, Found, Scene
from pecia_workers.upkeep.queues import held_parts, mend_turns
from pecia_workers.upkeep.steps import Judging, relay

_ACTOR = "doctor"

Items = Iterable[Any]


async def mend(scene: Scene, found: Found) -> None:
    """Put right what can be; whatever has moved on since it was found stays as it is."""
    for kind, items in found.items():
        if kind.is_mended:
            await _MENDERS[kind](scene, items)
    await relay(scene.stores)


async def _publish_lost(scene: Scene, _items: Items) -> None:
    stores = scene.stores
    await asyncio.to_thread(mend_turns, stores.redis)
    expected = await expected_in_redis(stores.database, grace=GRACE)
    present = await asyncio.to_thread(held_parts, stores.redis)
    await unpublish_missing(stores.database, present, before=expected.before)


async def _requeue(scene: Scene, _items: Items) -> None:
    judging = Judging(scene.stores, scene.settings)
    while await judging():
        pass


async def _mend_jobs(scene: Scene, items: Items) -> None:
    job_ids: list[UUID] = sorted(items)
    ended = await mend_jobs(scene.stores.database, job_ids, actor=_ACTOR)
    await scene.stores.bus.tell(ended)


async def _forget_dead(scene: Scene, _items: Items) -> None:
    await asyncio.to_thread(scene.stores.redis.delete, DEAD)


async def _forget_earlier(scene: Scene, items: Items) -> None:
    await asyncio.to_thread(scene.stores.redis.delete, *items)


_MENDERS: dict[Difference, Callable[[Scene, Items], Awaitable[None]]] = {
    Difference.LOST_MESSAGES: _publish_lost,
    Difference.ORPHANS: _requeue,
    Difference.MISCOUNTED: _mend_jobs,
    Difference.UNENDED: _mend_jobs,
    Difference.STUCK_SUMMARIES: _mend_jobs,
    Difference.DEAD_MESSAGES: _forget_dead,
    Difference.EARLIER_KEYS: _forget_earlier,
}
