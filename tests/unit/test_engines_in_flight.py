"""Requests that an engine works on, and whose turn it is."""

import asyncio

import pytest

from pecia_schemas.results import Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.base import EngineError, EngineRequest, Generation
from pecia_workers.engines.requests import Turns
from pecia_workers.engines.simulated import SimulatedEngine


class Ringing(SimulatedEngine):
    """Answers when its bell rings."""

    def __init__(self) -> None:
        super().__init__()
        self.bell = asyncio.Event()

    async def _answer(self, request: EngineRequest) -> Generation:  # noqa: ARG002  all are answered alike
        await self.bell.wait()
        return Generation(text="", verdict=Verdict.OK)


def asked(name: str) -> EngineRequest:
    return EngineRequest(id=name, images=(), workload=DocumentType.MIXED)


async def test_an_id_that_is_in_flight_is_refused_and_the_first_goes_on() -> None:
    engine = Ringing()
    first = asyncio.create_task(engine.generate(asked("part")))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="in flight already"):
        await engine.generate(asked("part"))
    engine.bell.set()
    assert (await first).verdict is Verdict.OK

    assert not engine._in_flight


async def test_when_all_are_ended_nothing_is_left_that_runs() -> None:
    engine = Ringing()
    reading = [asyncio.create_task(engine.generate(asked(str(number)))) for number in range(3)]
    await asyncio.sleep(0)
    await engine._end_all()
    await asyncio.wait(reading)

    assert [one.cancelled() for one in reading] == [True, True, True]
    assert not engine._in_flight


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
