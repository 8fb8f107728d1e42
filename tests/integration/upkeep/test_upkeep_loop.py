"""The loop of upkeep: what is lost comes back within seconds, and an outage is outlasted."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from failing_writes import fail_writes, let_writes_pass
from pecia_migrations import upgrade
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.servers import EmbeddedPostgres, EmbeddedRedis
from pecia_workers.queue.lists import connect, count_waiting, held_parts

QUEUE = "read.normal"
Make = Callable[..., Any]


def test_after_flushall_everything_is_back_within_seconds(
    tables: Any, redis: Redis, settings: WorkerSettings, eventually: Make, keeping: Make
) -> None:
    tables.add_job(parts=50)
    with keeping(settings):
        eventually(lambda: len(held_parts(redis)) == 50)
        redis.flushall()
        eventually(lambda: len(held_parts(redis)) == 50)
    assert count_waiting(redis).total() == 50, "some were published twice"


def test_what_a_worker_took_that_is_gone_goes_back_and_what_it_ran_to_quarantine(  # noqa: PLR0917  fixtures
    tables: Any, redis: Redis, claim_all: Make, settings_for: Make, eventually: Make, keeping: Make
) -> None:
    tables.add_worker("silent")
    tables.add_job(parts=2)
    with keeping(settings_for(lease=timedelta(seconds=2))):
        eventually(lambda: len(claim_all(owner="silent")) or redis.hlen("pecia:taken:silent") == 3)
        tables.query(
            "UPDATE parts SET state = 'running', attempt = 1, worker = 'silent', started_at = now() WHERE ordinal = 0"
        )
        eventually(lambda: (redis.llen("read.normal"), redis.llen("read.quarantine")) == (2, 1))
    assert [part["deaths"] for part in tables.query("SELECT deaths FROM parts ORDER BY ordinal")] == [1, 0]


def test_flows_whose_jobs_are_over_are_forgotten(
    tables: Any, settings: WorkerSettings, eventually: Make, keeping: Make
) -> None:
    tables.query("INSERT INTO flows (digest) VALUES ('north'), ('south')")
    tables.query(
        "UPDATE jobs SET flow = flows.id FROM flows WHERE digest = 'north' AND jobs.id = %s", tables.add_job()
    )
    with keeping(settings):
        eventually(lambda: len(tables.query("SELECT digest FROM flows")) == 1)
        time.sleep(0.3)
    assert tables.query("SELECT digest FROM flows") == [{"digest": b"north"}]


def test_an_outage_of_redis_is_told_once_and_outlasted(
    tables: Any,
    redis_server: Callable[..., EmbeddedRedis],
    settings_for: Make,
    eventually: Make,
    keeping: Make,
) -> None:
    first = redis_server()
    expiring = tables.add_job(expires_in=timedelta(seconds=1))
    with capture_logs() as logs, keeping(settings_for(redis_url=first.url)):
        first.kill()
        job_id = tables.add_job()
        eventually(lambda: tables.job(expiring)["state"] == "expired")
        time.sleep(0.5)
        second = redis_server(replaces=first)
        client = connect(second.url)
        eventually(lambda: client.llen(QUEUE) == 1)
        client.close()
        eventually(lambda: outages(logs, "upkeep_recovered") == ["redis_unavailable"])

    assert outages(logs, "upkeep_outage") == ["redis_unavailable"]
    assert tables.parts(job_id)[0]["published_at"] is not None


def test_an_outage_of_postgres_is_told_once_and_outlasted(  # noqa: PLR0917  fixtures
    new_tables: Make,
    postgres_server: Callable[..., EmbeddedPostgres],
    redis: Redis,
    settings_for: Make,
    eventually: Make,
    keeping: Make,
) -> None:
    first = postgres_server(durable=True)
    upgrade(first.url)
    with capture_logs() as logs, keeping(settings_for(database_url=first.url)):
        first.kill()
        eventually(lambda: outages(logs, "upkeep_outage"))
        time.sleep(0.5)
        postgres_server(replaces=first, durable=True)
        new_tables(first.url).add_job()
        eventually(lambda: redis.llen(QUEUE) == 1)

    assert outages(logs, "upkeep_outage") == ["database_unavailable"]


@pytest.mark.parametrize(
    ("sqlstate", "outage"),
    [("25006", "database_unavailable"), ("54000", "relay_failed"), ("42501", "relay_failed")],
)
def test_what_keeps_a_step_from_its_work_is_told_by_the_sqlstate_and_the_others_go_on(  # noqa: PLR0917  fixtures
    sqlstate: str,
    outage: str,
    tables: Any,
    redis: Redis,
    settings: WorkerSettings,
    eventually: Make,
    keeping: Make,
) -> None:
    tables.query("INSERT INTO flows (digest) VALUES ('north')")
    fail_writes(tables.database_url, "UPDATE ON parts", sqlstate)
    with capture_logs() as logs, keeping(settings):
        tables.add_job()
        eventually(lambda: outages(logs, "upkeep_outage"))
        eventually(lambda: not tables.query("SELECT digest FROM flows"))
        let_writes_pass(tables.database_url)
        eventually(lambda: redis.llen(QUEUE) == 1)

    assert outages(logs, "upkeep_outage") == [outage]
    assert {entry["error"] for entry in logs if entry["event"] == "upkeep_outage"} == {sqlstate}


def outages(logs: list[Any], event: str) -> list[str]:
    return [entry["outage"] for entry in logs if entry["event"] == event]
