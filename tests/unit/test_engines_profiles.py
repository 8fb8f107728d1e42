"""What vLLM is given on each kind of GPU, and what an operator changes of it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.batching.admission import Capacity
from pecia_workers.batching.policies import BatchLimits
from pecia_workers.engines.models import (
    Gpu,
    gpus_per_worker,
    local_model,
    picture_limits,
    shares,
    visible_gpus,
)
from pecia_workers.engines.plan import plan_engine
from pecia_workers.engines.profiles import (
    GIB,
    OF_A_PROFILE,
    known_model,
    merged,
    profile_file,
    profile_named,
    profile_of,
    profile_toml,
    recommended,
    with_profile,
)
from pecia_workers.engines.reader_cards import language_model
from pecia_workers.engines.speed import Speed
from pecia_workers.engines.vllm.processes import engine_arguments
from pecia_workers.local.fleet import workers_of
from pecia_workers.local.home import environment
from pecia_workers.protocol.base import EngineUnavailableError
from pecia_workers.worker.runtime import Runtime

ON_GPUS = [name for name, profile in profile_file().profiles.items() if profile.memory_bytes]
L4 = profile_named("l4")


def gpu(name: str, gib: float) -> Gpu:
    return Gpu(handle="GPU-0", name=name, memory_bytes=int(gib * GIB))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a driver on this machine that tells of such GPUs."""

    def install(*rows: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install


@pytest.mark.parametrize(
    ("name", "gib", "profile"),
    [
        ("Tesla T4", 15, "t4"),
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-80"),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100"),
        ("NVIDIA H100 NVL", 93.6, "h100"),
        ("NVIDIA H200", 140.4, "h200"),
        ("NVIDIA T400", 4, "gpu-16"),
        ("NVIDIA GeForce RTX 4090", 23.99, "gpu-24"),
        ("NVIDIA L40S", 45, "l40s"),
        ("NVIDIA L40", 45, "gpu-48"),
        ("NVIDIA A10", 22.5, "a10"),
        ("NVIDIA A10G", 22.5, "gpu-24"),
        ("NVIDIA B200", 179, "b200"),
        ("NVIDIA B300", 268, "gpu-80"),
        ("MIG", 0, "gpu-16"),
    ],
)
def test_a_gpu_is_known_by_its_name_or_else_by_its_memory(name: str, gib: float, profile: str) -> None:
    assert profile_of([gpu(name, gib)]) is profile_named(profile)


def test_without_a_driver_there_is_no_gpu_and_without_a_gpu_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert profile_of(visible_gpus()) is profile_named("cpu")


@pytest.mark.parametrize("profile", profile_file().profiles)
def test_every_value_of_a_profile_is_one_that_an_operator_could_give(profile: str) -> None:
    named = profile_named(profile)
    settings = WorkerSettings(**named.settings)
    assert settings.model_fields_set == set(named.settings) <= OF_A_PROFILE
    assert "speculative_config" not in named.settings, "it switches asynchronous scheduling off"
    assert not named.engine_options.keys() & engine_arguments(settings, named.engine_options).keys()


@pytest.mark.parametrize("quality", [False, True])
@pytest.mark.parametrize("captions", [False, True])
@pytest.mark.parametrize("name", ON_GPUS)
def test_what_is_recommended_starts_and_its_dynamic_batches_hold_several_pages(
    name: str, quality: bool, captions: bool
) -> None:
    profile = profile_named(name)
    settings = WorkerSettings(engine="vllm", prefer_quality=quality)
    plan = plan_engine(settings, profile, profile.memory_bytes, captions=captions)
    assert plan.starts
    assert plan.sizes["max_num_seqs"] == plan.pages_at_a_time
    limits = BatchLimits.of(WorkerSettings(**profile.settings))
    tokens = limits.tokens_of(Capacity(slots=plan.pages_at_a_time, tokens=plan.kv_tokens), plan.page_tokens)
    assert tokens >= 3 * plan.page_tokens


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("t4", 8192), ("l40s", 8192), ("a100-80", 8192), ("h100", 16_384), ("b200", 16_384), ("gpu-80", 16_384)],
)
def test_a_step_has_as_many_tokens_as_vllm_chooses_for_the_card(name: str, tokens: int) -> None:
    profile = profile_named(name)
    settings = merged(WorkerSettings(engine="vllm"), profile, profile.memory_bytes)
    assert settings.max_num_batched_tokens == tokens


