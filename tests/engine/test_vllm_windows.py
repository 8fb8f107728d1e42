"""What a request takes of the cache of a model with a sliding window is what admission counts for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from asking_openai import started
from checkpoints import make_smolvlm
from offline import asked
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import Engine, Load
from pecia_workers.engines.models import kv_shape, kv_tokens, layers_planned, local_model

BLOCK, WINDOW = 32, 128
CACHE = 1 << 22
TOGETHER, WRITES = 4, 200
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
        if load.running == TOGETHER and len(load.written) == TOGETHER and min(load.written.values()) > 0:
            seen.append(load)
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
