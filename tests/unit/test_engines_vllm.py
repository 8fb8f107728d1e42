"""What reaches vLLM of the fleet's settings, and what keeps it from starting, said in a sentence."""

import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import layers_of
from pecia_workers.engines.vllm.processes import (
    check_model,
    engine_arguments,
    engine_environment,
    start_failure,
)
from pecia_workers.protocol.base import WHOLE, EngineDeadError, EngineUnavailableError, Layers

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


@pytest.mark.parametrize(("stages", "limits"), [("read", (1, 0)), ("caption", (16, 1))])
def test_every_setting_has_vllms_own_name_and_a_request_may_hold_what_the_worker_serves(
    stages: Literal["read", "caption"], limits: tuple[int, int]
) -> None:
    sizes = {"max_model_len": 1, "max_num_seqs": 2, "max_num_batched_tokens": 3, "tensor_parallel_size": 2}
    shares = {"gpu_memory_utilization": 0.5, "video_pruning_rate": 0.25, "enforce_eager": True}
    kinds = {"quantization": "awq", "kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}}
    same: dict[str, Any] = {**sizes, **shares, **kinds}
    settings = WorkerSettings(engine="vllm", model="m", stages=stages, kv_cache_bytes=4, **same)
    given = engine_arguments(settings, KNOWN)
    assert given.items() >= (same | {"kv_cache_memory_bytes": 4}).items()
    assert given["limit_mm_per_prompt"] == dict(zip(("image", "video"), limits, strict=True))


@pytest.mark.parametrize(
    ("setting", "reaches_vllm"),
    [
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


@pytest.mark.parametrize(
    ("option", "hint"), [("kv_cache_dytpe", "did you mean 'kv_cache_dtype'"), ("x", "AsyncEngineArgs")]
)
def test_an_option_by_vllms_name_wins_and_one_unknown_to_vllm_is_refused(option: str, hint: str) -> None:
    options = {"tensor_parallel_size": 2, "limit_mm_per_prompt": {"image": 4}}
    settings = WorkerSettings(model="m", tensor_parallel_size=4, engine_options=options)
    assert engine_arguments(settings, KNOWN).items() >= options.items()
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
        ([group("full_attention"), group("full_attention")], Layers(full=1.0, in_flight=99)),
        ([group("sliding_window", 40)], Layers(full=0, windows=((64, 0.5),), in_flight=99)),
        (
            [group("full_attention"), group("sliding_window", 40, block=32), group("mamba", block=4096)],
            Layers(full=0.5, windows=((96, 0.25), (32, 0.5)), in_flight=99),
        ),
        ([group("full_attention"), group("chunked_local_attention")], Layers(full=1.0, in_flight=99)),
    ],
)
def test_layers_keep_what_their_groups_in_the_cache_do(groups: list[dict[str, Any]], layers: Layers) -> None:
    assert layers_of(groups, block=16, share=0.5, in_flight=99) == layers


def test_on_the_cpu_one_process_computes_and_leaves_us_a_core_and_what_an_operator_has_set_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_LOGGING_LEVEL": "DEBUG"})
    on_cpu, on_gpu = (engine_environment("info", on_cpu=on_cpu) for on_cpu in (True, False))
    assert on_cpu["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert int(on_cpu["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) - 1)
    assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_NUM_THREADS"} & on_gpu.keys()
    assert on_gpu["VLLM_LOGGING_LEVEL"] == on_cpu["VLLM_LOGGING_LEVEL"] == "DEBUG"


CONFIG = {
    "model_type": "qwen2_5_vl",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "hidden_size": 512,
    "max_position_embeddings": 99,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with all that is looked at."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


def check(model: Path | str, **settings: Any) -> None:
    check_model(WorkerSettings(engine="vllm", model=str(model), **settings))


def refusal(model: Path | str, **settings: Any) -> str:
    with pytest.raises(EngineUnavailableError) as refused:
        check(model, **settings)
    return str(refused.value)


@pytest.mark.parametrize("model", ["/models/qwen", "./qwen", "models/qwen/7b", "~/qwen"])
def test_a_path_that_leads_nowhere_is_named(model: str) -> None:
    assert f"PECIA_MODEL={model}: there is no such directory" in refusal(model)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "gpt2", "s3://models/qwen"])
def test_a_name_on_a_hub_or_in_a_bucket_is_vllms_to_find(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    check(model)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_a_name_that_is_not_here_is_refused_where_the_hub_may_not_be_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv(variable, "1")
    assert "owner/model is not in the Hub's cache" in refusal("owner/model")


def test_a_directory_without_a_checkpoint_is_refused_with_the_one_below_that_may_be_meant(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert f"Did you mean {checkpoint}?" in refusal(checkpoint.parent)
    assert "there is no config.json in it. Name" in refusal(tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("content", ["", "[]", "version https://git-lfs.github.com/spec/v1"])
def test_a_configuration_that_is_no_json_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / "config.json").write_text(content)
    assert "config.json cannot be read as JSON" in refusal(checkpoint)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "processor_config.json"])
