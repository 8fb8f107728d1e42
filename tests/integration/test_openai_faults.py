"""The engine that asks a server, which fails, refuses, falls silent, restarts and dies: a real one, on loopback."""

import asyncio
import json
import traceback
from email.utils import formatdate
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from pecia_schemas.results import Verdict
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.protocol.base import (
    EngineDeadError,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
    Generation,
    Load,
)
from tests.shared.asking_openai import KEY, WORDS, answer, asked, at_work, under_way
from tests.shared.chat_server import Behaviour, ChatServerDouble, Fault, serving
from tests.shared.limits import WAIT_S, eventually

pytestmark = pytest.mark.gate

LONG = " ".join(map(str, range(300)))


def refusal(server: ChatServerDouble, **settings: Any) -> Exception:
    """Return why the engine did not start."""
    with pytest.raises((EngineUnavailableError, EngineDeadError)) as refused:
        answer(server, **settings)
    return refused.value


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(streams=False), "The server answers with JSON instead of a stream."),
        (Behaviour(refuses=frozenset({"stream"})), "The server refuses the request (HTTP 400)."),
    ],
)
def test_a_server_that_does_not_stream_is_refused_with_the_reason(behaviour: Behaviour, reason: str) -> None:
    with serving(behaviour) as server:
        assert str(refusal(server)) == (
            f"The server is ready but answers no chat request. {reason} Pecia sends a picture and takes the answer"
            " as a stream."
        )
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, headers={"Retry-After": "0"}),
        Fault(status=503, headers={"Retry-After": formatdate(usegmt=True)}),
        Fault(status=500),
        Fault(cut_after=0),
        Fault(cut_after=2),
        Fault(ends_after=2),
        Fault(status=500, error_after=1),
    ],
    ids=["429", "503", "500", "cut at once", "cut in the midst", "ended in the midst", "error in the midst"],
)
def test_a_request_that_got_no_answer_is_asked_again(fault: Fault) -> None:
    with serving(Behaviour(faults=[fault])) as server:
        told = answer(server)
    assert told.text == "Amoxicillin 500 mg"
    assert len(server.pages) == 2


@pytest.mark.parametrize(
    ("fault", "said"), [(Fault(status=503), "HTTP 503"), (Fault(silent_s=3), "it stopped responding")]
)
def test_a_request_is_not_asked_for_ever_also_of_a_server_that_falls_silent(fault: Fault, said: str) -> None:
    never = pytest.raises(EngineError, match=f"no answer in 3 attempts, at last: {said}")
    with serving(Behaviour(faults=[fault] * 9)) as server, never:
        answer(server, engine_timeout=1 if fault.silent_s else 60)
    assert len(server.pages) == 3


def test_a_server_that_has_no_room_for_so_many_is_asked_by_fewer_at_a_time() -> None:
    crowded = Behaviour(takes_s=0.1, most_at_a_time=2)
    with serving(crowded) as server, at_work(server, engine_connections=12) as (runner, engine):
        policy = policy_named(PolicyName.CONTINUOUS, BatchLimits())
        batcher = Batcher(engine, policy, LearnedLengths(0.75), priced=lambda *_: None)

        async def story() -> list[Generation]:
            return await asyncio.gather(*(batcher.generate(asked(number)) for number in range(12)))

        answers = runner.run(story())
        refused = len(server.pages) - len(answers)

    assert [one.text for one in answers] == ["Amoxicillin 500 mg"] * 12
    assert refused <= 3 * 2 * len(answers), "a storm: half of them wait after each shortage"


@pytest.mark.parametrize("error_after", [None, 1], ids=["at once", "in the midst"])
def test_a_refusal_is_final_and_repeats_nothing_of_the_request(error_after: int | None) -> None:
    fault = Fault(status=400, body=f"bad prompt: {WORDS}".encode(), error_after=error_after)
    final = pytest.raises(EngineRefusedError, match="HTTP 400")
    with serving(Behaviour(faults=[fault])) as server, capture_logs() as logs, final as refused:
        answer(server)
    assert len(server.pages) == 1
    assert "Minji" not in "".join(traceback.format_exception(refused.value)) + repr(logs)


