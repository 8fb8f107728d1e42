"""Pages that go through Ray Data are read as vLLM reads them, and nothing of Ray is left behind.

Ray takes half a minute to start, so one engine serves all tests, and the last of them ends it.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fleets import READY_S
from offline import KV_CACHE_BYTES, MOST_TOKENS, SIZES, asked
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.registry import create_engine
from pecia_workers.protocol.base import Engine, EngineDeadError, EngineRefusedError, EngineRequest, Generation
from tests.shared.limits import WAIT_S, eventually, until

pytest.importorskip("ray", reason="pecia[ray] brings Ray")

pytestmark = pytest.mark.xdist_group("ray")

PAGES = 12
UNITS = {
    "type": "object",
    "properties": {"unit": {"enum": ["mg", "ml"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
LOOKBEHIND = {"type": "object", "properties": {"unit": {"type": "string", "pattern": "(?<=x)y"}}}
"""A schema by which vLLM cannot write."""

Reading = tuple[asyncio.Runner, Engine]


@pytest.fixture(scope="module")
def reading(checkpoint: Path) -> Iterator[Reading]:
    """An engine on a Ray of its own, and where its coroutines run."""
    settings = WorkerSettings(
        engine="ray",
        model=str(checkpoint),
        kv_cache_bytes=KV_CACHE_BYTES,
        engine_options={"dtype": "float32"},
        log_level="warning",
        **SIZES,
    )
    engine = create_engine(settings)
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.start())
            yield runner, engine
        finally:
            runner.run(engine.stop())


def answers(reading: Reading, *requests: EngineRequest) -> list[Generation]:
    runner, engine = reading

    async def story() -> list[Generation]:
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    return runner.run(story())


def test_pages_read_together_say_what_the_offline_api_says(
    reading: Reading, checkpoint: Path, answers_offline: Callable[[Path, str], list[dict[str, Any]]]
) -> None:
    read = answers(reading, *(asked(number) for number in range(PAGES)))
    whole = [answer for answer in read if answer.usage.output < MOST_TOKENS]
    assert {answer.verdict for answer in whole} == {Verdict.OK}
    offline = answers_offline(checkpoint, "float32")[:PAGES]
    assert [answer.text for answer in read] == [told["text"] for told in offline]
    assert [answer.usage.prompt for answer in read] == [told["prompt"] for told in offline]


def test_a_picture_that_leaves_no_room_for_its_answer_is_read_smaller_and_says_so(reading: Reading) -> None:
    huge = np.zeros((2800, 1400, 3), dtype=np.uint8)
    (answer,) = answers(reading, asked(2, images=(huge,), expected_output_tokens=600, max_output_tokens=None))
    assert answer.shrunk_to
    assert 0 < answer.usage.image < answer.usage.prompt < SIZES["max_model_len"]


def test_fields_are_written_by_their_schema(reading: Reading) -> None:
    (answer,) = answers(reading, asked(1, schema=UNITS))
    assert json.loads(answer.text)["unit"] in ("mg", "ml")
    assert answer.verdict is Verdict.OK


def test_a_row_that_is_refused_harms_no_other(reading: Reading) -> None:
    runner, engine = reading
    (alone,) = answers(reading, asked(4))

    async def story() -> list[Generation | BaseException]:
        both = (asked(3, schema=LOOKBEHIND), asked(4))
        return await asyncio.gather(*(engine.generate(one) for one in both), return_exceptions=True)

    refused, beside = runner.run(story())

    assert isinstance(refused, EngineRefusedError)
    assert refused.code is FailureCode.FIELDS_UNAVAILABLE
    assert isinstance(beside, Generation)
    assert beside.text == alone.text


def test_a_request_given_up_ends_alone(reading: Reading) -> None:
    runner, engine = reading

    async def story() -> Generation:
        first, second = (asyncio.create_task(engine.generate(asked(number))) for number in range(2))
        await until(lambda: engine.load().running >= 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert runner.run(story()).text
    assert engine.load().running == 0


def test_a_dead_replica_is_told_and_none_stays(reading: Reading) -> None:
    runner, engine = reading
    processes = psutil.Process().children(recursive=True)
    of_ray = {process: command for process in processes if is_of_ray(command := command_of(process))}
    core = eventually(core_of_ray, what="the engine core of Ray's replica")

    async def story() -> None:
        waiting = asyncio.create_task(engine.generate(asked(0, max_output_tokens=None)))
        await until(lambda: engine.load().running)
        core.kill()
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(waiting, READY_S)
        with pytest.raises(EngineDeadError):
            engine.load()
        await engine.stop()

    runner.run(story())

    _, left = psutil.wait_procs(list(of_ray), timeout=WAIT_S)
    assert of_ray
    assert [of_ray[process] for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def core_of_ray() -> psutil.Process | None:
    """Return the engine core below one of Ray's processes: by its title, or by its command until it has one."""
    for process in psutil.Process().children(recursive=True):
        if is_of_ray(command_of(process)):
            for child in process.children(recursive=True):
                if any("EngineCore" in word or "spawn_main" in word for word in command_of(child)):
                    return child
    return None


def command_of(process: psutil.Process) -> list[str]:
    """Return the command of a process; of one that has ended, nothing."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:  # of which a zombie is one
        return []


def is_of_ray(command: list[str]) -> bool:
    """Return whether it is the command of one of Ray's servers, programs of its package, or of one of its workers."""
    return any(word.startswith("ray::") or (word.startswith("/") and "/ray/" in word) for word in command)
