"""An urgent page behind many others in a real engine that reads, by the Batcher's rules of admission."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from offline import INSTRUCTION
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.media.samples import accuracy
from pecia_workers.protocol.base import Engine, EngineRequest
from tests.shared.asking_openai import started
from tests.shared.limits import until

READER = Path(__file__).parent / "reader"
BULK = 64
SLIPS = sorted(READER.glob("slips/right-*.png"))
GOOD = 0.95
"""Of a text's characters: in company a letter may turn into one that is almost as likely."""


def says(number: int) -> str:
    return SLIPS[number % len(SLIPS)].with_suffix(".txt").read_text()


def asked(number: int, lane: Lane) -> EngineRequest:
    pixels = np.asarray(Image.open(SLIPS[number % len(SLIPS)]).convert("RGB")).copy()
    pixels[0, 0] = number  # no two are one to the caches
    return EngineRequest(
        id=str(number),
        images=(pixels,),
        workload=DocumentType.PRESCRIPTION,
        instruction=INSTRUCTION,
        priority=lane.rank,
        max_output_tokens=400,
    )


@pytest.mark.usefixtures("_avx512")
def test_an_urgent_page_is_read_before_nine_tenths_of_64_bulk_pages(make_vllm: Callable[..., Engine]) -> None:
    engine = make_vllm(READER, max_num_seqs=BULK + 8)
    texts: dict[int, str] = {}
    unread: list[int] = []

    async def read_all() -> None:
        policy = policy_named(PolicyName.CONTINUOUS, BatchLimits())
        batcher = Batcher(engine, policy, LearnedLengths(0.5), priced=lambda *_: None)

        async def read(number: int, lane: Lane) -> None:
            texts[number] = (await batcher.generate(asked(number, lane))).text

        bulk = [asyncio.create_task(read(number, Lane.BULK)) for number in range(BULK)]
        await until(lambda: engine.load().running >= BULK // 8)
        unread.append(BULK - policy.running)
        await read(BULK, Lane.URGENT)
        assert len(texts) - 1 < 0.9 * BULK
        await asyncio.gather(*bulk)

    with started(engine) as runner:
        runner.run(read_all())
    assert unread[0] > 0, "all bulk pages entered at once"
    assert [number for number in range(BULK + 1) if accuracy(texts[number], says(number)) < GOOD] == []
