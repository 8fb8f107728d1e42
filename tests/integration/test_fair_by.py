"""Which jobs take turns as one: each by itself, or all that share a value of their metadata."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from redis import Redis

from pecia import Client, ClientSettings, Job, JobState, ReadDocument
from pecia_workers.bus import Bus
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.publication import forget_flows, relay_due

Picture = Callable[..., bytes]


@pytest.fixture
def fair_client(database_url: str, redis_url: str, payload_url: str) -> Client:
    return Client(database_url, redis_url, payload_url, settings=ClientSettings(fair_by="ward"))


def flows(redis_url: str) -> dict[str, str]:
    """Return the flow of each part whose message waits."""
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        waiting = [json.loads(message) for message in redis.lrange("read.normal", 0, -1)]
    return {message["part"]: message["flow"] for message in waiting}


def flow_of(job: Job[Any], database_url: str, redis_url: str) -> UUID:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT id FROM parts WHERE job_id = %s", [job.id]).fetchone()
    assert row is not None
    return UUID(flows(redis_url)[str(row[0])])


def test_jobs_that_share_a_value_take_turns_as_one(
    fair_client: Client, picture: Picture, database_url: str, redis_url: str
) -> None:
    with fair_client as client:
        task = ReadDocument(picture())
        wards = ["north", "south", "north", None]
        jobs = [client.submit(task, metadata={"ward": ward} if ward else None) for ward in wards]

    north, south, north_again, alone = (flow_of(job, database_url, redis_url) for job in jobs)
    assert north == north_again
    assert len({north, south, alone}) == 3
    assert alone == jobs[3].id
    assert not {north, south} & {job.id for job in jobs}


def test_the_relay_and_a_retry_publish_a_part_into_its_jobs_flow(
    fair_client: Client, picture: Picture, database_url: str, redis_url: str
) -> None:
    with fair_client as client:
        jobs = [client.submit(ReadDocument(picture()), metadata=meta) for meta in ({"ward": "north"}, {})]
        before = [flow_of(job, database_url, redis_url) for job in jobs]
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE parts SET published_at = NULL")

    asyncio.run(relay(database_url, redis_url))

    assert [flow_of(job, database_url, redis_url) for job in jobs] == before
    with Redis.from_url(redis_url) as redis, fair_client:
        jobs[0].cancel()
        redis.flushall()
        jobs[0].retry()
    assert flow_of(jobs[0], database_url, redis_url) == before[0]


async def relay(database_url: str, redis_url: str) -> None:
    database, bus = open_database(database_url), Bus(redis_url)
    await relay_due(database, bus, limit=10)
    await bus.close()
    await database.dispose()


def test_a_flow_is_forgotten_when_its_jobs_are_over(
    fair_client: Client, picture: Picture, database_url: str
) -> None:
    """Nothing made of a metadata's value outlives the work."""
    with fair_client as client:
        jobs = [
            client.submit(ReadDocument(picture()), metadata={"ward": ward}) for ward in ("north", "south")
        ]
        jobs[0].cancel()
        assert jobs[0].refresh().state is JobState.CANCELLED

        assert asyncio.run(forget(database_url)) == 1
        jobs[1].cancel()
        assert asyncio.run(forget(database_url)) == 1


async def forget(database_url: str) -> int:
    database = open_database(database_url)
    forgotten = await forget_flows(database)
    await database.dispose()
    return forgotten
