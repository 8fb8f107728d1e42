"""What vLLM says through Pecia is what it says by itself, and Pecia counts it right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline import INSTRUCTION, MOST_TOKENS, PAGES, picture
from pecia_schemas import DocumentType, Verdict
from pecia_schemas.cost import EXPECTED_OUTPUT_TOKENS
from pecia_workers.engines import Engine, EngineRefusedError, EngineRequest, Generation

PIXELS_OF_A_TOKEN = 28 * 28


@asynccontextmanager
async def started(engine: Engine) -> AsyncIterator[Engine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def asked(number: int, most: int | None = None) -> EngineRequest:
    return EngineRequest(
        id=str(number),
        images=(picture(number),),
        document_type=DocumentType.PRESCRIPTION,
        instruction=INSTRUCTION,
        max_output_tokens=most or MOST_TOKENS,
    )


@pytest.mark.parametrize("kind", ["checkpoint", "awq_checkpoint"])
def test_sixty_four_pages_read_together_say_what_the_offline_api_says(
    kind: str,
    request: pytest.FixtureRequest,
    make_vllm: Callable[..., Engine],
    answers_offline: Callable[[Path], list[dict[str, Any]]],
) -> None:
    model = request.getfixturevalue(kind)

    async def story() -> list[Generation]:
        async with started(make_vllm(model)) as engine:
            return await asyncio.gather(*(engine.generate(asked(number)) for number in range(PAGES)))

    read = asyncio.run(story())
    offline = answers_offline(model)

    assert [answer.text for answer in read] == [told["text"] for told in offline]
    assert [answer.usage.prompt for answer in read] == [told["prompt"] for told in offline]
    assert len({answer.text for answer in read}) > PAGES / 2, "the model does not look at the pictures"


def test_every_token_is_counted(make_vllm: Callable[..., Engine], endless_checkpoint: Path) -> None:
    async def story() -> None:
        async with started(make_vllm(endless_checkpoint)) as engine:
            answer = await engine.generate(asked(0))
            usage = answer.usage
            height, width = picture(0).shape[:2]
            assert usage.image == height * width / PIXELS_OF_A_TOKEN
            assert usage.image < usage.prompt
            assert usage.output == MOST_TOKENS
            assert answer.verdict is Verdict.TRUNCATED
            assert answer.first_token_s
            assert 0 < answer.first_token_s < 60

    asyncio.run(story())


def test_the_budget_is_the_kv_cache_and_a_cost_is_exact_once_the_engine_holds_the_page(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path
) -> None:
    async def story() -> None:
        async with started(make_vllm(endless_checkpoint, max_num_seqs=4)) as engine:
            # 64 MiB; a token takes keys and values of two layers, two heads of 64 numbers in two bytes each.
            assert engine.budget.tokens == (1 << 26) // (2 * 2 * 2 * 64 * 2)
            assert engine.budget.slots == 4
            request = asked(1, most=400)
            reading = asyncio.create_task(engine.generate(request))
            while not engine.load().running:  # noqa: ASYNC110  an engine rings no bell
                await asyncio.sleep(0.005)
            cost = engine.cost(request)
            assert engine.load().kv_used > 0
            prompt = (await reading).usage.prompt
            assert cost == prompt + EXPECTED_OUTPUT_TOKENS[DocumentType.PRESCRIPTION]

    asyncio.run(story())


def test_a_picture_beyond_the_context_is_refused_and_the_engine_goes_on(
    make_vllm: Callable[..., Engine], checkpoint: Path
) -> None:
    huge = np.zeros((1400, 1400, 3), dtype=np.uint8)  # 1,280 tokens

    async def story() -> Generation:
        async with started(make_vllm(checkpoint, max_model_len=1024)) as engine:
            with pytest.raises(EngineRefusedError, match="1024"):
                await engine.generate(EngineRequest(id="x", images=(huge,), document_type=DocumentType.MIXED))
            return await engine.generate(asked(0))

    assert asyncio.run(story()).text


def test_an_answer_ends_with_the_context_and_says_so(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path
) -> None:
    async def story() -> Generation:
        async with started(make_vllm(endless_checkpoint, max_model_len=400)) as engine:
            return await engine.generate(asked(0, most=4000))

    answer = asyncio.run(story())

    assert answer.usage.prompt + answer.usage.output == 400
    assert answer.verdict is Verdict.TRUNCATED


def test_a_loop_is_cut_early(make_vllm: Callable[..., Engine], looping_checkpoint: Path) -> None:
    async def story() -> Generation:
        async with started(make_vllm(looping_checkpoint)) as engine:
            return await engine.generate(asked(0, most=1000))

    answer = asyncio.run(story())

    assert answer.verdict is Verdict.REPETITION
    assert answer.usage.output < 120


def test_an_option_of_vllms_own_reaches_the_engine(
    make_vllm: Callable[..., Engine], checkpoint: Path
) -> None:
    async def story() -> None:
        engine = make_vllm(checkpoint, engine_options={"num_gpu_blocks_override": 40, "block_size": 32})
        async with started(engine):
            assert engine.budget.tokens == 40 * 32

    asyncio.run(story())


def test_a_repeated_page_is_read_out_of_the_cache(make_vllm: Callable[..., Engine], checkpoint: Path) -> None:
    async def story() -> tuple[Generation, Generation]:
        async with started(make_vllm(checkpoint, engine_options={"block_size": 32})) as engine:
            return await engine.generate(asked(0)), await engine.generate(asked(0))

    first, second = asyncio.run(story())

    assert first.usage.cached == 0
    assert 0 < second.usage.cached < second.usage.prompt
    assert second.text == first.text