def test_the_quantisation_follows_from_memory_and_wish() -> None:
    wishes = [(24, True), (40, True), (80, True), (80, False)]
    names = [recommended(gib * GIB, quality=quality).reads for gib, quality in wishes]
    assert [profile_file().models[name].quantization for name in names] == ["awq", "fp8", "none", "awq"]


@pytest.mark.parametrize("name", [name for name in ON_GPUS if profile_named(name).capability])
def test_awq_is_the_format_before_hopper_and_fp8_from_there_on(name: str) -> None:
    profile = profile_named(name)
    model = profile_file().models[merged(WorkerSettings(engine="vllm"), profile, profile.memory_bytes).model]
    assert model.quantization == ("fp8" if name in ("h100", "h200", "b200") else "awq")


def test_what_is_not_set_is_as_the_profile_says_and_what_the_operator_set_wins_even_at_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = merged(WorkerSettings(engine="vllm"), L4, L4.memory_bytes)
    given = engine_arguments(settings, settings.engine_options)
    assert given["model"] == "Qwen/Qwen2.5-VL-7B-Instruct-AWQ"
    assert (given["max_num_seqs"], given["max_num_batched_tokens"]) == (49, 8192)
    assert settings.caption_tokens == 256

    monkeypatch.setenv("PECIA_MAX_NUM_SEQS", "0")
    monkeypatch.setenv("PECIA_GPU_MEMORY_UTILIZATION", "0.5")
    monkeypatch.setenv("PECIA_ENGINE_OPTIONS", '{"enable_prefix_caching": false}')
    monkeypatch.setenv("PECIA_MODEL", "m")

    settings = merged(WorkerSettings(engine="vllm"), L4, L4.memory_bytes)

    given = engine_arguments(settings, settings.engine_options)
    assert "max_num_seqs" not in given
    assert given["gpu_memory_utilization"] == 0.5
    assert given["enable_prefix_caching"] is False
    assert (given["model"], given["max_num_batched_tokens"]) == ("m", 8192)


def test_a_worker_of_the_fleet_still_knows_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PECIA_MAX_NUM_SEQS", "0")
    for name, value in environment(WorkerSettings(flower_port=0)).items():
        monkeypatch.setenv(name, value)
    assert {"max_num_seqs", "flower_port"} <= WorkerSettings().model_fields_set


@pytest.mark.parametrize(
    ("driver_tells", "settings", "captions", "model"),
    [
        ("NVIDIA A100-SXM4-80GB, 81920", {"profile": "t4"}, False, "Qwen/Qwen2.5-VL-7B-Instruct-AWQ"),
        ("NVIDIA L4, 23034", {"profile": "cpu"}, False, ""),
        ("NVIDIA GB10, [N/A]", {}, False, "Qwen/Qwen2.5-VL-7B-Instruct-AWQ"),
        ("NVIDIA L4, 23034", {}, False, "Qwen/Qwen2.5-VL-7B-Instruct-AWQ"),
        ("NVIDIA L4, 23034", {}, True, "Qwen/Qwen3-VL-8B-Instruct-FP8"),
    ],
    ids=[
        "the memory that is here counts, whatever the profile",
        "none on the CPU, even beside a GPU",
        "a GPU that does not tell its memory has that of its profile",
        "a GPU that is known",
        "a worker that only captions",
    ],
)
def test_a_model_is_recommended_for_the_gpu_and_the_work(
    driver: Callable[..., None], driver_tells: str, settings: dict[str, Any], *, captions: bool, model: str
) -> None:
    driver(f"GPU-aa, {driver_tells}")
    assert with_profile(WorkerSettings(engine="vllm", **settings), captions=captions).model == model


