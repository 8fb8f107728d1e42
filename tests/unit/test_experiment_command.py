"""`pecia experiment`: what a batch's size and its wait do, simulated and on an engine that runs."""

import asyncio
import json
from subprocess import CompletedProcess
from typing import Any

import pytest

from command import run_pecia
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.simulated import IterationModel, SimulatedEngine
from pecia_workers.simulation.experiment import Cell, _asked, limits_of, measured_cell, simulated_cell
from pecia_workers.simulation.requests import Mix, drawn, poisson
from virtual_time import FixedLength

PRESCRIPTIONS = Mix(types={DocumentType.PRESCRIPTION: 1})


def typed(*words: str, engine: str = "simulated") -> CompletedProcess[str]:
    return run_pecia("experiment", *words, env={"COLUMNS": "80", "PECIA_ENGINE": engine})


def told(*words: str, engine: str = "simulated") -> list[dict[str, Any]]:
    return [json.loads(line) for line in typed(*words, "--json", engine=engine).stdout.splitlines()]


def test_every_size_meets_every_window() -> None:
    cells = told("--pages", "20")
    assert [(cell["size"], cell["window"]) for cell in cells] == [
        (size, window) for size in (1, 4, 8) for window in (0, 0.01, 0.05)
    ]


def test_larger_batches_write_more_and_a_batch_of_one_does_not_wait() -> None:
    one, patient_one, eight = told(
        "--pages", "60", "--size", "1", "--size", "8", "--window", "0", "--window", "50"
    )[:3]
    assert eight["tokens_per_s"] > 2 * one["tokens_per_s"]
    assert patient_one == one | {"window": 0.05}


@pytest.mark.parametrize(
    ("rate", "window"), [(1_000, 0.05), (100, 0.01)], ids=["the size ends it", "the window ends it"]
)
def test_a_batch_waits_about_as_long_as_the_formula_says(rate: float, window: float) -> None:
    arriving = drawn(poisson(800, rate, 1), PRESCRIPTIONS, 1)
    roomy = IterationModel(
        max_num_seqs=10_000, kv_blocks=10_000_000, base_s=1e-5, prefill_token_s=0, decode_sequence_s=0
    )
    cell = simulated_cell(arriving, roomy, limits_of(8, window, concurrent=1_000))
    assert cell.waiting == pytest.approx(min((8 - 1) / (2 * rate), window), rel=0.45)
    assert cell.waiting <= window + 1e-4


async def measured() -> tuple[Cell, Cell]:
    engine = SimulatedEngine(IterationModel(base_s=0.000_5, prefill_token_s=0), FixedLength(50))
    requests = drawn(poisson(6, 100, 1), PRESCRIPTIONS, 1)
    await engine.start()
    try:
        one, _ = await measured_cell(requests, engine, limits_of(1, 0, concurrent=1), first=0)
        six, _ = await measured_cell(requests, engine, limits_of(6, 0.05, concurrent=1), first=6)
        return one, six
    finally:
        await engine.stop()


def test_on_a_running_engine_pages_of_a_batch_run_together_and_single_ones_behind_each_other() -> None:
    one, six = asyncio.run(measured())
    assert six.waiting < one.waiting
    assert six.utilisation > one.utilisation > 0
    assert (one.failed, six.failed) == (0, 0)
    assert one.mean >= one.waiting


def test_the_engine_of_the_settings_is_asked_with_real() -> None:
    (cell,) = told(
        "--real", "--pages", "3", "--rate", "100", "--size", "1", "--window", "0", engine="simulated:instant"
    )
    assert (cell["tokens_per_s"], cell["failed"]) == (0, 0), "this one writes nothing"


@pytest.mark.parametrize("mix", [PRESCRIPTIONS, Mix()], ids=["prescriptions", "mixed"])
def test_no_two_pages_are_the_same_so_that_no_cache_knows_them(mix: Mix) -> None:
    (request,) = drawn([0.0], mix, 0)
    assert len({_asked(request, number).images[0].tobytes() for number in range(20)}) == 20
