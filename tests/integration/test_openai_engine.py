"""The engine that asks a server, and a real server on loopback that answers, fails, restarts and dies."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from chat_server import Behaviour, ChatServerDouble, Fault, picture_of, serving
from pecia_schemas import DocumentType, Verdict
from pecia_schemas.cost import EXPECTED_OUTPUT_TOKENS, PROMPT_TOKENS
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import (
    EngineDeadError,
    EngineError,
    EngineRefusedError,
    EngineRequest,
    EngineUnavailableError,
)
from pecia_workers.engines.base import ClipTimes, Generation, Load, Sampling
from pecia_workers.engines.loops import LOOPS
from pecia_workers.engines.openai_engine import OpenAiEngine
from pecia_workers.engines.openai_server import Retries

WORDS = "Read the prescription of Kim Minji."
KEY = "sesame"
PAGE = np.random.default_rng(1).integers(0, 255, (56, 84, 3), dtype=np.uint8)
LONG = " ".join(map(str, range(300)))
SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}}}


def asked(number: int = 0, **changes: Any) -> EngineRequest:
    request = EngineRequest(
        id=f"part-{number}", images=(PAGE,), workload=DocumentType.PRESCRIPTION, instruction=WORDS
    )
    return replace(request, **changes)


def engine_at(server: ChatServerDouble, **settings: Any) -> OpenAiEngine:
    given = {"engine_url": server.url, "engine_api_key": SecretStr(KEY), **settings}
    return OpenAiEngine(WorkerSettings(engine="openai", **given), Retries(attempts=3, first_s=0.01))


@contextmanager
def started(engine: OpenAiEngine) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.start())
            yield runner
        finally:
            runner.run(engine.stop())


def answer(server: ChatServerDouble, request: EngineRequest | None = None, **settings: Any) -> Generation:
    engine = engine_at(server, **settings)
    with started(engine) as runner:
        return runner.run(engine.generate(request or asked()))


def refusal(server: ChatServerDouble, **settings: Any) -> Exception:
    """Return why the engine did not start."""
    with pytest.raises((EngineUnavailableError, EngineDeadError)) as refused:
        answer(server, **settings)
    return refused.value


async def under_way(server: ChatServerDouble) -> None:
    while not server.answering:  # noqa: ASYNC110  a server rings no bell
        await asyncio.sleep(0.01)


def test_a_page_is_asked_for_without_loss_and_counted_as_the_server_counts() -> None:
    with serving() as server:
        told = answer(server, asked(max_output_tokens=99, priority=2, sampling=Sampling(seed=7)))

    (body,) = server.pages
    shown, words = body["messages"][0]["content"]
    assert np.array_equal(np.array(picture_of(shown)), PAGE)
    assert words["text"] == WORDS
    options = {"model": "tiny", "max_tokens": 99, "priority": 2, "seed": 7, "temperature": 0.0, "top_p": 1.0}
    assert body.items() >= options.items()
    assert (body["top_k"], body["repetition_penalty"], body["repetition_detection"]) == (-1, 1.0, LOOPS)
    assert told.text == "Amoxicillin 500 mg"
    assert (told.usage.prompt, told.usage.cached, told.usage.output) == (10 + 6 + 6, 16, 3)
    assert told.first_token_s


def test_a_schema_an_adapter_and_sampling_are_passed_on() -> None:
    behaviour = Behaviour(models=({"id": "tiny"}, {"id": "loud", "parent": "tiny"}))
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=40, repetition_penalty=1.2)
    with serving(behaviour) as server:
        answer(server, asked(schema=SCHEMA, adapter="loud", sampling=sampling), adapters={"loud": ""})

    (body,) = server.pages
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["model"] == "loud"
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 40)
    assert body["repetition_penalty"] == 1.2


def test_no_model_of_the_servers_is_asked_for_but_those_of_the_settings() -> None:
    behaviour = Behaviour(models=({"id": "tiny"}, {"id": "another"}))
    with serving(behaviour) as server, pytest.raises(EngineRefusedError, match="adapter"):
        answer(server, asked(adapter="another"), model="tiny")

    assert not server.pages


def test_the_frames_of_a_clip_are_pictures() -> None:
    frames = tuple(np.full((56, 56, 3), shade, dtype=np.uint8) for shade in (0, 120, 240))
    clip = ClipTimes(fps=2.0, indices=(0, 1, 2), duration=1.5)
    with serving() as server:
        answer(server, asked(images=frames, clip=clip, workload="caption-brief"))

    *shown, _ = server.pages[0]["messages"][0]["content"]
    shades = [np.array(picture_of(part)).mean() for part in shown]
    assert shades == pytest.approx([0, 120, 240], abs=2)


@pytest.mark.parametrize(
    ("text", "finish_reason", "verdict"),
    [
        ("mg", "stop", Verdict.OK),
        ("mg", "length", Verdict.TRUNCATED),
        ("mg mg", "repetition", Verdict.REPETITION),
        ("", "stop", Verdict.UNREADABLE),
    ],
)
def test_how_an_answer_ended_is_its_verdict(text: str, finish_reason: str, verdict: Verdict) -> None:
    with serving(Behaviour(text=text, finish_reason=finish_reason)) as server:
        assert answer(server).verdict is verdict


def test_an_answer_that_the_server_cut_off_is_none() -> None:
    with (
        serving(Behaviour(finish_reason="content_filter")) as server,
        pytest.raises(EngineError, match="early"),
    ):
        answer(server)


def test_a_loop_that_the_server_does_not_end_is_left() -> None:
    with serving(Behaviour(text="before " + "0 mg " * 5000)) as server:
        told = answer(server)

    assert told.verdict is Verdict.REPETITION
    assert told.text.startswith("before 0 mg 0 mg")
    assert 96 < told.usage.output < 120
    assert told.usage.prompt == PROMPT_TOKENS + 6
    assert server.given_up == 1


def test_options_that_the_server_refuses_are_left_out() -> None:
    refuses = frozenset({"priority", "repetition_detection"})
    with serving(Behaviour(refuses=refuses)) as server, capture_logs() as logs:
        told = answer(server, asked(priority=2, sampling=Sampling(top_k=5)))

    assert told.verdict is Verdict.OK
    assert server.pages[0]["top_k"] == 5
    assert not server.pages[0].keys() & {"priority", "repetition_detection"}
    (told_once,) = [line["options"] for line in logs if line["event"] == "engine_server_lacks"]
    assert told_once == sorted(refuses)


def test_a_server_that_counts_nothing_is_taken_at_our_own_price() -> None:
    with serving(Behaviour(counts=False)) as server:
        usage = answer(server).usage

    assert (usage.prompt, usage.image, usage.output) == (PROMPT_TOKENS + 6, 6, 3)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, headers={"Retry-After": "0"}),
        Fault(status=503, headers={"Retry-After": formatdate(usegmt=True)}),
        Fault(status=500),
        Fault(cut_after=0),
        Fault(cut_after=2),
        Fault(status=500, error_after=1),
    ],
    ids=["429", "503", "500", "cut at once", "cut in the midst", "error in the midst"],
)
def test_a_request_that_got_no_answer_is_asked_again(fault: Fault) -> None:
    with serving(Behaviour(faults=[fault])) as server:
        told = answer(server)

    assert told.text == "Amoxicillin 500 mg"
    assert len(server.pages) == 2


def test_the_server_is_left_alone_for_as_long_as_it_asked() -> None:
    with serving(Behaviour(faults=[Fault(status=429, headers={"Retry-After": "1"})])) as server:
        begun = time.monotonic()
        answer(server)

    assert time.monotonic() - begun >= 1


def test_a_request_is_not_asked_for_ever() -> None:
    never = pytest.raises(EngineError, match="no answer in 3 attempts, at last: HTTP 503")
    with serving(Behaviour(faults=[Fault(status=503)] * 9)) as server, never:
        answer(server)

    assert len(server.pages) == 3


def test_a_server_that_falls_silent_is_not_waited_for_for_ever() -> None:
    never = pytest.raises(EngineError, match="no answer in 3 attempts, at last: it fell silent")
    with serving(Behaviour(faults=[Fault(silent_s=1)] * 3)) as server, never:
        answer(server, engine_timeout=0.2)


@pytest.mark.parametrize("error_after", [None, 1], ids=["at once", "in the midst"])
def test_a_refusal_is_final_and_repeats_nothing_of_the_request(error_after: int | None) -> None:
    fault = Fault(status=400, body=f"bad prompt: {WORDS}".encode(), error_after=error_after)
    final = pytest.raises(EngineRefusedError, match="HTTP 400")
    with serving(Behaviour(faults=[fault])) as server, capture_logs() as logs, final as refused:
        answer(server)

    assert len(server.pages) == 1
    assert "Minji" not in "".join(traceback.format_exception(refused.value)) + repr(logs)


def test_an_answer_longer_than_the_context_leaves_ends_with_it() -> None:
    with serving(Behaviour(most_answer=50)) as server:
        told = answer(server, asked(max_output_tokens=60))

    assert told.verdict is Verdict.OK
    assert [body.get("max_tokens") for body in server.pages] == [60, None]


def test_no_more_requests_are_there_at_a_time_than_connections() -> None:
    with serving(Behaviour(takes_s=0.1)) as server:
        engine = engine_at(server, engine_connections=2)

        async def story() -> None:
            await asyncio.gather(*(engine.generate(asked(number)) for number in range(6)))

        with started(engine) as runner:
            runner.run(story())

    assert engine.budget.slots == 2
    assert server.most_answering == 2


def test_a_request_given_up_ends_at_the_server(eventually: Callable[..., Any]) -> None:
    with serving(Behaviour(text=LONG, takes_s=20)) as server:
        engine = engine_at(server)

        async def story() -> None:
            reading = asyncio.create_task(engine.generate(asked()))
            await under_way(server)
            reading.cancel()
            await asyncio.wait([reading])

        with started(engine) as runner:
            runner.run(story())
            eventually(lambda: server.given_up == 1)


def test_a_server_that_is_not_ready_is_awaited_and_the_log_says_for_what() -> None:
    with serving(Behaviour(unready=2)) as server, capture_logs() as logs:
        assert answer(server).verdict is Verdict.OK

    (told,) = [line for line in logs if line["event"] == "engine_server_awaited"]
    assert told["url"] == server.url
    assert "503" in told["because"]


def test_a_server_that_never_gets_ready_is_not_awaited_for_ever() -> None:
    with serving(Behaviour(unready=10**6)) as server:
        error = refusal(server, engine_ready_timeout=0.2)

    assert "within 0.2 s: HTTP 503. Start it, or correct PECIA_ENGINE_URL." in str(error)


def test_an_address_where_nothing_listens_is_named() -> None:
    with serving() as server:
        server.kill()
        error = refusal(server, engine_ready_timeout=0.1)

    assert f"No server was ready at {server.url} within 0.1 s: it cannot be reached." in str(error)


def test_something_else_that_answers_is_no_server_for_us() -> None:
    with serving() as server:
        assert "(HTTP 404)" in str(refusal(server, engine_url=f"{server.url}/other"))


def test_the_key_goes_into_its_header_alone() -> None:
    with serving(Behaviour(key=KEY)) as server, capture_logs() as logs:
        answer(server)
        error = refusal(server, engine_api_key=SecretStr("wrong-sesame"))

    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert "PECIA_ENGINE_API_KEY" in str(error)
    assert KEY not in json.dumps(server.asked) + repr(logs) + str(error)


def test_a_key_that_is_withdrawn_ends_the_engine() -> None:
    with serving() as server:
        engine = engine_at(server)
        with started(engine) as runner:
            server.behaviour.key = "another"
            with pytest.raises(EngineDeadError, match="PECIA_ENGINE_API_KEY"):
                runner.run(engine.generate(asked()))
            with pytest.raises(EngineDeadError):
                engine.load()


@pytest.mark.parametrize("has_health", [True, False])
def test_a_server_may_restart_under_a_request(has_health: bool) -> None:
    behaviour = Behaviour(text=LONG, takes_s=20, has_health=has_health)
    with serving(behaviour) as first:
        engine = engine_at(first)

        async def story() -> tuple[Generation, list[dict[str, Any]]]:
            reading = asyncio.create_task(engine.generate(asked()))
            await under_way(first)
            await asyncio.to_thread(first.kill)
            await asyncio.sleep(0.3)
            with serving(Behaviour(has_health=has_health), first.server_port) as second:
                return await reading, second.pages

        with started(engine) as runner:
            told, pages = runner.run(story())

    assert told.text == "Amoxicillin 500 mg"
    assert len(pages) == 1


def test_a_server_that_stays_away_is_dead() -> None:
    with serving() as server:
        engine = engine_at(server, engine_ready_timeout=0.5)
        with started(engine) as runner:
            server.kill()
            with pytest.raises(EngineDeadError, match=r"not answered for 0\.5 s"):
                runner.run(engine.generate(asked()))
            with pytest.raises(EngineDeadError):
                engine.load()


def test_an_idle_engine_finds_out_that_its_server_died() -> None:
    with serving() as server:
        engine = engine_at(server, engine_ready_timeout=0.5)

        async def story() -> None:
            server.kill()
            while engine.load() == Load(running=0, waiting=0):  # noqa: ASYNC110  an engine rings no bell
                await asyncio.sleep(0.05)

        with started(engine) as runner, pytest.raises(EngineDeadError):
            runner.run(asyncio.wait_for(story(), 30))


def test_what_was_counted_once_is_an_exact_price_for_pages_of_its_size() -> None:
    with serving(Behaviour(frame_tokens=123)) as server:
        engine = engine_at(server)
        with started(engine) as runner:
            estimate = engine.cost(asked())
            prompt = runner.run(engine.generate(asked())).usage.prompt
            exact = engine.cost(asked(1, images=(255 - PAGE,)))

    expected = EXPECTED_OUTPUT_TOKENS[DocumentType.PRESCRIPTION]
    assert estimate == PROMPT_TOKENS + 6 + expected
    assert exact == prompt + expected == 123 + 6 + 6 + expected


def test_a_budget_in_tokens_rests_on_the_servers_tokenizer_which_sees_no_page() -> None:
    with serving(Behaviour(tokenizes=True)) as server:
        engine = engine_at(server, max_tokens_in_flight=1000)
        with started(engine) as runner:
            request = runner.run(engine.fit(asked()))
            cost = engine.cost(request)
            prompt = runner.run(engine.generate(request)).usage.prompt
            runner.run(engine.fit(asked(1)))

    assert engine.budget.tokens == 1000
    assert cost == prompt + EXPECTED_OUTPUT_TOKENS[DocumentType.PRESCRIPTION]
    _, page = server.tokenized
    shown, _ = page["messages"][0]["content"]
    assert not np.array(picture_of(shown)).any()


def test_a_budget_in_tokens_without_a_tokenizer_is_an_estimate_and_says_so() -> None:
    with serving() as server, capture_logs() as logs:
        answer(server, max_tokens_in_flight=1000)

    assert "cost_is_an_estimate" in {line["event"] for line in logs}


def test_a_price_that_was_not_the_servers_is_an_alarm() -> None:
    with serving() as server:
        engine = engine_at(server)
        with started(engine) as runner:
            runner.run(engine.generate(asked()))
            server.behaviour.frame_tokens += 1
            runner.run(engine.generate(asked(1)))

            assert engine.load().drifted == 1
