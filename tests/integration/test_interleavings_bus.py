"""A worker hears of cancellations whatever happens on the way."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from house import hear_nothing
from limits import WAIT_S
from pecia_schemas.messages import CANCEL_CHANNEL
from pecia_workers import direct
from pecia_workers.bus import Bus
from pecia_workers.ledger import ClaimedPart

pytestmark = pytest.mark.gate


def test_one_cancellation_that_cannot_be_passed_on_does_not_deafen_the_worker(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = uuid4(), uuid4()
    heard: list[UUID] = []

    def cancelled(job_id: UUID) -> None:
        if job_id == first and first not in heard:
            heard.append(job_id)
            raise RuntimeError
        heard.append(job_id)

    async def story() -> None:
        bus, redis = Bus(redis_url), Redis.from_url(redis_url)
        hearing = asyncio.create_task(bus.hear_cancelled(cancelled))
        try:
            await _publish_until(redis, first, heard)
            await _publish_until(redis, second, heard)
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
            await bus.close()
            await redis.aclose()

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(story())


async def _publish_until(redis: Redis, job_id: UUID, heard: list[UUID]) -> None:
    async with asyncio.timeout(10):
        while job_id not in heard:
            await redis.publish(CANCEL_CHANNEL, str(job_id))
            await asyncio.sleep(0.05)


def test_a_worker_that_stops_while_it_connects_to_redis_stops(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py may swallow a cancellation while it connects."""
    monkeypatch.setattr(direct, "_LOOK_S", 0.01)

    async def nothing(_: object) -> list[ClaimedPart]:
        return []

    async def story() -> None:
        for steps in range(20):
            bus = Bus(redis_url)
            claims = direct.DirectClaims(bus, claim=nothing, free=lambda: 0, run=hear_nothing)
            claims.start()
            await asyncio.sleep(0.01)
            for _ in range(steps):
                await asyncio.sleep(0)
            async with asyncio.timeout(WAIT_S):
                await claims.stop()
            await bus.close()

    asyncio.run(story())
