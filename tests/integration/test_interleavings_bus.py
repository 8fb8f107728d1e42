"""A worker hears of cancellations whatever happens on the way."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from pecia_schemas.messages import CANCEL_CHANNEL
from pecia_workers.bus import Bus

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
