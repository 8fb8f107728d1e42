"""The arithmetic of the KV cache, the plan that rests on it, and docs/engine.md, which says what the data files say."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Preset
from pecia_workers.engines.models import KvShape, kv_tokens, layers_planned
from pecia_workers.engines.plan import WORKER_PAGE_S, WORKER_TOKEN_S, EnginePlan, plan_engine
from pecia_workers.engines.profiles import GIB, merged, profile_file, profile_named
from pecia_workers.engines.reader_cards import presets
from pecia_workers.protocol.base import EngineUnavailableError

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
    each = shape.bytes_per_token
    assert each * tokens <= max(0, memory) < each * (tokens + 16)


def test_the_memory_of_gpus_is_spent_once_and_holds_the_weights_of_a_model_that_they_share_once() -> None:
    alone, together = plan().memory, plan(tensor_parallel_size=2).memory
    assert alone.usable == int(L4.memory_bytes * 0.9)
    assert alone.kv_cache + alone.weights + alone.reserve == alone.usable
    assert together.weights == alone.weights
    assert together.kv_cache == 2 * alone.kv_cache + alone.weights
    assert plan(kv_cache_bytes=GIB).memory.kv_cache == GIB
    assert plan("t4", tensor_parallel_size=4).kv.kv_heads == 4, "a head on several GPUs is held several times"


def test_a_cache_holds_twice_the_tokens_in_8_bits_and_half_of_them_in_32() -> None:
    wide = plan(engine_options={"dtype": "float32"})
    assert plan(kv_cache_dtype="fp8").kv_tokens == pytest.approx(2 * plan().kv_tokens, abs=32)
    assert plan().kv_tokens == pytest.approx(2 * wide.kv_tokens, abs=32)
    assert plan(max_num_batched_tokens=2048).page_tokens == plan().page_tokens > 2772, "whatever the step"


@pytest.mark.parametrize(
    ("settings", "bound", "pages"),
    [
        ({"kv_cache_bytes": 4 * GIB, "max_num_seqs": 64}, "KV cache", 21),
        ({"max_num_seqs": 16}, "max_num_seqs, as set", 16),
        ({}, "these read 95 % of the most", 49),
        ({"page_seconds": 60}, "PECIA_PAGE_SECONDS=60", 23),
    ],
)
def test_a_plan_says_what_bounds_it(settings: dict[str, Any], bound: str, pages: int) -> None:
    large, planned = plan("t4", model="Qwen/Qwen3-VL-8B-Instruct"), plan(**settings)
    assert (large.starts, large.pages_at_a_time) == (False, 0)
    assert bound in planned.bound_by
    assert planned.pages_at_a_time == pages
    assert planned.page_kept == planned.page_tokens
    assert planned.kv_share == pytest.approx(pages * planned.page_tokens / planned.kv_tokens)


def test_a_plan_says_what_a_workers_process_serves_whatever_the_gpu() -> None:
    small, large = plan("l4"), plan("h200")
    assert small.worker_pages_per_s == large.worker_pages_per_s
    seconds = WORKER_PAGE_S + small.load.output * WORKER_TOKEN_S
    assert small.worker_pages_per_s * seconds == pytest.approx(1)


@pytest.mark.parametrize(
    ("profile", "model", "hint"), [("cpu", "", "--model"), ("l4", "no/model", "config.json")]
)
def test_a_plan_needs_a_model_of_which_something_is_known(profile: str, model: str, hint: str) -> None:
    with pytest.raises(EngineUnavailableError, match=hint):
        plan(profile, model=model)


@pytest.mark.parametrize(
    ("whole", "windowed", "kept"),
    [
        (34, 0, 10_000),
        (0, 34, 1040),
        (17, 17, (10_000 + 1040) / 2),
        (5, 29, (5 * 10_000 + 30 * 1040) / 34),  # the last group of five lacks a layer
        (12, 13, 13 * (10_000 + 1040) / 25),  # nearly as many: one group of each
    ],
)
def test_layers_with_a_window_keep_the_end_of_a_request_in_groups_as_vllm_forms_them(
    whole: int, windowed: int, kept: float
) -> None:
    shape = KvShape(layers=whole + windowed, kv_heads=4, head_dim=256, windowed=windowed, window=1024)
    assert layers_planned(shape).held(10_000, 0, begun=True) == pytest.approx(kept, abs=1)


CONFIG = {
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "hidden_size": 512,
    "max_position_embeddings": 8192,
    "sliding_window": 512,
}
SIXTH_WHOLE = [*["sliding_attention"] * 5, "full_attention"]


def planned_by(directory: Path, config: dict[str, Any], **settings: Any) -> EnginePlan:
    (directory / "config.json").write_text(json.dumps(config))
    return plan(model=str(directory), kv_cache_bytes=GIB, **settings)


def test_a_plan_counts_layers_by_what_the_checkpoint_says_that_they_keep(tmp_path: Path) -> None:
    flat = planned_by(tmp_path, CONFIG | {"sliding_window": None})
    hybrid = planned_by(tmp_path, CONFIG | {"layer_types": SIXTH_WHOLE})
    assert flat.kv_tokens == hybrid.kv_tokens
    assert hybrid.page_kept == pytest.approx((hybrid.page_tokens + 5 * 528) / 6, abs=1)
    assert hybrid.pages_in_cache == hybrid.kv_tokens // hybrid.page_kept > flat.pages_in_cache
    assert hybrid.context_kept == flat.context_kept == flat.context  # all of it is read in one step
    stepwise = planned_by(tmp_path, CONFIG | {"layer_types": SIXTH_WHOLE}, max_num_batched_tokens=1024)
    assert stepwise.context_kept == pytest.approx((8192 + 5 * (1024 + 528)) / 6, abs=1)
    assert (flat.unclear, hybrid.unclear) == ("", "")
    ungrouped = {"disable_hybrid_kv_cache_manager": True}
    whole = planned_by(tmp_path, CONFIG | {"layer_types": SIXTH_WHOLE}, engine_options=ungrouped)
    assert whole.page_kept == whole.page_tokens


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "which layers have the window of 512 tokens is not said"),
        ({"use_sliding_window": False}, ""),
        ({"layer_types": ["full_attention"] * 6}, ""),
        (
            {"layer_types": [*["chunked_attention"] * 5, "full_attention"]},
            "5 layers of 'chunked_attention' count",
        ),
        ({"sliding_window": None, "layer_types": SIXTH_WHOLE}, "5 layers of 'sliding_attention' count"),
    ],
)
def test_layers_of_which_it_is_not_known_keep_everything_and_the_plan_says_so(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    planned = planned_by(tmp_path, CONFIG | changed)
    assert planned.page_kept == planned.page_tokens
    assert said in planned.unclear
    assert bool(said) is bool(planned.unclear)


def test_the_memory_of_state_layers_is_said_not_to_be_counted(tmp_path: Path) -> None:
    planned = planned_by(tmp_path, CONFIG | {"layer_types": [*["linear_attention"] * 5, "full_attention"]})
    assert planned.kv.layers == 1
    assert "5 layers of 'linear_attention' take memory that is not counted" in planned.unclear


def test_of_a_model_without_attention_a_plan_says_that_it_knows_nothing_and_a_worker_starts(
    tmp_path: Path,
) -> None:
    config = CONFIG | {"sliding_window": None, "layer_types": ["linear_attention"] * 6}
    with pytest.raises(
        EngineUnavailableError, match="not known: the states of 6 layers of 'linear_attention'"
    ):
        planned_by(tmp_path, config)
    settings = WorkerSettings(engine="vllm", model=str(tmp_path))
    assert merged(settings, L4, L4.memory_bytes).max_num_seqs == 256


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
        assert name.partition("/")[2].partition("-Instruct")[0] in PAGE
