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


async def test_an_id_that_is_in_flight_is_refused_and_the_first_goes_on() -> None:
    in_flight, bell = InFlight(), asyncio.Event()
    first = asyncio.create_task(in_flight.run("part", answer_after(bell)))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="in flight already"):
        await in_flight.run("part", answer_after(bell))
    bell.set()
    assert (await first).verdict is Verdict.OK

    assert len(in_flight) == 0


async def test_when_all_are_ended_nothing_is_left_that_runs() -> None:
    in_flight, bell = InFlight(), asyncio.Event()
    asked = [asyncio.create_task(in_flight.run(str(number), answer_after(bell))) for number in range(3)]
    await asyncio.sleep(0)
    await in_flight.end_all()
    await asyncio.wait(asked)

    assert [one.cancelled() for one in asked] == [True, True, True]
    assert len(in_flight) == 0
