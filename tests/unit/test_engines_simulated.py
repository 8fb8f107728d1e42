"""The engine that iterates without a model: what an iteration does, and what requests see of it."""

import asyncio
import statistics
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.results import Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.simulated import (
    BLOCK_TOKENS,
    Iteration,
    IterationModel,
    IterationScheduler,
    Sequence,
    SimulatedEngine,
    drawn_length,
)
from pecia_workers.protocol.base import EngineError, EngineRequest
from tests.shared.samples import engine_request
from tests.shared.virtual_time import FixedLength, VirtualClock

Lengths = list[tuple[int, int]]
lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 120)), min_size=1, max_size=25)
models = st.builds(
    IterationModel,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(8, 256),
    kv_blocks=st.integers(27, 60),
    chunk_tokens=st.none() | st.integers(1, 64),
    prefill_share=st.floats(0.1, 1.0),
    preemption=st.sampled_from(["recompute", "swap"]),
)


def sequences(of: Lengths) -> list[Sequence]:
    return [Sequence(id=str(n), prompt=prompt, output=output) for n, (prompt, output) in enumerate(of)]


def run(scheduler: IterationScheduler, work: list[Sequence]) -> list[Iteration]:
    for sequence in work:
        scheduler.add(sequence)
    iterations: list[Iteration] = []
    while scheduler.running or scheduler.waiting:
        iterations.append(scheduler.step())
        assert len(iterations) < 100_000, "no progress"
    return iterations


@given(model=models, of=lengths)
def test_every_sequence_finishes_once_with_all_its_tokens(model: IterationModel, of: Lengths) -> None:
    work = sequences(of)
    iterations = run(IterationScheduler(model), work)
    finished = [sequence for iteration in iterations for sequence in iteration.finished]
    assert sorted(int(sequence.id) for sequence in finished) == list(range(len(of)))
    assert all(sequence.generated == sequence.output for sequence in work)
    assert sorted(int(s.id) for iteration in iterations for s in iteration.started) == list(range(len(of)))


@given(model=models, of=lengths)
def test_no_limit_is_ever_exceeded_and_the_oldest_always_advances(model: IterationModel, of: Lengths) -> None:
    scheduler, work = IterationScheduler(model), sequences(of)
    for sequence in work:
        scheduler.add(sequence)

    while scheduler.running or scheduler.waiting:
        oldest = next(sequence for sequence in work if not sequence.is_finished)
        before = oldest.computed + oldest.generated
        iteration = scheduler.step()
        assert oldest.is_finished or oldest.computed + oldest.generated > before
        held = sum(sequence.blocks for sequence in scheduler.running)
        assert 0 <= held <= model.kv_blocks
        assert scheduler.load.kv_used == pytest.approx(held / model.kv_blocks)
        assert all(s.computed <= s.blocks * BLOCK_TOKENS for s in scheduler.running)
        assert len(scheduler.running) <= model.max_num_seqs
        assert iteration.prefilled <= model.prefill_budget(0)
        done = iteration.prefilled + iteration.decoded
        assert 0 < done <= model.max_num_batched_tokens or iteration.preempted

    assert scheduler.load.kv_used == 0


@given(model=models, of=lengths, most=st.integers(1, 50))
def test_to_coast_comes_to_what_single_steps_come_to(model: IterationModel, of: Lengths, most: int) -> None:
    expected = run(IterationScheduler(model), sequences(of))
    scheduler = IterationScheduler(model)
    for sequence in sequences(of):
        scheduler.add(sequence)

    ended, seconds = [], 0.0
    while scheduler.running or scheduler.waiting:
        seconds += model.duration(0, len(scheduler.running)) * scheduler.coast(most)
        iteration = scheduler.step()
        seconds += iteration.duration
        ended += [sequence.id for sequence in iteration.finished]

    assert ended == [sequence.id for iteration in expected for sequence in iteration.finished]
    assert seconds == pytest.approx(sum(iteration.duration for iteration in expected))


def test_a_long_prompt_is_read_in_chunks_beside_decoding_sequences() -> None:
    scheduler = IterationScheduler(IterationModel(max_num_batched_tokens=100))
    short, long = Sequence(id="short", prompt=10, output=50), Sequence(id="long", prompt=250, output=1)
    iterations = run(scheduler, [short, long])
    assert [(i.prefilled, i.decoded) for i in iterations[:3]] == [(100, 0), (99, 1), (61, 1)]
    assert iterations[2].finished == (long,)
    chunked = run(IterationScheduler(IterationModel(chunk_tokens=512)), sequences([(2836, 2)]))
    assert [i.prefilled for i in chunked] == [512, 512, 512, 512, 512, 276, 0], "ceil(2836 / 512) = 6"


