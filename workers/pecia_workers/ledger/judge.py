"""The failure detector: a worker is dead if its heartbeat stood still over a lease of uninterrupted watching.

Or at once, if its process is gone from this machine. Only the judge's own monotonic clock is read. An outage of
Postgres interrupts the watch, and so does a Postgres that is read-only: for one lease after it no worker is taken for
dead, and one that lives has beaten since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_workers.ledger.recovery import Recovered, find_orphaned, requeue_orphaned
from pecia_workers.ledger.workers import is_gone
from pecia_workers.metrics import declared as metrics

log = structlog.get_logger(__name__)

_PARTS = 1_000

# While no beat can be written, one that stands still says nothing.
_BEATS = text(
    "SELECT name, seen_at FROM workers WHERE stopped_at IS NULL AND (lost_at IS NULL OR lost_at < seen_at)"
    " AND cardinality(stages) > 0 AND current_setting('transaction_read_only') = 'off'"
)
_BURY = text(
    "UPDATE workers SET lost_at = greatest(now(), seen_at)"
    " WHERE name = :name AND seen_at = :seen_at AND stopped_at IS NULL"
)
_ALIVE = text(
    "SELECT name FROM workers WHERE name = ANY(CAST(:names AS text[])) AND stopped_at IS NULL"
    " AND (lost_at IS NULL OR lost_at < seen_at)"
)


class Watch:
    """Tells whose beats stand still. Looks more than a third of a lease apart begin the watch anew."""

    def __init__(self, lease: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease.total_seconds()
        self._clock = clock
        self._looked_at: float | None = None
        self._seen: dict[str, tuple[datetime, float]] = {}

    def silent(self, beats: Mapping[str, datetime]) -> list[str]:
        """Return the workers whose beat is the same as one lease ago."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at > self._lease_s / 3:
            self._seen.clear()
        self._looked_at = now
        former = self._seen
        self._seen = {
            name: former[name] if name in former and former[name][0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since >= self._lease_s]


class Judge:
    """Takes workers for dead, and their parts back. Any number may judge at a time."""

    def __init__(self, database: AsyncEngine, lease: timedelta, *, max_deaths: int) -> None:
        self._database = database
        self._watch = Watch(lease)
        self._max_deaths = max_deaths

    async def judge(self) -> Recovered:
        """Look once; return what became of the parts of workers that are gone."""
        async with self._database.connect() as connection:
            beats = {row.name: row.seen_at for row in await connection.execute(_BEATS)}
        for name in {*self._watch.silent(beats), *filter(is_gone, beats)}:
            await self._bury(name, beats[name])
        orphaned = await find_orphaned(self._database, limit=_PARTS)
        if not orphaned:
            return Recovered()
        return await requeue_orphaned(self._database, orphaned, max_deaths=self._max_deaths)

    async def _bury(self, name: str, seen_at: datetime) -> None:
        async with self._database.begin() as connection:
            buried = await connection.execute(_BURY, {"name": name, "seen_at": seen_at})
        if buried.rowcount:
            metrics.WORKERS_LOST.inc()
            log.warning("worker_lost", worker=name)


async def gone_of(database: AsyncEngine, workers: set[str]) -> set[str]:
    """Return those of the workers that have stopped, were taken for dead, or are unknown."""
    if not workers:
        return set()
    async with database.connect() as connection:
        alive = set((await connection.execute(_ALIVE, {"names": list(workers)})).scalars())
    return workers - alive
