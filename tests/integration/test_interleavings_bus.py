"""A worker that looks after Redis leaves it whatever happens on the way."""

import asyncio

import pytest

from house import hear_nothing
from limits import WAIT_S
from pecia_workers.ledger.commit import ClaimedPart
from pecia_workers.queue.bus import Bus
from pecia_workers.worker import attempts, runtime

pytestmark = pytest.mark.gate


async def test_a_worker_may_stop_while_it_connects(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py may swallow a cancellation while it connects."""
    monkeypatch.setattr(runtime, "_LOOK_S", 0.01)
    monkeypatch.setattr(attempts, "_AGAIN_S", 0.01)

    async def nothing(_: object) -> list[ClaimedPart]:
        return []

    for steps in range(20):
        bus = Bus(redis_url)
        claims = runtime.DirectClaims(bus, claim=nothing, free=lambda: 0, run=hear_nothing)
        claims.start()
        await asyncio.sleep(0.01)
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await claims.stop()
        await bus.close()
