"""What vLLM says through Pecia is what it says by itself, and Pecia counts it right."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline import KV_CACHE_BYTES, MOST_TOKENS, NUMBERS_OF_A_TOKEN, PAGES, asked, picture
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, DocumentType
from pecia_workers.engines.models import fingerprint, visible_gpus
from pecia_workers.protocol.base import Budget, Engine, EngineRefusedError, Generation, Load
from tests.shared.asking_openai import started

PIXELS_OF_A_TOKEN = 28 * 28

CONTEXT, BLOCK, BLOCKS = 640, 32, 200
STEP = 256
"""Tokens that the engine computes at once."""


@pytest.fixture(scope="module")
def reading(
    make_vllm: Callable[..., Engine], endless_checkpoint: Path
) -> Iterator[tuple[asyncio.Runner, Engine]]:
    """A small engine whose answers are as long as they may be, and where its coroutines run."""
    options = {"block_size": BLOCK, "num_gpu_blocks_override": BLOCKS}
    sizes = {"max_model_len": CONTEXT, "max_num_seqs": 4, "max_num_batched_tokens": STEP}
    engine = make_vllm(endless_checkpoint, **sizes, stages="read", engine_options=options)
    with started(engine) as runner:
        yield runner, engine


def test_the_engine_says_what_it_runs_and_on_what_and_its_budget_is_what_vllms_own_options_make_it(
    reading: tuple[asyncio.Runner, Engine], endless_checkpoint: Path, checkpoint: Path
) -> None:
    import vllm  # noqa: PLC0415  slow, and every process of the tests would import it

    engine = reading[1]
    assert engine.capabilities.device in ({gpu.name for gpu in visible_gpus()} or {"cpu"})
    assert engine.capabilities.revision == f"vllm {vllm.__version__} {fingerprint([endless_checkpoint])}"
    assert engine.budget == Budget(slots=4, tokens=BLOCKS * BLOCK, block=BLOCK, step_tokens=256)
    assert fingerprint([checkpoint]) != fingerprint([endless_checkpoint])


@pytest.mark.parametrize(
    ("kind", "dtype", "width"),
    [("checkpoint", "float32", 4), ("awq_checkpoint", "float16", 2), ("gptq_checkpoint", "float16", 2)],
)
def test_pages_read_together_say_what_the_offline_api_says(
    *,
    kind: str,
    dtype: str,
    width: int,
    request: pytest.FixtureRequest,
    make_vllm: Callable[..., Engine],
    answers_offline: Callable[[Path, str], list[dict[str, Any]]],
) -> None:
    model = request.getfixturevalue(kind)
    engine = make_vllm(model, engine_options={"dtype": dtype})

    async def story() -> list[Generation]:
        return await asyncio.gather(*(engine.generate(asked(number)) for number in range(PAGES)))

    with started(engine) as runner:
        read = runner.run(story())
        assert engine.budget.tokens == KV_CACHE_BYTES // (NUMBERS_OF_A_TOKEN * width)

    offline = answers_offline(model, dtype)
    assert [answer.text for answer in read] == [told["text"] for told in offline]
    assert [answer.usage.prompt for answer in read] == [told["prompt"] for told in offline]
    assert len({answer.text for answer in read}) > PAGES / 2, "the model does not look at the pictures"


def test_every_token_is_counted(reading: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = reading
    answer = runner.run(engine.generate(asked(0)))
    height, width = picture(0).shape[:2]
    assert answer.usage.image == height * width / PIXELS_OF_A_TOKEN
    assert answer.usage.image < answer.usage.prompt
    assert answer.usage.output == MOST_TOKENS
    assert answer.verdict is Verdict.TRUNCATED
    assert answer.first_token_s


def test_the_tokens_of_an_answer_make_its_text_each_with_its_log_probability(
    reading: tuple[asyncio.Runner, Engine],
) -> None:
    runner, engine = reading
    for number in range(4):
        answer = runner.run(engine.generate(asked(number, log_probabilities=True)))
        assert "".join(text for text, _ in answer.tokens) == answer.text
        assert len(answer.tokens) == answer.usage.output == MOST_TOKENS
        assert all(logged <= 0 for _, logged in answer.tokens)


def test_a_repeated_page_is_read_out_of_the_cache_and_nothing_of_another_tenants(
    reading: tuple[asyncio.Runner, Engine],
) -> None:
    runner, engine = reading
    north = asked(3, tenant="north")
    first, other, same = (
        runner.run(engine.generate(one)) for one in (north, replace(north, tenant="south"), north)
    )
    assert (first.usage.cached, other.usage.cached) == (0, 0)
    assert 0 < same.usage.cached < same.usage.prompt
    assert same.usage.cached % BLOCK == 0
    assert same.text == other.text == first.text


def test_a_cost_is_exact_before_the_engine_has_the_page(reading: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = reading

    async def story() -> tuple[int, Load, int, TokenUsage]:
        request = await engine.fit(asked(2, max_output_tokens=250))
        cost = engine.cost(request)
        answering = asyncio.create_task(engine.generate(request))
        while not sum((load := engine.load()).written.values()):  # noqa: ASYNC110  an engine wakes no one
            await asyncio.sleep(0.005)
        return cost, load, load.written[request.id], (await answering).usage

    cost, load, written, usage = runner.run(story())

    assert cost == usage.prompt + EXPECTED_OUTPUT_TOKENS[DocumentType.PRESCRIPTION]
    assert load.kv_used
    assert 0 < load.kv_used < 1
    assert 0 < written <= usage.output
    assert engine.load().written == {}


def test_a_picture_larger_than_one_step_keeps_its_size(reading: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = reading
    page = np.zeros((476, 476, 3), dtype=np.uint8)
    answer = runner.run(engine.generate(asked(0, images=(page,))))
    assert answer.shrunk_to is None
    assert answer.usage.image == page.shape[0] * page.shape[1] / PIXELS_OF_A_TOKEN > STEP


def test_a_picture_beyond_the_context_is_read_smaller(reading: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = reading
    request = asked(0, images=(np.zeros((1400, 700, 3), dtype=np.uint8),), instruction="")
    answer = runner.run(engine.generate(request))
    assert answer.shrunk_to
    width, height = answer.shrunk_to
    assert height == pytest.approx(2 * width, abs=1)
    assert answer.usage.output == MOST_TOKENS
    assert answer.usage.prompt + MOST_TOKENS > CONTEXT * 0.9, "it shrank more than it had to"


def test_words_beyond_the_context_are_refused_alone(reading: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = reading
    endless = asked(0, instruction="read it " * 900, max_output_tokens=None)
    with pytest.raises(EngineRefusedError, match="fit") as refused:
        runner.run(engine.generate(endless))
    assert refused.value.code is FailureCode.TOO_LARGE
    assert runner.run(engine.generate(asked(0))).text


def test_an_answer_ends_with_the_context_and_says_so(reading: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = reading
    answer = runner.run(engine.generate(asked(0, max_output_tokens=4000)))
    assert answer.usage.prompt + answer.usage.output == CONTEXT
    assert answer.verdict is Verdict.TRUNCATED


def test_a_loop_is_cut_early(make_vllm: Callable[..., Engine], looping_checkpoint: Path) -> None:
    engine = make_vllm(looping_checkpoint)
    with started(engine) as runner:
        answer = runner.run(engine.generate(asked(0, max_output_tokens=1000)))
    assert answer.verdict is Verdict.REPETITION
    assert answer.usage.output < 120
