"""The arithmetic of an engine on a card: beside what an H200 did, beside the simulator, and what follows of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.policies import PolicyName
from pecia_workers.engines.models import Model
from pecia_workers.engines.plan import EnginePlan, plan_engine
from pecia_workers.engines.profiles import profile_file, profile_named
from pecia_workers.engines.speed import KNEE, PageLoad, Speed, knee, pace, stored_as
from pecia_workers.simulation.requests import Request
from pecia_workers.simulation.scenarios import planned_model, simulated

AWQ = "Qwen/Qwen2.5-VL-7B-Instruct-AWQ"
PAGE = PageLoad(prompt=2_879, output=400, held=3_079)


def plan(gpu: str, **settings: Any) -> EnginePlan:
    profile = profile_named(gpu)
    return plan_engine(WorkerSettings(engine="vllm", **settings), profile, profile.memory_bytes)


def pages(count: int) -> list[Request]:
    return [
        Request(id=str(number), arrived=at, workload=DocumentType.MIXED, prompt=2_879, output=400)
        for number, at in enumerate([0.0] * count)
    ]


@pytest.mark.parametrize(
    ("measured", "count", "figure"),
    [(6.17, 320, "LLM.chat, pages/s"), (6.47, 320, "a fleet, pages/s"), (1 / 1.95, 1, "alone: 1.9 to 2.0 s")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_simulated_h200_is_within_a_tenth_of_a_real_one(measured: float, count: int, figure: str) -> None:
    """320 pages at once, 2,879 tokens in and 400 out, Qwen2.5-VL-7B-AWQ, all that fit: 2026-11-26."""
    model, _ = planned_model(plan("h200", model=AWQ, max_num_seqs=615))
    found = simulated(PolicyName.CONTINUOUS, pages(count), model).figures
    assert found.requests_per_s == pytest.approx(measured, rel=0.1), figure


def test_the_memory_that_is_planned_for_the_h200_is_what_vllm_made_of_it() -> None:
    assert plan("h200", model=AWQ).kv_tokens == pytest.approx(2_156_912, rel=0.03)


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100", "h200"])
@pytest.mark.parametrize("share", [0.25, 1.0], ids=["a quarter of the knee", "the knee"])
def test_the_arithmetic_reads_as_many_pages_a_second_as_the_simulator(gpu: str, share: float) -> None:
    planned = plan(gpu, model=AWQ)
    at_a_time = max(1, round(share * planned.pages_at_a_time))
    model, speed = planned_model(plan(gpu, model=AWQ, max_num_seqs=at_a_time))
    run = simulated(PolicyName.CONTINUOUS, pages(8 * at_a_time), model).figures
    assert run.requests_per_s == pytest.approx(pace(speed, PAGE, at_a_time).pages_per_s, rel=0.07)


SPEEDS = st.builds(
    Speed,
    base_s=st.floats(1e-4, 0.1),
    prefill_token_s=st.floats(1e-6, 1e-3),
    decode_sequence_s=st.floats(1e-6, 1e-2),
)


@given(speed=SPEEDS, most=st.integers(1, 1_024), seconds=st.floats(0.1, 1_000))
def test_at_the_knee_the_fewest_pages_reach_95_percent_and_none_takes_longer_than_is_wished(
    speed: Speed, most: int, seconds: float
) -> None:
    enough = 0.9999 * KNEE * pace(speed, PAGE, most).pages_per_s
    chosen, wished = knee(speed, PAGE, most), knee(speed, PAGE, most, seconds)
    assert pace(speed, PAGE, chosen).pages_per_s >= enough
    assert 1 <= wished <= chosen <= most
    if chosen > 1:
        assert pace(speed, PAGE, chosen - 1).pages_per_s < enough / 0.9998
    if wished > 1:
        assert pace(speed, PAGE, wished).page_s <= 1.0001 * seconds


@pytest.mark.parametrize("name", [AWQ, "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct-FP8"])
@pytest.mark.parametrize(("format", "bits"), [("awq", 4.156), ("fp8", 8), ("none", 16)])
def test_a_format_takes_its_bits_of_the_layers_alone(name: str, format: str, bits: float) -> None:  # noqa: A002
    model = profile_file().models[name]
    stored = stored_as(model, format)
    assert stored is not None
    saved = stored.parameters_b * 2 - stored.weights_gb
    assert (
        saved / (2 - bits / 8) / model.parameters_b == pytest.approx(0.79, abs=0.01)
        if bits < 16
        else not saved
    )
    again = stored_as(stored, model.quantization)
    assert again is not None
    assert again.weights_gb == pytest.approx(model.weights_gb, rel=0.02)


def test_of_a_mixture_of_experts_no_other_format_is_planned() -> None:
    experts: Model = profile_file().models["Qwen/Qwen3-VL-30B-A3B-Instruct-FP8"]
    assert stored_as(experts, "awq") is None
    assert plan("h200", model="Qwen/Qwen3-VL-30B-A3B-Instruct-FP8").formats == ()


@pytest.mark.parametrize(
    ("gpu", "fastest", "why"),
    [("t4", "AWQ, GPTQ", "more room"), ("a10", "AWQ, GPTQ", "more room"), ("h100", "FP8", "computed in FP8")],
)
def test_a_plan_has_each_format_beside_the_other_the_fastest_first(gpu: str, fastest: str, why: str) -> None:
    formats = plan(gpu).formats
    assert {one.format for one in formats} == {"BF16", "FP8", "AWQ, GPTQ"}
    assert (formats[0].format, why in formats[0].why) == (fastest, True)
    no_fp8 = next(one.why for one in formats if one.format == "FP8")
    assert ("no FP8 arithmetic" in no_fp8) is (gpu in ("t4", "a10"))


def test_fp8_at_load_is_planned_as_fp8() -> None:
    wide = {"model": "Qwen/Qwen2.5-VL-7B-Instruct"}
    loaded, stored = plan("h100", quantization="fp8", **wide), plan("h100")
    assert loaded.memory.weights == pytest.approx(stored.memory.weights, rel=0.02)
    assert loaded.paces[-1].pages_per_s == pytest.approx(stored.paces[-1].pages_per_s, rel=0.02)
    assert loaded.paces[-1].pages_per_s > 1.3 * plan("h100", **wide).paces[-1].pages_per_s