def test_a_checkpoint_without_a_chat_template_is_refused_but_it_may_stand_in_another_file(
    checkpoint: Path, file: str
) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    (checkpoint / file).write_text('{"model_max_length": 9}')
    assert "no chat template" in refusal(checkpoint)
    (checkpoint / file).write_text('{"chat_template": "{{ messages }}"}')
    check(checkpoint)


@pytest.mark.parametrize(
    ("config", "options"), [({"model_type": "paligemma"}, {}), ({}, {"tokenizer": "owner/other"})]
)
def test_a_template_may_come_from_vllm_or_from_another_tokenizer(
    checkpoint: Path, config: dict[str, Any], options: dict[str, Any]
) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    (checkpoint / "config.json").write_text(json.dumps(CONFIG | config))
    check(checkpoint, engine_options=options)


@pytest.mark.parametrize("name", ["bitsandbytes", "nf4", "int8", "GPTQ-BitBLAS", "experts_int8"])
def test_a_quantisation_that_leads_nowhere_is_explained(checkpoint: Path, name: str) -> None:
    said = refusal(checkpoint, quantization=name)
    assert said.startswith(f"PECIA_QUANTIZATION={name}: ")
    assert "PECIA_MODEL" in said or "fp8" in said


@pytest.mark.parametrize(
    ("method", "name"),
    [("awq", "gptq"), ("compressed-tensors", "awq"), ("gptq", "fp8"), (None, "awq_marlin")],
)
def test_a_quantisation_of_no_checkpoint_is_refused(checkpoint: Path, method: str | None, name: str) -> None:
    quantized(checkpoint, method)
    assert "Leave PECIA_QUANTIZATION empty" in refusal(checkpoint, quantization=name)


@pytest.mark.parametrize(
    ("method", "name"),
    [("awq", ""), ("awq", "awq_marlin"), ("awq", "of_a_plugin"), (None, "fp8_per_channel")],
)
def test_every_other_quantisation_is_vllms_to_judge(checkpoint: Path, method: str | None, name: str) -> None:
    quantized(checkpoint, method)
    check(checkpoint, quantization=name)


def quantized(checkpoint: Path, method: str | None) -> None:
    more = {"quantization_config": {"quant_method": method}} if method else {}
    (checkpoint / "config.json").write_text(json.dumps(CONFIG | more))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "leaves no memory for a KV cache. Raise PECIA_GPU_MEMORY_UTILIZATION",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3.5/22.05 GiB) on startup is less than desired GPU memory",
            "Of the device's 22.05 GiB only 3.5 are free",
        ),
        (
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 130.00 MiB. GPU 0 has a total capacity of",
            "not enough memory to load owner/model. Take a smaller or a quantised model",
        ),
        (
            "OSError: You are trying to access a gated repo. Make sure to have access to it at",
            "accept them on https://huggingface.co/owner/model, then set HF_TOKEN",
        ),
        (
            "OSError: owner/model is not a local folder and is not a valid model identifier listed on",
            "The Hub has no model owner/model, or it is private",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them",
            "The model owner/model is not on this machine, and the Hub cannot be reached",
        ),
        (
            "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}",
            "was killed",
        ),
        ("EngineError: The engine failed on this request: ChatTemplateResolutionError.", "no chat template"),
        (
            "ModuleNotFoundError: No module named 'flashinfer.sampling'",
            "vLLM needs the package flashinfer, which is not installed",
        ),
    ],
)
def test_what_vllm_and_the_hub_say_becomes_a_sentence_with_a_remedy(said: str, sentence: str) -> None:
    failure = start_failure(RuntimeError(said), WorkerSettings(model="owner/model"))
    assert isinstance(failure, EngineUnavailableError)
    assert sentence in str(failure)


def test_what_is_not_known_is_said_as_it_is_but_what_a_cause_says_counts_too() -> None:
    error, settings = RuntimeError("a\nb"), WorkerSettings(model="m")
    failure = start_failure(error, settings)
    assert isinstance(failure, EngineDeadError)
    assert str(failure) == "vLLM did not start: RuntimeError: a b"
    error.__cause__ = MemoryError()
    assert "not enough memory" in str(start_failure(error, settings))


@pytest.mark.parametrize("is_mended", [True, False])
def test_an_lmcache_that_knows_a_picture_by_16_bits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mended: bool
) -> None:
    """As LMCache/LMCache#4783 changed it: the function that it added is there, or is not."""
    folder = tmp_path / "lmcache" / "integration" / "vllm"
    folder.mkdir(parents=True)
    (tmp_path / "lmcache" / "__init__.py").touch()
    (folder / "utils.py").write_text(
        f"def {'mm_hash_to_token_values' if is_mended else 'hex_hash_to_int16'}(s):\n    ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = WorkerSettings(engine="vllm", model="our/model", kv_offload_backend="lmcache")
    if is_mended:
        check_model(settings)
    else:
        with pytest.raises(EngineUnavailableError, match="4783"):
            check_model(settings)
