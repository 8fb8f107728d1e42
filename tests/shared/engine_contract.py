"""What every engine promises, whatever turns its pixels into text: tests for modules that have the fixtures.

`make_engine` makes engines that read one page at a time and take at least 0.2 s for it; `page` is such a page;
`acceptable` are the verdicts it may get.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
from numpy.typing import NDArray

from pecia_schemas import DocumentType, Stage, Verdict
from pecia_schemas.cost import page_cost
from pecia_workers.engines import Engine, EngineRequest, Generation

__all__ = [
    "test_a_page_is_answered",
    "test_a_request_given_up_ends_alone",
    "test_aborting_an_unknown_request_is_no_error",
    "test_it_says_what_it_can_do_and_hold_before_it_starts",
    "test_load_counts_what_runs_and_waits",
    "test_stopping_ends_every_request",
    "test_the_loop_is_never_blocked",
]


@asynccontextmanager
async def started(make_engine: Callable[[], Engine]) -> AsyncIterator[Engine]:
    engine = make_engine()
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def asked(page: NDArray[np.uint8], number: int = 0) -> EngineRequest:
    return EngineRequest(id=f"part-{number}", images=(page,), workload=DocumentType.PRESCRIPTION)


async def under_way(engine: Engine) -> None:
    while not engine.load().running:  # noqa: ASYNC110  an engine rings no bell
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)


def test_a_page_is_answered(
    make_engine: Callable[[], Engine], page: NDArray[np.uint8], acceptable: Collection[Verdict]
) -> None:
    async def story() -> Generation:
        async with started(make_engine) as engine:
            return await engine.generate(asked(page))

    answer = asyncio.run(story())

    assert answer.verdict in acceptable
    assert 0 < answer.usage.image <= answer.usage.prompt
    assert answer.usage.output > 0


def test_it_says_what_it_can_do_and_hold_before_it_starts(
    make_engine: Callable[[], Engine], page: NDArray[np.uint8]
) -> None:
    engine = make_engine()
    request = asked(page)

    assert Stage.READ in engine.capabilities.stages
    assert engine.budget.slots >= 1
    assert engine.cost(request) == page_cost(1240, 1754, DocumentType.PRESCRIPTION)
    assert engine.budget.tokens is None or engine.budget.tokens > engine.cost(request)


def test_load_counts_what_runs_and_waits(make_engine: Callable[[], Engine], page: NDArray[np.uint8]) -> None:
    async def story() -> None:
        async with started(make_engine) as engine:
            reading = [asyncio.create_task(engine.generate(asked(page, n))) for n in range(3)]
            await under_way(engine)
            busy = engine.load()
            assert (busy.running, busy.waiting) == (1, 2)
            await asyncio.gather(*reading)
            idle = engine.load()
            assert (idle.running, idle.waiting, idle.kv_used) == (0, 0, 0)

    asyncio.run(story())


def test_the_loop_is_never_blocked(make_engine: Callable[[], Engine], page: NDArray[np.uint8]) -> None:
    async def story() -> float:
        async with started(make_engine) as engine:
            reading = asyncio.create_task(engine.generate(asked(page)))
            longest, last = 0.0, time.monotonic()
            while not reading.done():
                await asyncio.sleep(0.005)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            return longest

    assert asyncio.run(story()) < 0.25


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_request_given_up_ends_alone(
    make_engine: Callable[[], Engine], page: NDArray[np.uint8], acceptable: Collection[Verdict], how: str
) -> None:
    async def story() -> None:
        async with started(make_engine) as engine:
            first, second = (asyncio.create_task(engine.generate(asked(page, n))) for n in range(2))
            await under_way(engine)
            if how == "abort":
                await engine.abort("part-0")
            else:
                first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await second).verdict in acceptable
            assert engine.load().running == 0

    asyncio.run(story())


def test_aborting_an_unknown_request_is_no_error(make_engine: Callable[[], Engine]) -> None:
    async def story() -> None:
        async with started(make_engine) as engine:
            await engine.abort("never seen")

    asyncio.run(story())


def test_stopping_ends_every_request(make_engine: Callable[[], Engine], page: NDArray[np.uint8]) -> None:
    async def story() -> list[bool]:
        async with started(make_engine) as engine:
            reading = [asyncio.create_task(engine.generate(asked(page, n))) for n in range(3)]
            await under_way(engine)
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), 5)
        return [task.cancelled() for task in reading]

    assert asyncio.run(story()) == [True, True, True]
