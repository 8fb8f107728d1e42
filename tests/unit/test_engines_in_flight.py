"""Requests that an engine works on."""

from __future__ import annotations

import asyncio

import pytest

from pecia_schemas import Verdict
from pecia_workers.engines import EngineError, Generation
from pecia_workers.engines.in_flight import InFlight


async def answer_after(bell: asyncio.Event) -> Generation:
    await bell.wait()
    return Generation(text="", verdict=Verdict.OK)


def test_an_id_that_is_in_flight_is_refused_and_the_first_goes_on() -> None:
    async def story() -> int:
        in_flight, bell = InFlight(), asyncio.Event()
        first = asyncio.create_task(in_flight.run("part", answer_after(bell)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="in flight already"):
            await in_flight.run("part", answer_after(bell))
        bell.set()
        assert (await first).verdict is Verdict.OK
        return len(in_flight)

    assert asyncio.run(story()) == 0


def test_when_all_are_ended_nothing_is_left_that_runs() -> None:
    async def story() -> tuple[list[bool], int]:
        in_flight, bell = InFlight(), asyncio.Event()
        asked = [asyncio.create_task(in_flight.run(str(number), answer_after(bell))) for number in range(3)]
        await asyncio.sleep(0)
        await in_flight.end_all()
        await asyncio.wait(asked)
        return [one.cancelled() for one in asked], len(in_flight)

    assert asyncio.run(story()) == ([True, True, True], 0)
