"""Settings of the fleet arrive in vLLM's own configuration, and what they say of its cache is what it holds."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoints import make_smolvlm
from offline import KV_CACHE_BYTES, NUMBERS_OF_A_TOKEN, asked
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.models import kv_shape, kv_tokens, layers_planned, local_model
from pecia_workers.engines.vllm.processes import engine_arguments, engine_environment
from pecia_workers.protocol.base import ClipTimes, Engine, EngineRequest, Load
from tests.shared.asking_openai import started

SILENT = ("NO_USAGE_STATS", "DO_NOT_TRACK", "DISABLE_TELEMETRY")
REPORTS = """
import os

from pecia_workers.engines.vllm.processes import engine_environment

os.environ.update(engine_environment("error", on_cpu=True))

from huggingface_hub import constants
from vllm.usage.usage_lib import is_usage_stats_enabled

print(is_usage_stats_enabled(), constants.HF_HUB_DISABLE_TELEMETRY)
"""


def test_kv_blocks_are_moved_to_main_memory(checkpoint: Path) -> None:
    os.environ.update(engine_environment("error", on_cpu=True))
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415  after the environment

    settings = WorkerSettings(engine="vllm", model=str(checkpoint), kv_offload_bytes=3 * 2**29)
    given = engine_arguments(settings, AsyncEngineArgs.__dataclass_fields__)
    moved = AsyncEngineArgs(**given).create_engine_config().kv_transfer_config
    assert moved.kv_connector == "OffloadingConnector"
    assert moved.kv_connector_extra_config["cpu_bytes_to_use"] == 3 * 2**29


@pytest.mark.usefixtures("_avx512")
def test_eight_bits_hold_twice_the_tokens(make_vllm: Callable[..., Engine], checkpoint: Path) -> None:
    engine = make_vllm(checkpoint, kv_cache_dtype="fp8")
    page = asked(0, instruction="", max_output_tokens=8)
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
        cost = engine.cost(runner.run(engine.fit(clip)))

    assert cost < 8 // 2 * (364 // 28) ** 2


BLOCK, WINDOW = 32, 128
CACHE = 1 << 22
TOGETHER, WRITES = 4, 200
SETTLED = 4
"""Tokens that each has written once the blocks behind its window are surely free."""
AHEAD = 4
"""Tokens for which blocks are there before they are taken in."""
WORDS = "Transcribe this prescription as Markdown. " * 120


async def read_together(engine: Engine) -> tuple[int, list[Load]]:
    """Return the length of each prompt, and what the engine said while all requests wrote."""
    requests = [
        asked(number, images=(), instruction=f"{number} {WORDS}", max_output_tokens=WRITES)
        for number in range(TOGETHER)
    ]
    reading = asyncio.gather(*map(engine.generate, requests))
    seen = []
    while not reading.done():
        await asyncio.sleep(0)
        load = engine.load()
        if (
            load.running == TOGETHER
            and len(load.written) == TOGETHER
            and min(load.written.values()) > SETTLED
        ):
            seen.append(replace(load, written=dict(load.written)))  # which goes on counting
    (prompt,) = {generation.usage.prompt for generation in await reading}
    return prompt, seen


@pytest.mark.parametrize("window", [WINDOW, None])
def test_the_engine_holds_what_its_layers_are_said_to_keep(
    make_vllm: Callable[..., Engine], tmp_path: Path, window: int | None
) -> None:
    model = make_smolvlm(tmp_path / "smolvlm", window=window)
    options = {"block_size": BLOCK, "limit_mm_per_prompt": {"image": 1}}
    engine = make_vllm(model, kv_cache_bytes=CACHE, engine_options=options)

    with started(engine) as runner:
        prompt, seen = runner.run(read_together(engine))
        budget = engine.budget

    assert budget.tokens
    assert bool(budget.layers.windows) is bool(window)
    assert seen
    for load in seen:
        told = [budget.layers.held(prompt + done, 0, begun=True) for done in load.written.values()]
        assert load.kv_used is not None
        unfilled = TOGETHER * budget.layers.held(BLOCK + AHEAD, 0, begun=True)
        assert sum(told) - unfilled <= load.kv_used * budget.tokens <= sum(told) + unfilled
    share = budget.layers.held(prompt, 0, begun=True) / budget.tokens
    known = local_model(str(model))
    assert known
    shape = kv_shape(WorkerSettings(), known)
    planned = layers_planned(shape).held(prompt, 0, begun=True) / kv_tokens(shape, CACHE)
    assert planned == pytest.approx(share, rel=0.1), "as `pecia engine plan` has it"