def test_a_profile_is_applied_once_and_to_no_other_engine_nor_where_it_is_not_wanted() -> None:
    once = with_profile(WorkerSettings(engine="vllm", profile="l4"))
    assert once.max_num_seqs == 49
    for settings in (
        once,
        WorkerSettings(engine="rapidocr", profile="l4"),
        WorkerSettings(engine="vllm", profile="none"),
    ):
        assert with_profile(settings) == settings


def test_a_worker_asks_for_its_profile_before_it_opens_anything() -> None:
    runtime = Runtime(WorkerSettings(engine="vllm", profile="h20"), {Stage.READ})
    with pytest.raises(EngineUnavailableError, match="Did you mean h200"):
        asyncio.run(runtime.start())


def test_a_request_is_never_longer_than_the_models_context_and_one_that_is_not_known_has_vllms_sequences(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path, max_position_embeddings=2048)
    assert merged(WorkerSettings(model=str(tmp_path)), L4, L4.memory_bytes).max_model_len == 2048
    assert merged(WorkerSettings(engine="vllm", model="owner/new"), L4, L4.memory_bytes).max_num_seqs == 256


def write_checkpoint(directory: Path, **text: Any) -> None:
    shape = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}
    config = {"text_config": {**shape, "max_position_embeddings": 99, **text}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(bytes(1000))


@pytest.mark.parametrize(
    ("text", "layers", "kv_heads", "head_dim"),
    [
        ({}, 4, 8, 64),
        ({"num_key_value_heads": 2, "head_dim": 128}, 4, 2, 128),
        ({"layer_types": [*["linear_attention"] * 3, "full_attention"]}, 1, 8, 64),
    ],
)
def test_a_checkpoint_on_this_machine_tells_its_own_shape(
    tmp_path: Path, text: dict[str, Any], layers: int, kv_heads: int, head_dim: int
) -> None:
    write_checkpoint(tmp_path, **text)
    model = local_model(str(tmp_path))
    assert model is not None
    assert (model.layers, model.kv_heads, model.head_dim) == (layers, kv_heads, head_dim)
    assert model.weights_gb == 1e-6


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"text_config": {"num_attention_heads": 0}}'])
def test_a_checkpoint_that_cannot_be_understood_is_not_known(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert known_model(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("visible", "handles"),
    [
        *(("1", ["GPU-bb"]), ("1,0", ["GPU-bb", "GPU-aa"]), ("GPU-b", ["GPU-bb"])),
        *(("", []), ("-1", []), ("7", []), ("MIG-5", ["MIG-5"])),
    ],
)
def test_only_the_gpus_that_are_visible_count(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch, visible: str, handles: list[str]
) -> None:
    driver("GPU-aa, NVIDIA L4, 23034", "GPU-bb, NVIDIA L4, 23034")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.handle for gpu in visible_gpus()] == handles


def test_a_fleet_has_an_engine_worker_for_each_gpu(driver: Callable[..., None]) -> None:
    driver("GPU-aa, NVIDIA L4, 23034", "GPU-bb, NVIDIA L4, 23034")
    workers = workers_of(WorkerSettings(engine="vllm"))
    assert [worker.name for worker in workers] == ["ingest", "engine-0", "engine-1", "webhooks", "upkeep"]
    assert [dict(worker.environment) for worker in workers[1:3]] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-aa"},
        {"CUDA_VISIBLE_DEVICES": "GPU-bb"},
    ]
    assert workers[1].command[-2:] == ("--name", "engine-0")


