"""Settings of the fleet arrive in vLLM's own configuration, and those that the CPU can run do what they say."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asking_openai import started
from offline import KV_CACHE_BYTES, NUMBERS_OF_A_TOKEN, picture
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.base import ClipTimes, Engine, EngineRequest
from pecia_workers.engines.vllm.processes import engine_arguments, prepare_environment

SILENT = ("NO_USAGE_STATS", "DO_NOT_TRACK", "DISABLE_TELEMETRY")
REPORTS = """
from pecia_workers.engines.vllm.processes import prepare_environment

prepare_environment("error", on_cpu=True)

from huggingface_hub import constants
from vllm.usage.usage_lib import is_usage_stats_enabled

print(is_usage_stats_enabled(), constants.HF_HUB_DISABLE_TELEMETRY)
"""


def test_kv_blocks_are_moved_to_main_memory(checkpoint: Path) -> None:
    prepare_environment("error", on_cpu=True)
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415  after the environment

    settings = WorkerSettings(engine="vllm", model=str(checkpoint), kv_offload_bytes=3 * 2**29)
    given = engine_arguments(settings, AsyncEngineArgs.__dataclass_fields__)
    moved = AsyncEngineArgs(**given).create_engine_config().kv_transfer_config
    assert moved.kv_connector == "OffloadingConnector"
    assert moved.kv_connector_extra_config["cpu_bytes_to_use"] == 3 * 2**29


@pytest.mark.usefixtures("_avx512")
def test_eight_bits_hold_twice_the_tokens(make_vllm: Callable[..., Engine], checkpoint: Path) -> None:
    engine = make_vllm(checkpoint, kv_cache_dtype="fp8")
    page = EngineRequest(id="1", images=(picture(0),), workload=DocumentType.MIXED, max_output_tokens=8)
    with started(engine) as runner:
        assert engine.budget.tokens == KV_CACHE_BYTES // NUMBERS_OF_A_TOKEN
        answer = runner.run(engine.generate(page))
    assert answer.usage.output > 0


def test_nothing_is_reported_to_anybody() -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.endswith(SILENT)}
    asked = subprocess.run(
        [sys.executable, "-c", REPORTS], env=inherited, check=True, capture_output=True, text=True
    )
    assert asked.stdout.split() == ["False", "True"]


def test_dropped_tokens_of_a_clip_cost_nothing(make_vllm: Callable[..., Engine], checkpoint: Path) -> None:
    """vLLM 0.32 cannot run it on the CPU: what its renderer makes of it says what it costs."""
    frames = tuple(np.zeros((364, 364, 3), dtype=np.uint8) for _ in range(8))
    times = ClipTimes(fps=2.0, indices=tuple(range(8)), duration=4.0)
    clip = EngineRequest(id="clip", images=frames, clip=times, workload="caption-brief", max_output_tokens=8)
    engine = make_vllm(checkpoint, video_pruning_rate=0.5)

    with started(engine) as runner:
        ready = runner.run(engine.fit(clip))
        cost = engine.cost(ready)

    assert cost < 8 // 2 * (364 // 28) ** 2
