"""Workers tell each other how long output is, through Postgres."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.states import Stage
from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS
from pecia_workers.batching.learned import (
    ENOUGH,
    STEPS,
    LearnedLengths,
    inherited_headroom,
    length_of,
    shared_lengths,
    step_of,
)
from pecia_workers.ledger.workers import WorkerIdentity, share_output_lengths
from tests.shared.house import House
from tests.shared.limits import until

pytestmark = pytest.mark.gate

HALF_LIFE = 100


async def share(database: AsyncEngine, *workers: LearnedLengths) -> None:
    """Let each share what it saw, in turn."""
    for worker in workers:
        seen = worker.take_seen()
        worker.learn(await share_output_lengths(database, seen, half_life=HALF_LIFE))


def having_seen(length: int, times: int) -> LearnedLengths:
    worker = LearnedLengths(0.75)
    for _ in range(times):
        worker.observe("chart", length)
    return worker


def test_two_workers_learn_together_and_a_new_one_knows_at_once(house: House) -> None:
    one, other, new = *(having_seen(100, 3 * ENOUGH // 4) for _ in range(2)), LearnedLengths(0.75)
    assert one.expected("chart") == EXPECTED_OUTPUT_TOKENS["chart"]
    house.ask(lambda database: share(database, one, other, one, new))
    assert {worker.expected("chart") for worker in (one, other, new)} == {length_of(step_of(100))}


def test_sharing_again_counts_nothing_twice(house: House) -> None:
    worker = having_seen(100, ENOUGH - 1)
    house.ask(lambda database: share(database, worker, worker, worker))
    assert worker.expected("chart") == EXPECTED_OUTPUT_TOKENS["chart"]


def test_what_is_older_fades_with_each_new_observation(house: House) -> None:
    old, recent = having_seen(1_000, HALF_LIFE), having_seen(10, HALF_LIFE)

    async def story(database: AsyncEngine) -> dict[str, list[float]]:
        await share_output_lengths(database, old.take_seen(), half_life=HALF_LIFE)
        return await share_output_lengths(database, recent.take_seen(), half_life=HALF_LIFE)

    weights = house.ask(story)["chart"]
    assert len(weights) == STEPS
    assert weights[step_of(10)] == HALF_LIFE
    assert weights[step_of(1_000)] == pytest.approx(HALF_LIFE / 2)


def test_workers_that_share_at_the_same_time_lose_nothing(house: House) -> None:
    async def story(database: AsyncEngine) -> dict[str, list[float]]:
        crowd = [having_seen(100, 10).take_seen() | having_seen(7, 10).take_seen() for _ in range(8)]
        await asyncio.gather(*(share_output_lengths(database, seen, half_life=10**9) for seen in crowd))
        return await share_output_lengths(database, {}, half_life=HALF_LIFE)

    assert sum(house.ask(story)["chart"]) == pytest.approx(80, abs=0.01)


def test_workers_hear_of_each_other_while_they_run_and_a_new_one_of_those_that_stopped(house: House) -> None:
    async def story(database: AsyncEngine) -> int:
        async with (
            shared_lengths(database, 0.75, every_s=0.02) as one,
            shared_lengths(database, 0.75, every_s=0.02) as other,
        ):
            # A database that is being restored.
            house.query("ALTER TABLE output_lengths RENAME TO lengths_to_be")
            await asyncio.sleep(0.2)
            house.query("ALTER TABLE lengths_to_be RENAME TO output_lengths")
            for _ in range(ENOUGH):
                one.observe("chart", 100)
            await until(lambda: other.expected("chart") == length_of(step_of(100)))
        async with shared_lengths(database, 0.75) as new:
            return new.expected("chart")

    assert house.ask(story) == length_of(step_of(100))


def test_a_database_that_is_away_costs_nothing_that_was_seen(house: House) -> None:
    away = replace(house, database_url="postgresql://nobody@127.0.0.1:1/none")

    async def observe(database: AsyncEngine) -> LearnedLengths:
        async with shared_lengths(database, 0.75) as lengths:
            for _ in range(ENOUGH):
                lengths.observe("chart", 100)
        return lengths

    seen, new = away.ask(observe), LearnedLengths(0.75)
    house.ask(lambda database: share(database, seen, new))
    assert new.expected("chart") == length_of(step_of(100))


def test_a_worker_starts_while_the_database_is_away(house: House) -> None:
    away = replace(house, database_url="postgresql://nobody@127.0.0.1:1/none")

    async def start(database: AsyncEngine) -> float:
        async with inherited_headroom(database, WorkerIdentity.new("engine", [Stage.READ])) as headroom:
            return headroom.memory

    assert away.ask(start) == 1.0
