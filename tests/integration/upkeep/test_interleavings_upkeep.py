"""Parts that Postgres believes to run although nobody runs them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from pecia_schemas.settings import WorkerSettings
from pecia_workers.broker.leases import LEASED
from pecia_workers.upkeep.steps import requeue_orphans

pytestmark = pytest.mark.gate


@pytest.fixture
def reap(run: Callable[..., int], settings_for: Callable[..., WorkerSettings]) -> Callable[[], int]:
    settings = settings_for(part_timeout=timedelta(minutes=1))
    return lambda: run(lambda stores: requeue_orphans(stores, settings))


def test_a_part_that_a_living_worker_has_lost_sight_of_runs_again(
    tables: Any, reap: Callable[[], int]
) -> None:
    """Whatever made it forget: nobody may run a part for longer than its lease may be held."""
    job_id = tables.add_job()
    tables.add_worker("alive")
    tables.run_on("alive", job_id)
    tables.query("UPDATE parts SET started_at = now() - interval '2 minutes'")

    assert reap() == 1
    assert [part["state"] for part in tables.parts(job_id)] == ["queued"]


def test_a_part_that_takes_long_is_left_to_its_worker_while_the_lease_lives(
    tables: Any, reap: Callable[[], int], redis: Redis
) -> None:
    job_id = tables.add_job()
    tables.add_worker("alive")
    tables.run_on("alive", job_id)
    tables.query("UPDATE parts SET started_at = now() - interval '2 minutes'")
    (part,) = tables.parts(job_id)
    redis.hset(LEASED, str(part["id"]), "read.normal\n{}")

    assert reap() == 0