def test_prompts_take_their_share_of_an_iteration_and_writing_goes_on_beside_them() -> None:
    model = IterationModel(max_num_batched_tokens=100, prefill_share=0.5)
    writing, long = Sequence(id="1", prompt=10, output=50), Sequence(id="2", prompt=120, output=1)
    iterations = run(IterationScheduler(model), [writing, long])
    assert [(i.prefilled, i.decoded) for i in iterations[:4]] == [(50, 0), (50, 1), (30, 1), (0, 1)]
    budget = IterationModel(chunk_tokens=512, prefill_share=0.5).prefill_budget
    assert [budget(decoding) for decoding in (0, 16_000, 16_384)] == [512, 384, 1], "chunk, rest, least"


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_without_blocks_the_newest_is_redone_or_swapped(preemption: Literal["recompute", "swap"]) -> None:
    model = IterationModel(kv_blocks=4, preemption=preemption, swap_block_s=1.0)
    old, new = Sequence(id="old", prompt=31, output=20), Sequence(id="new", prompt=31, output=20)
    iterations = run(IterationScheduler(model), [old, new])
    assert sum(i.preempted for i in iterations) == 1
    assert [s for i in iterations for s in i.finished] == [old, new]
    is_swapped = preemption == "swap"
    assert (sum(i.prefilled for i in iterations) == 62) is is_swapped, "each prompt is read once"
    assert sum(i.duration > 1 for i in iterations) == (2 if is_swapped else 0), "out, and in again"


def test_a_removed_sequence_frees_its_blocks() -> None:
    scheduler = IterationScheduler(IterationModel())
    running, waiting = Sequence(id="1", prompt=100, output=9), Sequence(id="2", prompt=100, output=9)
    scheduler.add(running)
    scheduler.step()
    scheduler.add(waiting)
    scheduler.remove(running)
    scheduler.remove(waiting)
    assert (scheduler.load.kv_used, scheduler.running, list(scheduler.waiting)) == (0, [], [])


def test_an_iteration_takes_time_for_what_it_computes() -> None:
    model = IterationModel(base_s=1.0, prefill_token_s=0.01, decode_sequence_s=0.1)
    iterations = run(IterationScheduler(model), [Sequence(id="1", prompt=100, output=2)])
    assert [i.duration for i in iterations] == [pytest.approx(2.0), pytest.approx(1.1)]


PAGE = np.zeros((1754, 1240, 3), dtype=np.uint8)


def request(number: int, most: int | None = None) -> EngineRequest:
    workload = DocumentType.PRESCRIPTION
    return engine_request(str(number), images=(PAGE,), workload=workload, max_output_tokens=most)


async def read_pages(engine: SimulatedEngine, count: int) -> None:
    await engine.start()
    try:
        await asyncio.gather(*(engine.generate(request(n)) for n in range(count)))
    finally:
        await engine.stop()


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
    whole, cut = await asyncio.gather(engine.generate(request(1)), engine.generate(request(2, most=20)))
    await engine.stop()
    assert (whole.verdict, whole.usage.output) == (Verdict.OK, 50)
    assert (cut.verdict, cut.usage.output) == (Verdict.TRUNCATED, 20)
    assert (cut.first_token_s or 0) > 0
    assert 0 < cut.usage.image < cut.usage.prompt


async def test_a_page_that_never_fits_is_an_error_of_its_own() -> None:
    engine = SimulatedEngine(IterationModel(kv_blocks=10), clock=VirtualClock())
    await engine.start()
    with pytest.raises(EngineError, match="longer than the KV cache"):
        await engine.generate(request(1))
    assert engine.load().waiting == 0
    await engine.stop()


@pytest.mark.parametrize(
    ("kind", "mean", "most"),
    [
        *(("prescription", 200, 500), ("diagnosis", 800, 2000), ("lab_result", 400, 1000)),
        *(("chart", 2000, 5000), ("mixed", 600, 5000)),
    ],
)
def test_drawn_lengths_follow_the_medical_workload(kind: str, mean: float, most: int) -> None:
    drawn = [drawn_length(str(n), kind, seed=7) for n in range(5000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert 1 <= min(drawn) <= max(drawn) <= most
