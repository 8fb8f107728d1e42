"""How fast an engine is measured to be, and the pages at a time that follow: on one that has no model."""

import json
from pathlib import Path
from typing import Any

import pytest

from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.profiles import profile_named
from pecia_workers.engines.simulated import IterationModel, SimulatedEngine
from pecia_workers.engines.speed import knee
from pecia_workers.protocol.base import EngineRequest, Generation
from pecia_workers.simulation.requests import Mix, Request, drawn
from pecia_workers.simulation.scenarios import simulated
from pecia_workers.simulation.tuning import (
    MeasuredRun,
    Seen,
    Tuned,
    _request_of,
    fitted_speed,
    steady_rate,
    tune,
)
from tests.shared.command import run_pecia
from tests.shared.virtual_time import FixedLength

PRESCRIPTIONS = Mix(types={DocumentType.PRESCRIPTION: 1})


def test_a_steady_rate_leaves_out_how_the_engine_filled_and_emptied() -> None:
    pages = [Seen(ran=4.0, output=1, ended=4.0 + number / 2) for number in range(24)]
    assert steady_rate(pages) == pytest.approx(2.0, rel=0.1)


def seen(of: list[Request], model: IterationModel) -> MeasuredRun:
    run = simulated(PolicyName.CONTINUOUS, of, model).run
    pages = [
        Seen(
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
    alone = seen(drawn([0.0], Mix(), 1), model)
    found = fitted_speed(alone, [seen(drawn([0.0] * 90, Mix(), number), model) for number in (2, 3)])
    assert found is not None
    assert found.base_s == pytest.approx(base, rel=0.1)
    assert found.prefill_token_s == pytest.approx(prefill, rel=0.1)
    assert found.decode_sequence_s == pytest.approx(each, rel=0.6, abs=base / 50)


class Counted(SimulatedEngine):
    """Notes how many requests are in it at a time."""

    most = 0

    async def generate(self, request: EngineRequest) -> Generation:
        self.most = max(self.most, len(self._in_flight) + 1)
        return await super().generate(request)


async def tuned(engine: SimulatedEngine, **limits: Any) -> Tuned:
    await engine.start()
    try:
        return await tune(engine, PRESCRIPTIONS, lambda _: None, **limits)
    finally:
        await engine.stop()


async def test_the_fewest_pages_are_chosen_from_which_on_more_gain_little_and_were_measured() -> None:
    model = IterationModel(max_num_seqs=64, base_s=0.002, prefill_token_s=2e-6, decode_sequence_s=1e-5)
    found = await tuned(Counted(model, FixedLength(20)), most=64)
    assert found.speed is not None
    assert {8, 32, 64} <= {point.sequences for point in found.points}
    assert found.best in found.points
    assert found.best.sequences <= knee(found.speed, found.load, 64)


async def test_no_more_pages_run_at_a_time_than_are_to_be_tried() -> None:
    model = IterationModel(max_num_seqs=64, base_s=0.001, prefill_token_s=0, decode_sequence_s=0)
    engine = Counted(model, FixedLength(20))
    assert [point.sequences for point in (await tuned(engine, most=4)).points] == [4]
    assert engine.most == 4


@pytest.mark.parametrize("mix", [PRESCRIPTIONS, Mix()], ids=["prescriptions", "mixed"])
def test_no_two_pages_are_the_same_so_that_no_cache_knows_them(mix: Mix) -> None:
    (request,) = drawn([0.0], mix, 0)
    assert len({_request_of(request, number).images[0].tobytes() for number in range(20)}) == 20


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