@pytest.mark.parametrize(
    "settings",
    [{"engine": "vllm", "tensor_parallel_size": 2}, {"engine": "vllm", "tensor_parallel_size": 4}, {}],
)
def test_one_worker_has_all_gpus_of_its_model(driver: Callable[..., None], settings: dict[str, Any]) -> None:
    driver("GPU-aa, NVIDIA L4, 23034", "GPU-bb, NVIDIA L4, 23034")
    (worker,) = [one for one in workers_of(WorkerSettings(**settings)) if one.name.startswith("engine")]
    assert worker.name == "engine"
    assert not worker.environment


@given(gpus=st.integers(0, 9), together=st.integers(1, 4))
def test_no_gpu_is_given_to_two_workers(gpus: int, together: int) -> None:
    handed = shares([Gpu(handle=str(n), name="", memory_bytes=1) for n in range(gpus)], together)
    given_out = [handle for share in handed for handle in share.split(",")]
    assert len(set(given_out)) == len(given_out) == gpus // together * together
    options = {"tensor_parallel_size": together, "pipeline_parallel_size": 2}
    assert gpus_per_worker(WorkerSettings(engine_options=options)) == 2 * together, "by vLLM's own names"


def test_a_profile_is_read_from_the_file_that_was_written_of_it(tmp_path: Path) -> None:
    speed = Speed(base_s=0.012, prefill_token_s=0.00003, decode_sequence_s=0.0002)
    sizes = {"model": "Qwen/Qwen3-VL-8B-Instruct-FP8", "max_num_seqs": 48, "max_num_batched_tokens": 4096}
    options = {"mm_processor_kwargs": {"max_pixels": 100, "a b": [1, 2]}, "enforce_eager": True}
    profile = L4.model_copy(
        update={"speed": speed, "engine_options": options, "settings": {**L4.settings, **sizes}}
    )
    path = tmp_path / "tuned.toml"
    path.write_text(profile_toml(profile))

    assert profile_named(str(path)) == profile
    chosen = merged(WorkerSettings(engine="vllm"), profile_named(str(path)), L4.memory_bytes)
    assert {name: getattr(chosen, name) for name in sizes} == sizes
    other = merged(WorkerSettings(engine="vllm", max_num_seqs=9), profile, L4.memory_bytes)
    assert other.max_num_seqs == 9, "a setting wins"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("title = ", "not TOML"),
        ("title = 'x'", "memory_gib: Field required"),
        ("title = 'x'\nmemory_gib = 1\nreserve_gib = 1\n[settings]\nmax_seqs = 1", "no setting 'max_seqs'"),
    ],
)
def test_a_profile_that_cannot_be_used_says_why(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "tuned.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EngineUnavailableError, match=said):
        profile_named(str(path))


@pytest.mark.parametrize(
    ("file", "values", "limits"),
    [
        ("preprocessor_config.json", {"max_pixels": 1_003_520}, {"most_pixels": 1_003_520}),
        ("preprocessor_config.json", {"size": {"longest_edge": 16_777_216}}, {"most_pixels": 16_777_216}),
        ("preprocessor_config.json", {"size": {"longest_edge": 1540}}, {"longest_side": 1540}),
        ("processor_config.json", {"image_processor": {"max_pixels": 9}}, {"most_pixels": 9}),
        ("preprocessor_config.json", {"size": {"height": 896, "width": 896}}, {}),
        ("preprocessor_config.json", {"size": 336}, {}),
        ("other.json", {"max_pixels": 1}, {}),
    ],
)
def test_the_largest_picture_is_what_the_models_own_processor_leaves(
    tmp_path: Path, file: str, values: dict[str, Any], limits: dict[str, int]
) -> None:
    (tmp_path / file).write_text(json.dumps(values))
    assert picture_limits(str(tmp_path), {}) == limits
    settings = WorkerSettings(engine="vllm", model=str(tmp_path))
    known = language_model("vllm", settings, settings.model)
    assert known.most_pixels == limits.get("most_pixels", 4096 * 4096)
    assert known.longest_side == limits.get("longest_side", 4096 * 4096)
    assert picture_limits(str(tmp_path), {"mm_processor_kwargs": {"max_pixels": 5}})["most_pixels"] == 5
