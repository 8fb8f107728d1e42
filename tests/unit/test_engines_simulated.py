import asyncio
import statistics

import numpy as np
import pytest

from pecia_schemas.results import Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.base import EngineError, EngineRequest
from pecia_workers.engines.simulated import DrawnLengths, IterationModel, SimulatedEngine
from virtual_time import FixedLength, VirtualClock

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


def test_the_same_seed_takes_the_same_virtual_time() -> None:
    ends = []
    for seed in (1, 1, 2):
        clock = VirtualClock()
        asyncio.run(read_pages(SimulatedEngine(lengths=DrawnLengths(seed=seed), clock=clock), 20))
        ends.append(clock.now)
    assert ends[0] == ends[1] != ends[2]


def test_real_time_passes_as_the_model_says_also_if_it_wakes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    model = IterationModel(base_s=0.01, prefill_token_s=0, decode_sequence_s=0)
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr("pecia_workers.engines.simulated.asyncio.sleep", noted)

    asyncio.run(read_pages(SimulatedEngine(model, FixedLength(30)), 4))

    assert len(waits) >= 30
    assert max(waits) <= 0.01
    assert 0 < sum(waits) < 0.01 * len(waits)


async def test_an_answer_cut_short_says_so_and_counts_its_tokens() -> None:
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


async def test_a_page_that_never_fits_is_an_error_of_its_own() -> None:
    engine = SimulatedEngine(IterationModel(kv_blocks=10), clock=VirtualClock())
    await engine.start()
    with pytest.raises(EngineError, match="KV cache"):
        await engine.generate(request(1))
    assert engine.load().waiting == 0
    await engine.stop()


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
    drawn = [DrawnLengths(seed=7)(str(n), kind) for n in range(5000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert 1 <= min(drawn) <= max(drawn) <= most
