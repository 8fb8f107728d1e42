"""The arithmetic of the KV cache, the plan that rests on it, and docs/engine.md, which says what the data files say."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Preset
from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.models import KvShape, kv_bytes, kv_tokens
from pecia_workers.engines.profiles import GIB, EnginePlan, merged, plan_engine, profile_file, profile_named
from pecia_workers.engines.reader_cards import presets

L4 = profile_named("l4")


def plan(profile: str = "l4", **settings: Any) -> EnginePlan:
    named = profile_named(profile)
    return plan_engine(WorkerSettings(engine="vllm", **settings), named, named.memory_bytes)


SHAPES = st.builds(
    KvShape,
    layers=st.integers(1, 80),
    kv_heads=st.integers(1, 16),
    head_dim=st.sampled_from([64, 128, 256]),
    dtype_bytes=st.sampled_from([1, 2, 4]),
)


@given(shape=SHAPES, memory=st.integers(-GIB, 100 * GIB))
def test_the_tokens_fit_into_the_memory_and_no_further_block_does(shape: KvShape, memory: int) -> None:
    tokens = kv_tokens(shape, memory)
    assert kv_bytes(shape, tokens) <= max(0, memory) < kv_bytes(shape, tokens + 16)


def test_the_memory_of_a_gpu_is_spent_once() -> None:
    memory = plan().memory
    assert memory.usable == int(L4.memory_bytes * 0.9)
    assert memory.kv_cache + memory.weights + memory.reserve == memory.usable


def test_a_cache_holds_twice_the_tokens_in_8_bits_and_half_of_them_in_32() -> None:
    wide = plan(engine_options={"dtype": "float32"})
    assert plan(kv_cache_dtype="fp8").kv_tokens == pytest.approx(2 * plan().kv_tokens, abs=32)
    assert plan().kv_tokens == pytest.approx(2 * wide.kv_tokens, abs=32)


def test_a_page_keeps_its_size_however_small_a_step_is() -> None:
    assert plan(max_num_batched_tokens=2048).page_tokens == plan().page_tokens > 2772


def test_two_gpus_that_share_a_model_hold_its_weights_once() -> None:
    alone, together = plan(), plan(tensor_parallel_size=2)
    assert together.memory.weights == alone.memory.weights
    assert together.memory.kv_cache == 2 * alone.memory.kv_cache + alone.memory.weights


def test_a_head_that_is_on_several_gpus_is_held_several_times() -> None:
    assert plan("t4", tensor_parallel_size=4).kv.kv_heads == 4


def test_a_cache_of_a_set_size_has_that_size() -> None:
    assert plan(kv_cache_bytes=GIB).memory.kv_cache == GIB


def test_what_does_not_fit_is_said_not_to_start() -> None:
    large = plan("t4", model="Qwen/Qwen3-VL-8B-Instruct")
    assert not large.starts
    assert large.pages_at_a_time == 0


@pytest.mark.parametrize(
    ("settings", "bound", "pages"),
    [
        ({}, "KV cache", 64),
        ({"max_num_seqs": 16}, "max_num_seqs, as it was set", 16),
        ({"kv_cache_bytes": 300 * GIB}, "no more than 1,024", 1024),
    ],
)
def test_a_plan_says_what_bounds_it(settings: dict[str, Any], bound: str, pages: int) -> None:
    planned = plan(**settings)
    assert bound in planned.bound_by
    assert planned.pages_at_a_time == pages
    assert planned.kv_share == pytest.approx(pages * planned.page_tokens / planned.kv_tokens)


@pytest.mark.parametrize(
    ("profile", "model", "hint"), [("cpu", "", "--model"), ("l4", "no/model", "config.json")]
)
def test_a_plan_needs_a_model_of_which_something_is_known(profile: str, model: str, hint: str) -> None:
    with pytest.raises(EngineUnavailableError, match=hint):
        plan(profile, model=model)


PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")


def row(first: str) -> list[str]:
    """Return the cells of the only row that begins with this word."""
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{first}`")]
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize("name", profile_file().profiles)
def test_a_profile_has_its_sizes_on_the_page(name: str) -> None:
    profile = profile_file().profiles[name]
    sizes = merged(WorkerSettings(engine="vllm"), profile, profile.memory_bytes)
    _, memory, pages, step, longest, caption = row(name)
    share = sizes.gpu_memory_utilization
    assert memory == (f"{share:.0%}".replace("%", " %") if share else "4 GiB of KV cache")
    assert (pages, caption) == (str(sizes.max_num_seqs), str(sizes.caption_tokens))
    assert (step, longest) == (f"{sizes.max_num_batched_tokens:,}", f"{sizes.max_model_len:,}")


@pytest.mark.parametrize("name", presets().presets)
def test_a_preset_has_its_values_on_the_page(name: Preset) -> None:
    values = presets().presets[name]
    _, temperature, top_p, top_k, penalty, tokens = row(name)
    assert float(temperature.removesuffix(", greedy")) == values.temperature
    assert (float(top_p), float(penalty)) == (values.top_p, values.repetition_penalty)
    assert top_k == (str(values.top_k) if values.top_k else "any")
    assert tokens == (str(values.caption_tokens) if values.caption_tokens else "by style")


def test_every_model_is_on_the_page() -> None:
    for name in profile_file().models:
        assert name.removeprefix("Qwen/").partition("-Instruct")[0] in PAGE
