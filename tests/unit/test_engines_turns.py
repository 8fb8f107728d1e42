"""Who may prepare next."""

from __future__ import annotations

import asyncio

from pecia_workers.engines.turns import Turns


async def _served(turns: Turns, served: list[str], rank: int, name: str) -> None:
    async with turns.turn(rank):
        served.append(name)
        await asyncio.sleep(0)


def test_the_most_urgent_comes_next_and_equals_as_they_came() -> None:
    async def story() -> list[str]:
        turns, served = Turns(), list[str]()
        comers = [(2, "first"), (2, "bulk 1"), (2, "bulk 2"), (0, "urgent"), (1, "normal")]
        await asyncio.gather(*(_served(turns, served, rank, name) for rank, name in comers))
        return served

    assert asyncio.run(story()) == ["first", "urgent", "normal", "bulk 1", "bulk 2"]


def test_one_that_gives_up_keeps_nobody_waiting() -> None:
    """One while it waits, one in the moment in which its turn has come."""

    async def story() -> list[str]:
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
        return served

    assert asyncio.run(story()) == ["last", "later"]
