"""An urgent page behind many others in a real engine, by the Batcher's rules of admission."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from offline import asked
from pecia_schemas.states import Lane
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.protocol.base import Engine
from tests.shared.asking_openai import started
from tests.shared.limits import WAIT_S

BULK = 64


def test_an_urgent_page_behind_64_bulk_pages_ends_before_nine_tenths_of_them(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path
) -> None:
    engine = make_vllm(endless_checkpoint, max_num_seqs=BULK + 8)
    unread: list[int] = []

    async def read_all() -> list[str]:
        policy = policy_named(PolicyName.CONTINUOUS, BatchLimits())
        batcher = Batcher(engine, policy, LearnedLengths(0.5), priced=lambda *_: None)
        ended: list[str] = []

        async def read(number: int, lane: Lane) -> None:
            most = 40 + number % 60
            await batcher.generate(asked(number, priority=lane.rank, max_output_tokens=most))
            ended.append(lane)

        bulk = [asyncio.create_task(read(number, Lane.BULK)) for number in range(BULK)]
        async with asyncio.timeout(WAIT_S):
            while engine.load().running < BULK // 4:  # noqa: ASYNC110  the engine has no such event
                await asyncio.sleep(0.001)
        unread.append(BULK - policy.running)
        await read(BULK, Lane.URGENT)
        assert len(ended) - 1 < 0.9 * BULK
        await asyncio.gather(*bulk)
        return ended

    with started(engine) as runner:
        ended = runner.run(read_all())
    assert ended.count(Lane.BULK) == BULK
    assert unread[0] > 0, "all bulk pages entered at once"
