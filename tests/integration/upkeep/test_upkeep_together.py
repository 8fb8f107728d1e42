"""Several processes of upkeep at once: all is done, and nothing twice that would be wrong twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fixture_types import Eventually
from forking import Programs
from limits import WAIT_S
from pecia_schemas.events import NoticeType
from pecia_workers.queue.lists import held_parts

pytestmark = pytest.mark.gate

ROUNDS = 3


@pytest.fixture
def two_of_them(
    tables: Any, stores: dict[str, str], programs: Programs, tmp_path: Path, eventually: Eventually
) -> Iterator[None]:
    """Two processes, as operators start them, that look twenty times a second."""
    environment = os.environ | stores | {"PECIA_UPKEEP_INTERVAL": "0.05", "PECIA_LOG_LEVEL": "warning"}
    command = ("-m", "pecia", "worker", "upkeep")
    processes = [
        programs.start(*command, environment=environment, log=tmp_path / f"log{n}") for n in range(2)
    ]
    on_duty = "SELECT name FROM workers WHERE role = 'upkeep'"
    try:
        eventually(lambda: len(tables.query(on_duty)) == 2, what="both of them")
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(WAIT_S) == 0


@pytest.mark.usefixtures("two_of_them")
def test_two_instances_do_all_as_redis_forgets(tables: Any, redis: Redis, eventually: Eventually) -> None:
    orphaned, expiring, fresh = [], [], []
    for _ in range(ROUNDS):
        orphaned.append(tables.add_job(parts=10))
        tables.run_on("dead", orphaned[-1])
        expiring.append(tables.add_job(parts=5, webhook=True))
        tables.query("UPDATE jobs SET expires_at = now() WHERE id = %s", expiring[-1])
        fresh.append(tables.add_job(parts=10))
        redis.flushall()

    waiting = {str(part["id"]) for job in (*orphaned, *fresh) for part in tables.parts(job)}
    eventually(lambda: held_parts(redis) >= waiting, what="all parts in Redis")
    eventually(lambda: {tables.job(job)["state"] for job in expiring} == {"expired"})
    redis.flushall()
    eventually(lambda: held_parts(redis) == waiting, what="all parts in Redis again")

    for job in orphaned:
        assert {(part["state"], part["deaths"]) for part in tables.parts(job)} == {("queued", 1)}
        assert tables.events(job) == [("queued", "worker_lost", False)] * 10
    for job in expiring:
        assert Counter(tables.events(job)) == {
            ("cancelled", "expired", False): 5,
            ("expired", "expired", True): 1,
        }
        assert (tables.job(job)["state"], tables.job(job)["cancelled"]) == ("expired", 5)
    assert tables.notices() == [NoticeType.EXPIRED] * ROUNDS
    for job in fresh:
        assert {(part["state"], part["deaths"]) for part in tables.parts(job)} == {("queued", 0)}
