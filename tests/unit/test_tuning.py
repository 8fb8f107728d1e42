"""Which sizes a search finds, on curves that are known and on the engine that iterates without a model."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.profiles import profile_named
from pecia_workers.engines.simulated import IterationModel, SimulatedEngine
from pecia_workers.protocol.base import Engine, EngineDeadError, EngineUnavailableError
from pecia_workers.simulation.experiment import (
    MeasuredRun,
    Point,
    Seen,
    best_sequences,
    best_step,
    fitted_speed,
    steady_rate,
    tune,
)
from pecia_workers.simulation.requests import Mix, Request, all_at_once, drawn
from pecia_workers.simulation.scenarios import simulated
from tests.shared.command import run_pecia
from tests.shared.virtual_time import FixedLength

PRESCRIPTIONS = Mix(types={DocumentType.PRESCRIPTION: 1})


class Curve:
    """Pages a second by size, and what was measured of it."""

    def __init__(self, rate: Callable[[int], float], *, steps: bool = False) -> None:
        self._rate = rate
        self._steps = steps
        self.asked: list[int] = []

    async def __call__(self, size: int) -> Point:
        self.asked.append(size)
        sequences, tokens = (32, size) if self._steps else (size, 8_192)
        return Point(sequences=sequences, batched_tokens=tokens, pages_per_s=self._rate(size))


@given(top=st.integers(8, 1_024), most=st.integers(8, 1_024), falls=st.floats(0, 0.01))
def test_the_top_of_a_hill_is_found_in_few_points(top: int, most: int, falls: float) -> None:
    curve = Curve(lambda size: min(size, top) ** 0.5 * (1 - falls) ** max(0, size - top))
    best = asyncio.run(best_sequences(curve, most))
    assert best.pages_per_s >= 0.85 * min(top, most) ** 0.5
    assert best.sequences <= most
    assert len(set(curve.asked)) == len(curve.asked) <= 14


async def test_larger_steps_are_tried_while_they_gain_and_smaller_ones_if_they_never_do() -> None:
    assert (await best_sequences(Curve(lambda size: min(size, 16)), 1_024)).sequences == 16, "the smallest"
    begun = Point(sequences=32, batched_tokens=8_192, pages_per_s=1.0)
    rising = Curve(lambda size: min(size, 16_384) / 8_192, steps=True)
    falling = Curve(lambda size: 8_192 / max(size, 4_096), steps=True)
    assert (await best_step(rising, begun)).batched_tokens == 16_384
    assert rising.asked == [16_384, 32_768]
    assert (await best_step(falling, begun)).batched_tokens == 4_096
    assert falling.asked == [16_384, 4_096, 2_048]


def test_a_steady_rate_leaves_out_how_the_engine_filled_and_emptied() -> None:
    pages = [Seen(waited=0, ran=4.0, output=1, ended=4.0 + number / 2) for number in range(24)]
    assert steady_rate(pages) == pytest.approx(2.0, rel=0.1)


def seen(of: list[Request], model: IterationModel) -> MeasuredRun:
    run = simulated(PolicyName.CONTINUOUS, of, model).run
    pages = [
        Seen(
            waited=one.started,
            ran=one.ended - one.started,
            output=one.request.output,
            prompt=one.request.prompt,
            first_token=one.first_token - one.started,
            ended=one.ended,
        )
        for one in run.served
    ]
    return MeasuredRun(pages=tuple(pages), seconds=max(page.ended for page in pages))


@pytest.mark.parametrize(
    ("base", "prefill", "each"), [(0.008, 2e-5, 1e-4), (0.03, 8e-5, 5e-4), (0.003, 5e-6, 2e-5)]
)
def test_the_speed_that_is_fitted_is_the_engines(base: float, prefill: float, each: float) -> None:
    model = IterationModel(base_s=base, prefill_token_s=prefill, decode_sequence_s=each)
    alone = seen(drawn(all_at_once(1), Mix(), 1), model)
    found = fitted_speed(alone, [seen(drawn(all_at_once(90), Mix(), number), model) for number in (2, 3)])
    assert found is not None
    assert found.base_s == pytest.approx(base, rel=0.1)
    assert found.prefill_token_s == pytest.approx(prefill, rel=0.1)
    assert found.decode_sequence_s == pytest.approx(each, rel=0.6, abs=base / 50)


async def test_an_engine_that_does_not_start_with_a_size_is_told_of_and_left() -> None:
    points: list[Point] = []

    @asynccontextmanager
    async def opened(sizes: dict[str, int]) -> AsyncIterator[Engine]:
        if sizes["max_num_batched_tokens"] > 4_096:
            raise EngineUnavailableError("There is no memory for that.")
        if sizes["max_num_batched_tokens"] < 4_096:
            raise EngineDeadError("It ended.")
        model = IterationModel(max_num_seqs=sizes["max_num_seqs"], base_s=1e-4, prefill_token_s=0)
        engine = SimulatedEngine(model, FixedLength(10))
        await engine.start()
        yield engine
        await engine.stop()

    found = await tune(opened, PRESCRIPTIONS, points.append, most=8, batched_tokens=4_096)

    assert found.points == tuple(points)
    assert [(point.batched_tokens, bool(point.failed)) for point in points] == [
        *((4_096, False),),
        *((8_192, True), (2_048, True)),
    ]
    assert found.best == points[0]


def test_the_command_writes_a_profile_and_says_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    done = run_pecia(
        *("engine", "tune", "--most", "4", "--mix", "prescription", "--output", path, "--json"),
        env={"PECIA_ENGINE": "simulated"},
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"] in found["points"]
    assert profile_named(str(path)).settings["max_num_seqs"] == found["best"]["sequences"]
    assert "pages/s" in done.stderr
    refused = run_pecia("engine", "tune", env={"PECIA_ENGINE": "tesseract"})
    assert (refused.returncode, "no sizes to tune" in refused.stderr) == (2, True)
