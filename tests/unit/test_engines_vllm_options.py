"""What reaches vLLM of the fleet's settings."""

from typing import Any

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import WHOLE, EngineUnavailableError, Layers
from pecia_workers.engines.vllm.options import engine_arguments, layers_of

KNOWN = ("model", "tensor_parallel_size", "kv_cache_dtype", "limit_mm_per_prompt")


def test_what_is_not_set_is_left_to_vllm() -> None:
    assert engine_arguments(WorkerSettings(engine="vllm", model="m"), KNOWN) == {
        "model": "m",
        "limit_mm_per_prompt": {"image": 16, "video": 1},
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "mm_processor_cache_gb": 0,
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
    }


@pytest.mark.parametrize(("stages", "limits"), [("read", (1, 0)), ("caption", (16, 1)), ("", (16, 1))])
def test_a_request_may_hold_what_the_worker_serves(stages: str, limits: tuple[int, int]) -> None:
    settings = WorkerSettings.model_validate({"engine": "vllm", "model": "m", "stages": stages})
    given = engine_arguments(settings, KNOWN)
    assert given["limit_mm_per_prompt"] == dict(zip(("image", "video"), limits, strict=True))


def test_every_setting_has_vllms_own_name() -> None:
    sizes = {"max_model_len": 1, "max_num_seqs": 2, "max_num_batched_tokens": 3, "tensor_parallel_size": 2}
    shares = {"gpu_memory_utilization": 0.5, "video_pruning_rate": 0.25, "enforce_eager": True}
    kinds = {"quantization": "awq", "kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}}
    same: dict[str, Any] = {**sizes, **shares, **kinds}
    given = engine_arguments(WorkerSettings(model="m", kv_cache_bytes=4, **same), KNOWN)
    assert given.items() >= (same | {"kv_cache_memory_bytes": 4}).items()


@pytest.mark.parametrize(
    ("setting", "reaches_vllm"),
    [
        ({}, {}),
        ({"kv_offload_bytes": 2**30}, {"size": 1.0, "backend": "native"}),
        (
            {"kv_offload_bytes": 3 * 2**29, "kv_offload_backend": "lmcache"},
            {"size": 1.5, "backend": "lmcache"},
        ),
        ({"kv_offload_backend": "lmcache"}, {"size": 0.0, "backend": "lmcache"}),
        ({"kv_offload_backend": "native"}, {}),
    ],
)
def test_kv_blocks_move_as_the_settings_say(setting: dict[str, Any], reaches_vllm: dict[str, Any]) -> None:
    given = engine_arguments(WorkerSettings(model="m", **setting), KNOWN)
    moved = {name: value for name, value in given.items() if name.startswith("kv_offload")}
    assert moved == {f"kv_offloading_{name}": value for name, value in reaches_vllm.items()}


def test_adapters_have_a_slot_each_and_one_that_stays_empty() -> None:
    given = engine_arguments(WorkerSettings(model="m", adapters={"a": "/a", "b": "/b"}), KNOWN)
    assert given["enable_lora"]
    assert (given["max_loras"], given["max_lora_rank"]) == (3, 64)


def test_an_option_by_vllms_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PECIA_ENGINE_OPTIONS", '{"tensor_parallel_size": 2, "limit_mm_per_prompt": {"image": 4}}'
    )
    given = engine_arguments(WorkerSettings(model="m"), KNOWN)
    assert given["tensor_parallel_size"] == 2
    assert given["limit_mm_per_prompt"] == {"image": 4}


@pytest.mark.parametrize(
    ("option", "hint"), [("kv_cache_dytpe", "did you mean 'kv_cache_dtype'"), ("x", "AsyncEngineArgs")]
)
def test_an_option_that_vllm_does_not_know_is_refused(option: str, hint: str) -> None:
    settings = WorkerSettings(model="m", engine_options={option: 1})
    with pytest.raises(EngineUnavailableError, match=hint):
        engine_arguments(settings, KNOWN)


def group(kind: str, window: int | None = None, block: int = 16) -> dict[str, Any]:
    return {"kind": kind, "block_size": block, "sliding_window": window}


@pytest.mark.parametrize(
    ("groups", "layers"),
    [
        ([], WHOLE),
        ([group("full_attention")], WHOLE),
        ([group("full_attention"), group("full_attention")], Layers(whole=1.0, in_flight=99)),
        ([group("sliding_window", 40)], Layers(whole=0, windows=((64, 0.5),), in_flight=99)),
        (
            [group("full_attention"), group("sliding_window", 40, block=32), group("mamba", block=4096)],
            Layers(whole=0.5, windows=((96, 0.25), (32, 0.5)), in_flight=99),
        ),
        ([group("full_attention"), group("chunked_local_attention")], Layers(whole=1.0, in_flight=99)),
    ],
)
def test_layers_keep_what_their_groups_in_the_cache_do(groups: list[dict[str, Any]], layers: Layers) -> None:
    assert layers_of(groups, block=16, share=0.5, in_flight=99) == layers
