"""How many engines a load needs, by the simulator."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.plan import EnginePlan, plan_engine
from pecia_workers.engines.profiles import profile_named, profile_toml
from pecia_workers.engines.speed import Speed
from pecia_workers.simulation.requests import Mix, drawn, poisson
from pecia_workers.simulation.scenarios import plan_capacity, planned_model, simulated
from pecia_workers.witness.witnesses import witness_cpu_s
from tests.shared.command import run_pecia

pytestmark = pytest.mark.gate


def typed(*words: str) -> CompletedProcess[str]:
    return run_pecia("plan", *words, env={"COLUMNS": "100"})


def told(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(typed(*words, "--json").stdout)
    return found


def planned(gpu: str, **settings: Any) -> EnginePlan:
    profile = profile_named(gpu)
    return plan_engine(WorkerSettings(engine="vllm", **settings), profile, profile.memory_bytes)


def test_a_plan_is_fast_enough_when_it_is_simulated() -> None:
    found = told("--rate", "5", "--gpu", "l4", "--latency", "40", "--price", "0.8")
    assert found["simulated"]["in_system"]["mean"] <= 40
    assert found["cost_per_million_pages"] == pytest.approx(found["gpus"] * 0.8 * 1e6 / 5 / 3600)
    assert found["witness_cores"] == pytest.approx(5 * witness_cpu_s())
    assert found["in_flight"] == pytest.approx(5 * found["simulated"]["in_system"]["mean"])


@pytest.mark.parametrize(("latency", "rate"), [(30.0, 5.0), (120.0, 5.0), (120.0, 0.1)])
def test_one_engine_fewer_would_be_too_slow(latency: float, rate: float) -> None:
    model, speed = planned_model(planned("l4"))
    fleet = plan_capacity(model, speed, Mix(), rate=rate, latency=latency)
    assert fleet is not None
    assert fleet.simulated.in_system.mean <= latency
    if fleet.engines > 1:
        arriving = drawn(poisson(1_000, rate / (fleet.engines - 1), 0), Mix(), 1)
        fewer = simulated(PolicyName.CONTINUOUS, arriving, model).figures
        # Where the arithmetic rules it out, nothing was simulated: it counts no ends of the run.
        assert fewer.in_system.mean > 0.9 * latency


def test_a_plan_prints_what_it_rests_on() -> None:
    printed = typed("--rate", "5", "--gpu", "a100", "--price", "2").stdout
    words = ("A100", "Qwen2.5-VL-7B", "estimate", "in flight", "KV cache", "a million pages")
    parts = (*words, f"{5 * witness_cpu_s():.1f} CPU cores")
    assert [part for part in parts if part not in printed] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--latency", "2", "--gpu", "l4"), 1, "No number of these GPUs"),
        (("--gpu", "h10"), 2, "Did you mean h100"),
        (("--gpu", "gpu-24"), 2, "Nothing is known of the speed"),
        (("--gpu", "t4", "--model", "Qwen/Qwen3-VL-8B-Instruct"), 2, "pecia engine plan"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(words: tuple[str, ...], code: int, said: str) -> None:
    result = typed("--rate", "1", *words)
    assert result.returncode == code
    assert said in result.stderr


def test_a_measured_speed_goes_before_the_data_sheets(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    settings = {"model": "Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "max_num_seqs": 40}
    speed = Speed(base_s=0.01, prefill_token_s=1e-5, decode_sequence_s=1e-4)
    path.write_text(
        profile_toml(profile_named("l4").model_copy(update={"settings": settings, "speed": speed}))
    )
    estimated, measured = (told("--rate", "5", "--gpu", gpu) for gpu in ("l4", str(path)))
    assert ("estimate" in estimated["speed_by"], "tune" in measured["speed_by"]) == (True, True)
    assert measured["speed"]["base_s"] == 0.01
    assert measured["gpus"] < estimated["gpus"]
