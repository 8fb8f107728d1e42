"""How many engines a load needs: the formulas beside each other, and beside the simulator."""

import json
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.profiles import Speed, plan_engine, profile_named, speed_toml
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.simulation.capacity import (
    Demand,
    cost_per_million,
    engines_needed,
    erlang_c,
    load_of,
    places_in,
    speed_of,
    station,
)
from pecia_workers.simulation.requests import Mix, all_at_once, drawn, poisson
from pecia_workers.simulation.scenarios import simulated
from pecia_workers.witness.witnesses import witness_cpu_s
from tests.shared.command import run_pecia

pytestmark = pytest.mark.gate

MIXED = Mix()
MIXES = [MIXED, Mix(types={DocumentType.PRESCRIPTION: 3, DocumentType.CHART: 1})]


def typed(*words: str) -> CompletedProcess[str]:
    return run_pecia("plan", *words, env={"COLUMNS": "100"})


def told(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(typed(*words, "--json").stdout)
    return found


def load(mix: Mix) -> Demand:
    return load_of(drawn(all_at_once(2_000), mix, 0))


MIXED_LOAD = load(MIXED)


def speed(gpu: str, held: float = 3_500, **settings: Any) -> IterationModel:
    asked = WorkerSettings(engine="vllm", **settings)
    profile = profile_named(gpu)
    planned = plan_engine(asked, profile, profile.memory_bytes)
    return speed_of(planned, profile, replace(MIXED_LOAD, held=held))


@pytest.mark.parametrize(
    ("places", "offered", "taken"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (8, 0.0, 0.0), (10, 8.0, 0.4092)]
)
def test_the_probability_of_no_free_place_is_erlangs(places: int, offered: float, taken: float) -> None:
    assert erlang_c(places, offered) == pytest.approx(taken, abs=0.0001)


@given(rate=st.floats(0.01, 0.5))
def test_pages_at_a_time_and_seconds_keep_littles_law(rate: float) -> None:
    found = station(IterationModel(), MIXED_LOAD, rate)
    assert found is not None
    assert found.in_engine == pytest.approx(rate * found.service)


@pytest.mark.parametrize("mix", MIXES, ids=["mixed", "short and long"])
@pytest.mark.parametrize("gpu", ["t4", "l4", "a100", "h100"])
def test_the_formulas_come_near_what_is_simulated(gpu: str, mix: Mix) -> None:
    pages = load(mix)
    model = speed(gpu, pages.held)
    found = engines_needed(model, pages, 10.0, 60.0)
    assert found is not None
    rate = 8.0 / found[0]  # near the most that it can do a wait is a matter of luck
    one = station(model, pages, rate)
    assert one is not None
    seen = simulated(PolicyName.CONTINUOUS, drawn(poisson(1_500, rate, 0), mix, 0), model).figures

    assert one.service == pytest.approx(seen.service.mean, rel=0.08)
    assert one.in_system == pytest.approx(seen.in_system.mean, rel=0.1)


def test_one_engine_fewer_would_be_too_slow() -> None:
    model, pages = speed("l4"), MIXED_LOAD
    found = engines_needed(model, pages, 5.0, 40.0)
    assert found is not None
    fewer = station(model, pages, 5.0 / (found[0] - 1))
    assert found[1].in_system <= 40
    assert fewer is None or fewer.in_system > 40


def test_a_small_cache_leaves_fewer_places() -> None:
    assert places_in(IterationModel(kv_blocks=100_000), MIXED_LOAD) == 32
    assert places_in(IterationModel(kv_blocks=1_000), MIXED_LOAD) == int(16_000 / MIXED_LOAD.held)


def test_a_faster_gpu_is_faster_and_two_that_share_a_model_are_twice_as_fast() -> None:
    l4, h100, two = speed("l4"), speed("h100"), speed("l4", tensor_parallel_size=2)
    assert h100.base_s < l4.base_s / 5
    assert h100.prefill_token_s < l4.prefill_token_s / 5
    assert two.prefill_token_s == pytest.approx(l4.prefill_token_s / 2)


def test_a_plan_is_fast_enough_when_it_is_simulated() -> None:
    found = told("--rate", "5", "--gpu", "l4", "--latency", "40", "--price", "0.8")
    assert found["simulated"]["in_system"]["mean"] <= 40
    assert found["cost_per_million_pages"] == pytest.approx(found["gpus"] * 0.8 * 1e6 / 5 / 3600)
    assert found["kv_bytes"] <= found["kv_budget"]
    assert found["witness_cores"] == pytest.approx(5 * witness_cpu_s())
    assert found["in_flight"] == pytest.approx(5 * (found["one"]["service"] + found["one"]["waiting"]))


def test_more_sequences_and_more_time_are_priced_beside_what_was_asked_the_cheapest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PECIA_MAX_NUM_SEQS", "16")
    found = told("--rate", "5", "--gpu", "l4", "--price", "0.8", "--latency", "30")
    engines = [one["engines"] for one in found["choices"]]
    asked = next(one for one in found["choices"] if (one["sequences"], one["latency"]) == (16, 30))

    assert engines == sorted(engines)
    assert 2 * engines[0] < asked["engines"] <= found["engines"]
    for one in found["choices"]:
        model = replace(IterationModel(**found["speed"]), max_num_seqs=one["sequences"])
        assert one["sequences"] <= places_in(model, Demand(**found["load"]))
        needed = engines_needed(model, Demand(**found["load"]), 5, one["latency"])
        assert needed is not None
        assert needed[0] == one["engines"]
        assert one["cost_per_million_pages"] == pytest.approx(cost_per_million(one["gpus"], 5, 0.8))


def test_a_plan_prints_what_it_rests_on() -> None:
    printed = typed("--rate", "5", "--gpu", "a100", "--price", "2").stdout
    words = ("A100", "Qwen2.5-VL-7B", "estimate", "in flight", "KV cache", "a million pages", "(as chosen)")
    parts = (*words, f"{5 * witness_cpu_s():.1f} CPU cores")
    assert [part for part in parts if part not in printed] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--latency", "2", "--gpu", "l4"), 1, "No number of these GPUs"),
        (("--gpu", "h10"), 2, "Did you mean h100"),
        (("--gpu", "gpu-24"), 2, "speed"),
        (("--gpu", "t4", "--model", "Qwen/Qwen3-VL-8B-Instruct"), 2, "pecia engine plan"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(words: tuple[str, ...], code: int, said: str) -> None:
    result = typed("--rate", "1", *words)
    assert result.returncode == code
    assert said in result.stderr


def test_a_measured_speed_goes_before_the_data_sheets(tmp_path: Path) -> None:
    path = tmp_path / "speed.toml"
    path.write_text(speed_toml(Speed(base_s=0.01, prefill_token_s=1e-5, decode_sequence_s=1e-4)))
    estimated, measured = (told("--rate", "5", "--gpu", "l4", *more) for more in ((), ("--speed", str(path))))
    assert (estimated["measured"], measured["measured"]) == (False, True)
    assert measured["speed"]["base_s"] == 0.01
    assert measured["gpus"] < estimated["gpus"]


def test_with_ones_own_service_time_littles_law_says_how_many_gpus() -> None:
    found = told("--rate", "5", "--gpu", "l4", "--service", "87", "--price", "1")
    assert (found["in_flight"], found["gpus"]) == (5 * 87, -(-435 // found["places"]))
    assert found["cost_per_million_pages"] == pytest.approx(found["gpus"] * 1e6 / 5 / 3600)
    assert (
        f"{found['places']} pages at a time" in typed("--rate", "5", "--gpu", "l4", "--service", "87").stdout
    )
