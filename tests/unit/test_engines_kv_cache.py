"""The arithmetic of the KV cache, and the plan that rests on it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.models import KvShape, kv_bytes, kv_tokens
from pecia_workers.engines.plan import EnginePlan, plan_engine
from pecia_workers.engines.profiles import GIB, profile_named

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
