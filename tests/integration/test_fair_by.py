"""Which jobs take turns as one: each by itself, or all that share a value of their metadata."""

import json
from typing import Any
from uuid import UUID

import pytest
from redis import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from fixture_types import Picture
from house import House
from pecia import Client, ClientSettings, Job, JobState, ReadDocument
from pecia_workers.ledger.recovery import forget_flows, relay_due
from pecia_workers.queue.bus import Bus


@pytest.fixture
def fair_client(house: House) -> Client:
    return Client(**house.urls, settings=ClientSettings(fair_by="ward"))


def flow_of(job: Job[Any], house: House) -> UUID:
    """Return the flow of a job's part, whose message waits."""
    with Redis.from_url(house.redis_url) as redis:
        waiting = [json.loads(message) for message in redis.lrange("read.normal", 0, -1)]
    return next(UUID(one["flow"]) for one in waiting if one["part"] == str(house.part_of(job)))


def test_jobs_of_one_value_take_turns_as_one(fair_client: Client, picture: Picture, house: House) -> None:
    with fair_client as client:
        task = ReadDocument(picture())
        wards = ["north", "south", "north", None]
        jobs = [client.submit(task, metadata={"ward": ward} if ward else None) for ward in wards]

    north, south, north_again, alone = (flow_of(job, house) for job in jobs)
    assert north == north_again
    assert len({north, south, alone}) == 3
    assert alone == jobs[3].id
    assert not {north, south} & {job.id for job in jobs}


def test_relay_and_retry_publish_into_flows(fair_client: Client, picture: Picture, house: House) -> None:
    with fair_client as client:
        jobs = [client.submit(ReadDocument(picture()), metadata=meta) for meta in ({"ward": "north"}, {})]
        before = [flow_of(job, house) for job in jobs]
    with Redis.from_url(house.redis_url) as redis:
        redis.flushall()
    house.query("UPDATE parts SET published_at = NULL")

    relay(house)

    assert [flow_of(job, house) for job in jobs] == before
    with Redis.from_url(house.redis_url) as redis, fair_client:
        jobs[0].cancel()
        redis.flushall()
        jobs[0].retry()
    assert flow_of(jobs[0], house) == before[0]


def relay(house: House) -> None:
    async def relayed(database: AsyncEngine) -> None:
        bus = Bus(house.redis_url)
        await relay_due(database, bus, limit=10)
        await bus.close()

    house.ask(relayed)


def test_a_flow_is_forgotten_after_its_jobs(fair_client: Client, picture: Picture, house: House) -> None:
    """Nothing made of a metadata's value outlives the work."""
    with fair_client as client:
        jobs = [
            client.submit(ReadDocument(picture()), metadata={"ward": ward}) for ward in ("north", "south")
        ]
        jobs[0].cancel()
        assert jobs[0].refresh().state is JobState.CANCELLED

        assert house.ask(forget_flows) == 1
        jobs[1].cancel()
        assert house.ask(forget_flows) == 1
