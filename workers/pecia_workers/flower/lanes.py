"""The fleet's lists as Flower's broker page shows them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pecia_schemas import Lane, Stage
from pecia_schemas.connecting import outage_suppressed
from pecia_schemas.messages import quarantine_name, queue_name
from pecia_workers.ledger.database import open_for_questions
from pecia_workers.ledger.standing import left_in_postgres
from pecia_workers.queue.lists import connect
from pecia_workers.upkeep.watching import count_taken, count_waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pecia_schemas.settings.base import ConnectionSettings


class Lanes:
    """Looks into Redis and Postgres: Flower's own look knows no parts that wait behind a turn, and none in flight."""

    def __init__(self, settings: ConnectionSettings, consumers: Mapping[str, int]) -> None:
        self._redis_url = settings.redis_url.get_secret_value()
        self._database_url = settings.database_url.get_secret_value()
        self._consumers = consumers

    async def queues(self, _names: Iterable[str]) -> list[dict[str, Any]]:
        """Return a row for each lane, whether or not it is served, and for each quarantine that holds something.

        By Flower's names: `messages` are all parts, `messages_ready` those that wait, `messages_unacknowledged` those
        in flight. What waits in Postgres for room in Redis is missing while Postgres is away. Raises
        `redis.RedisError`.
        """
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[dict[str, Any]]:
        with connect(self._redis_url) as redis:
            waiting, taken = count_waiting(redis), count_taken(redis)
        with outage_suppressed(), open_for_questions(self._database_url).connect() as connection:
            for left in left_in_postgres(connection):
                waiting[queue_name(left.stage, left.lane)] += left.parts
        rows = [(name, quarantine, waiting[name], taken[name]) for name, quarantine in _names()]
        return [
            {
                "name": name,
                "messages": ready + held,
                "messages_ready": ready,
                "messages_unacknowledged": held,
                "consumers": None if quarantine else self._consumers.get(name, 0),
            }
            for name, quarantine, ready, held in rows
            if ready or held or not quarantine
        ]


def _names() -> Iterator[tuple[str, bool]]:
    """Yield every list, stage by stage in the order of service, and whether it is a quarantine."""
    for stage in Stage:
        for lane in Lane:
            yield queue_name(stage, lane), False
        yield quarantine_name(stage), True
