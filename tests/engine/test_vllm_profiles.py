"""Profiles and the verbs that show them, held against real vLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offline import KV_CACHE_BYTES
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.plan import plan_engine
from pecia_workers.engines.profiles import merged, profile_file, profile_named
from pecia_workers.engines.vllm.processes import VLLM_TEMPLATES

CPU = profile_named("cpu")


def run(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of the fleet as an operator does, with these settings and the profile of the CPU."""
    environment = {**os.environ, "PECIA_ENGINE": "vllm", "PECIA_PROFILE": "cpu"}
    command = [sys.executable, "-m", "pecia_workers", "engine", *words]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env={**environment, **settings}
    )


def told(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_a_refused_name_is_none_of_vllms_or_one_that_leaves_dense_layers_alone() -> None:
    from vllm.config.quantization import _ONLINE_SHORTHANDS  # noqa: PLC0415  slow
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS  # noqa: PLC0415

    experts_only = {name for name, how in _ONLINE_SHORTHANDS.items() if how.linear is None} | {"experts_int8"}
    assert {name for name in profile_file().refused if name in QUANTIZATION_METHODS} == experts_only
    assert {"awq", "fp8", "fp8_per_channel", "compressed-tensors", "inc"} <= set(QUANTIZATION_METHODS)


def test_the_families_with_a_template_of_vllms_are_those_that_vllm_has() -> None:
    from vllm.transformers_utils.chat_templates import registry  # noqa: PLC0415  slow

    assert registry._MODEL_TYPE_TO_CHAT_TEMPLATE_FALLBACK.keys() == VLLM_TEMPLATES


@pytest.mark.parametrize("name", profile_file().profiles)
def test_every_option_of_a_profile_is_one_of_this_vllm(name: str, checkpoint: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415

    from pecia_workers.engines.vllm.processes import engine_arguments  # noqa: PLC0415

    settings = merged(WorkerSettings(engine="vllm", model=str(checkpoint)), profile_named(name), 0)
    known = AsyncEngineArgs.__dataclass_fields__
    assert engine_arguments(settings, known).keys() <= known.keys()


def test_check_starts_the_engine_and_its_budget_is_the_plans(checkpoint: Path) -> None:
    kv_cache_bytes = 4 * KV_CACHE_BYTES
    settings = WorkerSettings(engine="vllm", model=str(checkpoint), kv_cache_bytes=kv_cache_bytes)
    plan = plan_engine(settings, CPU, 0)

    done = run("check", "--json", PECIA_MODEL=str(checkpoint), PECIA_KV_CACHE_BYTES=str(kv_cache_bytes))

    assert done.returncode == 1, done.stderr[-3000:]
    assert "Exception ignored" not in done.stderr
    checked = told(done)
    assert checked["accuracy"] < 0.5, "its weights are made up"
    assert checked["slots"] == CPU.settings["max_num_seqs"]
    assert checked["predicted_tokens"] == checked["counted_tokens"] > 100
    # vLLM's blocks hold more tokens than one on the CPU, and it keeps one of them for itself.
    assert plan.kv_tokens == pytest.approx(checked["budget_tokens"], abs=256)
    assert 0 < checked["kv_used"] < 1, "as vLLM counts its blocks"
    assert (checked["preemptions"], checked["acceptance"]) == (0, None)


def test_tune_writes_a_profile_that_the_engine_starts_with(endless_checkpoint: Path, tmp_path: Path) -> None:
    model = {"PECIA_MODEL": str(endless_checkpoint), "PECIA_MAX_OUTPUT_TOKENS": "16", "PECIA_STAGES": "read"}
    model |= {"PECIA_KV_CACHE_BYTES": str(4 * KV_CACHE_BYTES), "PECIA_MAX_NUM_BATCHED_TOKENS": "4096"}
    path = tmp_path / "tuned.toml"

    done = run("tune", "--json", "--most", "2", "--output", str(path), **model)

    assert done.returncode == 0, done.stderr[-3000:]
    found = told(done)
    most, *fewer = ((point["sequences"], point["failed"]) for point in found["points"])
    assert (most, *fewer) in [((2, ""),), ((2, ""), (1, ""))], "the knee, if that is fewer"
    best = found["best"]
    assert best in found["points"]
    assert best["pages_per_s"] > 0
    assert found["speed"]["base_s"] > 0
    chosen = merged(WorkerSettings(engine="vllm", profile=str(path)), profile_named(str(path)), 0)
    assert (chosen.model, chosen.max_num_seqs) == (str(endless_checkpoint), best["sequences"])
    assert chosen.max_num_batched_tokens == 4096
