"""Workers tell each other how long output is, through Postgres."""

from __future__ import annotations

import asyncio

import pytest

from pecia_schemas.cost import EXPECTED_OUTPUT_TOKENS
from pecia_workers.batching.lengths import ENOUGH, STEPS, LearnedLengths, length_of, step_of
from pecia_workers.batching.sharing import shared_lengths
from pecia_workers.ledger import open_database
from pecia_workers.ledger.output_lengths import share_output_lengths

pytestmark = pytest.mark.gate

HALF_LIFE = 100


async def share(database_url: str, *workers: LearnedLengths) -> None:
    """Let each share what it saw, in turn."""
    database = open_database(database_url)
    try:
        for worker in workers:
            seen = worker.take_seen()
            worker.learn(await share_output_lengths(database, seen, half_life=HALF_LIFE))
    finally:
        await database.dispose()


def having_seen(length: int, times: int) -> LearnedLengths:
    worker = LearnedLengths(0.75)
    for _ in range(times):
        worker.observe("chart", length)
    return worker


def test_two_workers_learn_together_and_a_new_one_knows_at_once(database_url: str) -> None:
    one, other, new = *(having_seen(100, 3 * ENOUGH // 4) for _ in range(2)), LearnedLengths(0.75)
    assert one.expected("chart") == EXPECTED_OUTPUT_TOKENS["chart"]

    asyncio.run(share(database_url, one, other, one, new))

    assert {worker.expected("chart") for worker in (one, other, new)} == {length_of(step_of(100))}


def test_sharing_again_counts_nothing_twice(database_url: str) -> None:
    worker = having_seen(100, ENOUGH - 1)
    asyncio.run(share(database_url, worker, worker, worker))
    assert worker.expected("chart") == EXPECTED_OUTPUT_TOKENS["chart"]


def test_what_is_older_fades_with_each_new_observation(database_url: str) -> None:
    old, recent = having_seen(1_000, HALF_LIFE), having_seen(10, HALF_LIFE)

    async def story() -> dict[str, list[float]]:
        database = open_database(database_url)
        try:
            await share_output_lengths(database, old.take_seen(), half_life=HALF_LIFE)
            return await share_output_lengths(database, recent.take_seen(), half_life=HALF_LIFE)
        finally:
            await database.dispose()

    weights = asyncio.run(story())["chart"]
    assert len(weights) == STEPS
    assert weights[step_of(10)] == HALF_LIFE
    assert weights[step_of(1_000)] == pytest.approx(HALF_LIFE / 2)


def test_workers_that_share_at_the_same_time_lose_nothing(database_url: str) -> None:
    async def story() -> dict[str, list[float]]:
        database = open_database(database_url)
        try:
            crowd = [having_seen(100, 10).take_seen() | having_seen(7, 10).take_seen() for _ in range(8)]
            await asyncio.gather(*(share_output_lengths(database, seen, half_life=10**9) for seen in crowd))
            return await share_output_lengths(database, {}, half_life=HALF_LIFE)
        finally:
            await database.dispose()

    assert sum(asyncio.run(story())["chart"]) == pytest.approx(80, abs=0.01)


def test_a_worker_begins_with_what_others_saw_before_they_stopped(database_url: str) -> None:
    async def story() -> int:
        database = open_database(database_url)
        try:
            async with shared_lengths(database, 0.75) as former:
                for _ in range(ENOUGH):
                    former.observe("chart", 100)
            async with shared_lengths(database, 0.75) as new:
                return new.expected("chart")
        finally:
            await database.dispose()

    assert asyncio.run(story()) == length_of(step_of(100))


def test_workers_hear_of_each_other_while_they_run(database_url: str) -> None:
    async def story() -> None:
        database = open_database(database_url)
        try:
            async with (
                shared_lengths(database, 0.75, every_s=0.02) as one,
                shared_lengths(database, 0.75, every_s=0.02) as other,
            ):
                for _ in range(ENOUGH):
                    one.observe("chart", 100)
                async with asyncio.timeout(10):
                    while other.expected("chart") != length_of(step_of(100)):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
        finally:
            await database.dispose()

    asyncio.run(story())


def test_a_database_that_is_away_costs_nothing_that_was_seen(database_url: str) -> None:
    async def story() -> int:
        away, database = open_database("postgresql://nobody@127.0.0.1:1/none"), open_database(database_url)
        try:
            async with shared_lengths(away, 0.75) as lengths:
                for _ in range(ENOUGH):
                    lengths.observe("chart", 100)
            await share(database_url, lengths)
            async with shared_lengths(database, 0.75) as new:
                return new.expected("chart")
        finally:
            await away.dispose()
            await database.dispose()

    assert asyncio.run(story()) == length_of(step_of(100))
