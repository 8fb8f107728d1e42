"""The engine that asks a server: what it asks, what it makes of the answer, what a page costs."""

from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Verdict
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, PROMPT_TOKENS, DocumentType
from pecia_workers.engines.requests import LOOPS
from pecia_workers.protocol.base import ClipTimes, EngineError, EngineRefusedError, Sampling
from tests.shared.asking_openai import PAGE, WORDS, answer, asked, at_work
from tests.shared.chat_server import Behaviour, picture_of, serving

SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}}}
SMALL: tuple[dict[str, Any], ...] = ({"id": "tiny", "max_model_len": 500},)


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
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2}
    assert body.items() >= (given | {"model": "loud"}).items()


def test_what_only_some_models_need_is_said_for_them_alone() -> None:
    sampling = Sampling(
        stop=("</doctag>",), presence_penalty=1.0, skip_special_tokens=False, extra_args={"ngram_size": 30}
    )
    with serving() as server:
        answer(server, asked(instruction="", system="", sampling=sampling))
        answer(server)

    special, plain = server.pages
    assert [message["role"] for message in special["messages"]] == ["system", "user"]
    assert [part["type"] for part in special["messages"][1]["content"]] == ["image_url"]
    assert (special["stop"], special["presence_penalty"]) == (["</doctag>"], 1.0)
    assert (special["skip_special_tokens"], special["vllm_xargs"]) == (False, {"ngram_size": 30})
    assert [message["role"] for message in plain["messages"]] == ["user"]
    assert not {"stop", "presence_penalty"} & plain.keys()


def test_no_model_of_the_servers_is_asked_for_but_those_of_the_settings() -> None:
    behaviour = Behaviour(models=({"id": "tiny"}, {"id": "another"}))
    with serving(behaviour) as server, pytest.raises(EngineRefusedError, match="adapter"):
        answer(server, asked(adapter="another"), model="tiny")
    assert not server.pages


def test_a_schema_that_the_server_refuses_is_told_from_a_page_that_is_too_large() -> None:
    behaviour = Behaviour(refuses=frozenset({"response_format"}))
    with serving(behaviour) as server, at_work(server) as (runner, engine):
        runner.run(engine.generate(asked()))
        with pytest.raises(EngineRefusedError) as refused:
            runner.run(engine.generate(asked(schema=SCHEMA)))
    assert refused.value.code is FailureCode.FIELDS_UNAVAILABLE


def test_the_frames_of_a_clip_are_pictures() -> None:
    frames = tuple(np.full((56, 56, 3), shade, dtype=np.uint8) for shade in (0, 120, 240))
    clip = ClipTimes(fps=2.0, indices=(0, 1, 2), duration=1.5)
    with serving() as server:
        answer(server, asked(images=frames, clip=clip, workload="caption-brief"))
    *shown, _ = server.pages[0]["messages"][0]["content"]
    assert [np.array(picture_of(part)).mean() for part in shown] == pytest.approx([0, 120, 240], abs=2)


def test_how_an_answer_ended_is_its_verdict_and_one_that_the_server_cut_off_is_none() -> None:
    endings = {"stop": Verdict.OK, "length": Verdict.TRUNCATED, "repetition": Verdict.REPETITION}
    behaviour = Behaviour(finish_reason="content_filter")
    with serving(behaviour) as server, at_work(server) as (runner, engine):
        with pytest.raises(EngineError, match="early"):
            runner.run(engine.generate(asked()))
        for behaviour.finish_reason, verdict in endings.items():
            assert runner.run(engine.generate(asked())).verdict is verdict
        behaviour.text, behaviour.finish_reason = "", "stop"
        assert runner.run(engine.generate(asked())).verdict is Verdict.UNREADABLE


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


def test_what_was_counted_once_is_an_exact_price_for_pages_of_its_size() -> None:
    with serving(Behaviour(frame_tokens=123)) as server, at_work(server) as (runner, engine):
        estimate = engine.cost(asked())
        prompt = runner.run(engine.generate(asked())).usage.prompt
        exact = engine.cost(asked(1, images=(255 - PAGE,)))
        assert engine.cost(asked(2, instruction=f"{WORDS} And more.")) == estimate
        assert engine.load().drifted == 0
        server.behaviour.frame_tokens += 1
        runner.run(engine.generate(asked(1)))
        assert engine.load().drifted == 1, "a price that was not the server's is an alarm"

    expected = EXPECTED_OUTPUT_TOKENS[DocumentType.PRESCRIPTION]
    assert estimate == PROMPT_TOKENS + 6 + expected
    assert exact == prompt + expected == 123 + 6 + 6 + expected


def test_a_budget_in_tokens_rests_on_the_servers_tokenizer_which_sees_no_page() -> None:
    behaviour, budget = Behaviour(tokenizes=True), {"max_tokens_in_flight": 1000}
    with serving(behaviour) as server, at_work(server, **budget) as (runner, engine):
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


def test_a_picture_beyond_the_context_is_shrunk_by_the_servers_own_count() -> None:
    large = asked(images=(np.zeros((1400, 700, 3), dtype=np.uint8),), max_output_tokens=40)
    with serving(Behaviour(models=SMALL)) as server, pytest.raises(EngineRefusedError, match="HTTP 400"):
        answer(server, large)  # which counts nothing
    with serving(Behaviour(models=SMALL, tokenizes=True)) as server:
        told = answer(server, large)
    assert told.shrunk_to
    width, height = told.shrunk_to
    assert height == pytest.approx(2 * width, abs=1)
    assert 0.8 * 500 < told.usage.prompt + 40 <= 500


def test_words_beyond_the_context_are_refused_before_they_are_sent() -> None:
    endless = asked(instruction="read " * 600, images=(np.zeros((700, 700, 3), dtype=np.uint8),))
    refused = pytest.raises(EngineRefusedError, match="beside the text")
    with serving(Behaviour(models=SMALL, tokenizes=True)) as server, refused:
        answer(server, endless)
    assert not server.pages


def test_an_answer_longer_than_the_context_leaves_ends_with_it() -> None:
    with serving(Behaviour(most_answer=50)) as server:
        told = answer(server, asked(max_output_tokens=60))
    assert told.verdict is Verdict.OK
    assert [body.get("max_tokens") for body in server.pages] == [60, None]