def test_no_more_requests_are_there_at_a_time_than_connections() -> None:
    with serving(Behaviour(takes_s=0.1)) as server, at_work(server, engine_connections=2) as (runner, engine):

        async def story() -> None:
            await asyncio.gather(*(engine.generate(asked(number)) for number in range(6)))

        runner.run(story())

    assert engine.budget.slots == 2
    assert server.most_answering == 2


def test_a_request_given_up_ends_at_the_server() -> None:
    with serving(Behaviour(text=LONG, takes_s=20)) as server, at_work(server) as (runner, engine):

        async def story() -> None:
            reading = asyncio.create_task(engine.generate(asked()))
            await under_way(server)
            reading.cancel()
            await asyncio.wait([reading])

        runner.run(story())
        eventually(lambda: server.given_up == 1)


def test_a_server_that_is_not_ready_is_awaited_but_not_for_ever_and_the_log_says_for_what() -> None:
    with serving(Behaviour(unready=2)) as server, capture_logs() as logs:
        assert answer(server).verdict is Verdict.OK
        server.behaviour.unready = 10**6
        error = refusal(server, engine_ready_timeout=0.2)
    told = next(line for line in logs if line["event"] == "engine_server_awaited")
    assert (told["url"], "503" in told["because"]) == (server.url, True)
    assert "within 0.2 s: HTTP 503. Start it, or correct PECIA_ENGINE_URL." in str(error)


def test_an_address_where_nothing_listens_or_something_else_is_named() -> None:
    with serving() as server:
        assert "(HTTP 404)" in str(refusal(server, engine_url=f"{server.url}/other"))
        server.kill()
        error = refusal(server, engine_ready_timeout=0.1)
    assert f"No server was ready at {server.url} within 0.1 s: it cannot be reached." in str(error)


def test_the_key_goes_into_its_header_alone() -> None:
    with serving(Behaviour(key=KEY)) as server, capture_logs() as logs:
        answer(server)
        error = refusal(server, engine_api_key=SecretStr("wrong-sesame"))
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert "PECIA_ENGINE_API_KEY" in str(error)
    assert KEY not in json.dumps(server.asked) + repr(logs) + str(error)


def test_a_key_that_is_withdrawn_ends_the_engine() -> None:
    with serving() as server, at_work(server) as (runner, engine):
        server.behaviour.key = "another"
        with pytest.raises(EngineDeadError, match="PECIA_ENGINE_API_KEY"):
            runner.run(engine.generate(asked()))
        with pytest.raises(EngineDeadError):
            engine.load()


@pytest.mark.parametrize("has_health", [True, False])
def test_a_server_may_restart_under_a_request(has_health: bool) -> None:
    behaviour = Behaviour(text=LONG, takes_s=20, has_health=has_health)
    with serving(behaviour) as first, at_work(first) as (runner, engine):

        async def story() -> tuple[Generation, list[dict[str, Any]]]:
            reading = asyncio.create_task(engine.generate(asked()))
            await under_way(first)
            await asyncio.to_thread(first.kill)
            await asyncio.sleep(0.3)
            with serving(Behaviour(has_health=has_health), first.server_port) as second:
                return await reading, second.pages

        told, pages = runner.run(story())

    assert told.text == "Amoxicillin 500 mg"
    assert len(pages) == 1


def test_a_server_that_stays_away_is_dead_as_an_idle_engine_finds_out() -> None:
    with serving() as server, at_work(server, engine_ready_timeout=0.5) as (runner, engine):

        async def story() -> None:
            server.kill()
            while engine.load() == Load(running=0, waiting=0):  # noqa: ASYNC110  an engine wakes no one
                await asyncio.sleep(0.05)

        with pytest.raises(EngineDeadError):
            runner.run(asyncio.wait_for(story(), WAIT_S))
        with pytest.raises(EngineDeadError, match=r"not answered for 0\.5 s"):
            runner.run(engine.generate(asked()))


def test_a_request_to_a_server_that_stays_away_ends() -> None:
    with serving() as server, at_work(server, engine_ready_timeout=0.5) as (runner, engine):
        server.kill()
        with pytest.raises(EngineDeadError, match=r"not answered for 0\.5 s"):
            runner.run(engine.generate(asked()))
