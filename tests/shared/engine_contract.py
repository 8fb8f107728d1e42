"""What every engine promises, whatever turns its pixels into text: tests for modules that have the fixtures.

`make_engine` makes engines that read one page at a time and take at least 0.2 s for it; `page` is such a page;
`acceptable` are the verdicts it may get. The first two last as long as the module, for one engine serves most tests.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from pecia_schemas.results import Verdict
from pecia_schemas.states import Stage
from pecia_schemas.tasks import DocumentType, page_cost
from pecia_workers.protocol.base import Engine, EngineRequest
from tests.shared.limits import until

__all__ = [
    "running",
    "test_a_request_given_up_ends_alone",
    "test_a_stop_ends_every_request",
    "test_it_reads_a_page",
    "test_it_says_what_it_can_before_start",
    "test_load_counts_what_runs_and_waits",
    "test_the_loop_turns_while_a_page_is_read",
]

Running = tuple[asyncio.Runner, Engine]


@pytest.fixture(scope="module")
def running(make_engine: Callable[[], Engine]) -> Iterator[Running]:
    """An engine, and where its coroutines run."""
    engine = make_engine()
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.start())
            yield runner, engine
        finally:
            runner.run(engine.stop())


def asked(page: NDArray[np.uint8], number: int = 0) -> EngineRequest:
    return EngineRequest(id=f"part-{number}", images=(page,), workload=DocumentType.PRESCRIPTION)


def test_it_reads_a_page(running: Running, page: NDArray[np.uint8], acceptable: Collection[Verdict]) -> None:
    runner, engine = running
    answer = runner.run(engine.generate(asked(page)))
    assert answer.verdict in acceptable
    assert 0 < answer.usage.image <= answer.usage.prompt
    assert answer.usage.output > 0


def test_it_says_what_it_can_before_start(make_engine: Callable[[], Engine], page: NDArray[np.uint8]) -> None:
    engine = make_engine()
    request = asked(page)
    assert Stage.READ in engine.capabilities.stages
    assert engine.budget.slots >= 1
    assert engine.cost(request) == page_cost(1240, 1754, DocumentType.PRESCRIPTION)
    assert engine.budget.tokens is None or engine.budget.tokens > engine.cost(request)


def test_load_counts_what_runs_and_waits(running: Running, page: NDArray[np.uint8]) -> None:
    runner, engine = running

    async def story() -> None:
        reading, *waiting = [asyncio.create_task(engine.generate(asked(page, n))) for n in range(3)]
        await until(lambda: (engine.load().running, engine.load().waiting) == (1, 2))
        for task in waiting:
            task.cancel()
        await asyncio.wait([reading, *waiting])
        idle = engine.load()
        assert (idle.running, idle.waiting, idle.kv_used or 0.0) == (0, 0, 0)

    runner.run(story())


def test_the_loop_turns_while_a_page_is_read(running: Running, page: NDArray[np.uint8]) -> None:
    runner, engine = running

    async def story() -> bool:
        reading = asyncio.create_task(engine.generate(asked(page)))
        seen = False
        while not (seen or reading.done()):
            await asyncio.sleep(0.005)
            seen = bool(engine.load().running) and not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        return seen

    assert runner.run(story()), "the loop came to nothing else before the answer"


def test_a_request_given_up_ends_alone(
    running: Running, page: NDArray[np.uint8], acceptable: Collection[Verdict]
) -> None:
    runner, engine = running

    async def story() -> None:
        first, second = (asyncio.create_task(engine.generate(asked(page, n))) for n in range(2))
        await until(lambda: engine.load().running)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).verdict in acceptable
        assert engine.load().running == 0

    runner.run(story())


async def test_a_stop_ends_every_request(make_engine: Callable[[], Engine], page: NDArray[np.uint8]) -> None:
    engine = make_engine()
    try:
        await engine.start()
        reading = [asyncio.create_task(engine.generate(asked(page, n))) for n in range(3)]
        await until(lambda: engine.load().running)
    finally:
        await engine.stop()
    await asyncio.wait(reading)
    assert [task.cancelled() for task in reading] == [True, True, True]
