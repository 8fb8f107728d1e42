"""vLLM's own server, asked over HTTP, keeps every engine's promises and says what vLLM in our process says."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import SecretStr

import offline
from checkpoints import make_adapter
from fleets import READY_S
from offline import SCHEMA, clip, picture
from pecia_schemas.results import TokenUsage, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.openai.chat import EXTRAS
from pecia_workers.engines.openai.engine import OpenAiEngine
from pecia_workers.engines.registry import create_engine
from pecia_workers.protocol.base import Engine, Generation, Sampling
from tests.shared.asking_openai import started
from tests.shared.engine_contract import *  # noqa: F403  the tests themselves
from tests.shared.limits import eventually
from vllm_server import KEY, VllmServer, serving

MOST_TOKENS = 24
asked = partial(offline.asked, max_output_tokens=MOST_TOKENS)


@pytest.fixture(scope="module")
def server(
    fork_server: ForkServerContext, endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("server")
    adapter = make_adapter(endless_checkpoint, directory / "loud")
    with serving(fork_server, endless_checkpoint, adapter, directory / "log") as running:
        yield running


@pytest.fixture(scope="module")
def make(server: VllmServer) -> Callable[..., Engine]:
    def create(**settings: Any) -> Engine:
        address = {"engine_url": server.root, "engine_api_key": SecretStr(KEY)}
        given = {**address, "engine_ready_timeout": READY_S, **settings}
        return create_engine(WorkerSettings(engine="openai", **given))

    return create


@pytest.fixture(scope="module")
def make_engine(make: Callable[..., Engine]) -> Callable[[], Engine]:
    return lambda: make(max_num_seqs=1, max_output_tokens=300)


@pytest.fixture(scope="module")
def page() -> NDArray[np.uint8]:
    """Coarse noise on which the model does not begin to loop."""
    coarse = np.random.default_rng(0).integers(0, 255, (18, 13, 3), dtype=np.uint8)
    return coarse.repeat(100, axis=0).repeat(100, axis=1)[:1754, :1240]


@pytest.fixture
def acceptable() -> set[Verdict]:
    return {Verdict.TRUNCATED}


@pytest.fixture(scope="module")
def asking(make: Callable[..., Engine]) -> Iterator[tuple[asyncio.Runner, Engine]]:
    engine = make(adapters={"loud": ""}, max_tokens_in_flight=4000)
    with started(engine) as runner:
        yield runner, engine


def counted(answer: Generation) -> TokenUsage:
    """Return what does not depend on who asked before."""
    return answer.usage.model_copy(update={"cached": 0})


def test_it_says_what_vllm_in_our_process_says(
    asking: tuple[asyncio.Runner, Engine],
    make_vllm: Callable[..., Engine],
    endless_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, engine = asking
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    inside = make_vllm(endless_checkpoint, engine_options={"dtype": "float32"})
    requests = [
        *(asked(number, log_probabilities=number % 2 == 0) for number in range(8)),
        asked(8, images=(picture(1), picture(2))),
        asked(9, images=(), instruction="Say this in one sentence."),
        asked(10, sampling=Sampling(temperature=1.5, top_k=1, repetition_penalty=1.2)),
    ]

    async def answers(of: Engine) -> list[Generation]:
        return list(await asyncio.gather(*(of.generate(request) for request in requests)))

    told = runner.run(answers(engine))
    with started(inside) as other:
        expected = other.run(answers(inside))

    assert [answer.text for answer in told] == [answer.text for answer in expected]
    assert [counted(answer) for answer in told] == [counted(answer) for answer in expected]
    logged = zip(told, requests, strict=True)
    sizes = [answer.usage.output if request.log_probabilities else 0 for answer, request in logged]
    assert [len(answer.tokens) for answer in told] == [len(answer.tokens) for answer in expected] == sizes
    for one, same in zip(told, expected, strict=True):
        sure, as_sure = ([likely for _, likely in answer.tokens] for answer in (one, same))
        assert sure == pytest.approx(as_sure, abs=1e-3)
        assert all(likely <= 0 for likely in sure)


def test_the_server_takes_all_that_vllm_takes(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking

    for request in (asked(3), clip(), asked(4, images=(), instruction="Say it.")):
        cost = engine.cost(runner.run(engine.fit(request)))  # as the server's tokenizer counts it
        answer = runner.run(engine.generate(request))
        assert cost == engine.cost(request) == answer.usage.prompt + MOST_TOKENS
        assert (answer.usage.image > 0) == bool(request.images)
        assert answer.first_token_s

    assert engine.load().drifted == 0
    assert isinstance(engine, OpenAiEngine)
    assert engine._server
    assert engine._server.dialect.extras == set(EXTRAS)


def test_a_text_follows_its_schema_and_an_adapter_changes_it(asking: tuple[asyncio.Runner, Engine]) -> None:
    runner, engine = asking
    answer = runner.run(engine.generate(asked(0, schema=SCHEMA, max_output_tokens=200)))
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert answer.verdict is Verdict.OK
    plain, loud = (runner.run(engine.generate(asked(1, adapter=name))).text for name in (None, "loud"))
    assert plain != loud


def test_a_request_given_up_ends_in_the_server(
    asking: tuple[asyncio.Runner, Engine], server: VllmServer, page: Any
) -> None:
    runner, engine = asking
    endless = asked(0, images=(page,), instruction="", max_output_tokens=700)
    before = server.generated

    async def give_up() -> None:
        reading = asyncio.create_task(engine.generate(endless))
        while not await asyncio.to_thread(lambda: server.running):  # noqa: ASYNC110  a server wakes no one
            await asyncio.sleep(0.02)
        reading.cancel()
        await asyncio.wait([reading])

    runner.run(give_up())

    eventually(lambda: not server.running)
    assert server.generated - before < 700, "it was read to its end"
