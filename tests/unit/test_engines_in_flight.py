"""Requests that an engine works on, and whose turn it is."""

import asyncio

import pytest

from pecia_schemas import Verdict
from pecia_workers.engines.base import EngineError, Generation
from pecia_workers.engines.in_flight import InFlight, Turns


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


async def _served(turns: Turns, served: list[str], rank: int, name: str) -> None:
    async with turns.turn(rank):
        served.append(name)
        await asyncio.sleep(0)


async def test_the_most_urgent_comes_next_and_equals_as_they_came() -> None:
    turns, served = Turns(), list[str]()
    comers = [(2, "first"), (2, "bulk 1"), (2, "bulk 2"), (0, "urgent"), (1, "normal")]
    await asyncio.gather(*(_served(turns, served, rank, name) for rank, name in comers))
    assert served == ["first", "urgent", "normal", "bulk 1", "bulk 2"]


async def test_one_that_gives_up_lets_the_next_come() -> None:
    """One while it waits, one in the moment in which its turn has come."""

    turns, served = Turns(), list[str]()
    async with turns.turn(0):
        waiting = [
            asyncio.create_task(_served(turns, served, rank, name))
            for rank, name in enumerate(("gives up when called", "gives up", "last"))
        ]
        await asyncio.sleep(0)
        waiting[1].cancel()
    waiting[0].cancel()
    await asyncio.wait_for(waiting[2], 5)
    await _served(turns, served, 0, "later")
    assert served == ["last", "later"]
