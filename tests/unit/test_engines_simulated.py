from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np
import pytest

from pecia_schemas import DocumentType, Verdict
from pecia_workers.engines import EngineError, EngineRequest
from pecia_workers.engines.iteration import IterationModel
from pecia_workers.engines.output_lengths import DrawnLengths, FixedLength
from pecia_workers.engines.simulated import InstantEngine, SimulatedEngine, VirtualClock

PAGE = np.zeros((1754, 1240, 3), dtype=np.uint8)


def request(number: int, most: int | None = None) -> EngineRequest:
    return EngineRequest(
        id=str(number), images=(PAGE,), workload=DocumentType.PRESCRIPTION, max_output_tokens=most
    )


async def read_pages(engine: SimulatedEngine, count: int) -> None:
    await engine.start()
    try:
        await asyncio.gather(*(engine.generate(request(n)) for n in range(count)))
    finally:
        await engine.stop()


def test_virtual_time_runs_far_faster_than_the_clock_on_the_wall() -> None:
    clock = VirtualClock()
    begun = time.monotonic()

    asyncio.run(read_pages(SimulatedEngine(clock=clock), 100))

    assert clock.now > 10
    assert time.monotonic() - begun < clock.now / 5


def test_the_same_seed_takes_the_same_virtual_time() -> None:
    ends = []
    for seed in (1, 1, 2):
        clock = VirtualClock()
        asyncio.run(read_pages(SimulatedEngine(lengths=DrawnLengths(seed=seed), clock=clock), 20))
        ends.append(clock.now)

    assert ends[0] == ends[1] != ends[2]


def test_real_time_passes_as_the_model_says() -> None:
    model = IterationModel(base_s=0.01, prefill_token_s=0, decode_sequence_s=0)

    async def story() -> float:
        engine = SimulatedEngine(model, FixedLength(30))
        begun = time.monotonic()
        await read_pages(engine, 4)
        return time.monotonic() - begun

    assert 0.29 < asyncio.run(story()) < 0.6


def test_continuous_batching_reads_side_by_side() -> None:
    ends = []
    for pages in (1, 16):
        clock = VirtualClock()
        asyncio.run(read_pages(SimulatedEngine(lengths=FixedLength(200), clock=clock), pages))
        ends.append(clock.now)

    assert ends[1] < 2 * ends[0]


def test_an_answer_cut_short_says_so_and_counts_its_tokens() -> None:
    async def story() -> None:
        engine = SimulatedEngine(lengths=FixedLength(50), clock=VirtualClock())
        await engine.start()
        whole = await engine.generate(request(1))
        cut = await engine.generate(request(2, most=20))
        await engine.stop()
        assert (whole.verdict, whole.usage.output) == (Verdict.OK, 50)
        assert (cut.verdict, cut.usage.output) == (Verdict.TRUNCATED, 20)
        assert cut.first_token_s is not None
        assert cut.first_token_s > 0
        assert 0 < cut.usage.image < cut.usage.prompt

    asyncio.run(story())


def test_a_page_that_never_fits_is_an_error_of_its_own() -> None:
    async def story() -> None:
        engine = SimulatedEngine(IterationModel(kv_blocks=10), clock=VirtualClock())
        await engine.start()
        with pytest.raises(EngineError, match="KV cache"):
            await engine.generate(request(1))
        assert engine.load().waiting == 0
        await engine.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("kind", "mean", "most"),
    [
        (DocumentType.PRESCRIPTION, 200, 500),
        (DocumentType.DIAGNOSIS, 800, 2000),
        (DocumentType.LAB_RESULT, 400, 1000),
        (DocumentType.CHART, 2000, 5000),
        (DocumentType.MIXED, 600, 5000),
    ],
)
def test_drawn_lengths_follow_the_medical_workload(kind: DocumentType, mean: float, most: int) -> None:
    drawn = [DrawnLengths(seed=7).tokens(str(n), kind) for n in range(5000)]

    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert 1 <= min(drawn) <= max(drawn) <= most


def test_the_instant_engine_costs_microseconds() -> None:
    async def story() -> float:
        engine, page = InstantEngine(), request(1)
        begun = time.process_time()
        for _ in range(10_000):
            await engine.generate(page)
        return (time.process_time() - begun) / 10_000

    assert asyncio.run(story()) < 20e-6
