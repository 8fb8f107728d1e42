"""What only upkeep knows of the fleet as a whole: put into the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis import Redis

from pecia_schemas import Lane
from pecia_workers.broker.lists import DEAD, QUARANTINES, QUEUES
from pecia_workers.ledger.lag import Lag, Left
from pecia_workers.ledger.standing import Standing, standing
from pecia_workers.metrics import declared as metrics
from pecia_workers.upkeep.queues import count_taken, count_waiting
from pecia_workers.upkeep.steps import Stores

_EVERY_S = 5.0
_ROLES = ("ingest", "engine", "webhooks", "upkeep")


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
        self._not_before = time.monotonic() + _EVERY_S
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
    _show_lag(found.lag)


def _show_lag(lag: Lag) -> None:
    metrics.UNPUBLISHED.set(lag.unpublished)
    metrics.UNPUBLISHED_OLDEST.set(lag.unpublished_s)
    metrics.DUE_WEBHOOKS.set(lag.deliveries)
    metrics.DUE_WEBHOOKS_OLDEST.set(lag.deliveries_s)
    metrics.PAUSED_RECEIVERS.set(lag.paused)
