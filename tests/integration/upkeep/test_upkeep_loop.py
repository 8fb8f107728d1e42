"""The loop of upkeep, one or several at once: what is lost comes back within seconds, and an outage is outlasted."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from pecia_migrations import upgrade
from pecia_schemas.events import NoticeType
from pecia_schemas.settings import WorkerSettings
from pecia_workers.queue.lists import connect, count_waiting, held_parts
from pecia_workers.upkeep import loop
from tests.shared.failing_writes import fail_writes, let_writes_pass
from tests.shared.fixture_types import Make
from tests.shared.forking import Started
from tests.shared.http_doubles import at_work
from tests.shared.limits import WAIT_S, eventually
from tests.shared.tables import Tables

QUEUE = "read.normal"


def test_after_flushall_everything_is_back_within_seconds(
    tables: Any, redis: Redis, settings: WorkerSettings, keeping: Make
) -> None:
    tables.add_job(parts=50)
    with keeping(settings):
        eventually(lambda: len(held_parts(redis)) == 50)
        redis.flushall()
        eventually(lambda: len(held_parts(redis)) == 50)
    assert count_waiting(redis).total() == 50, "some were published twice"


@pytest.mark.parametrize("upkeep", [True, False], ids=["by upkeep", "by a worker"])
def test_what_a_worker_took_that_died_comes_again_and_what_it_ran_in_quarantine(  # noqa: PLR0917  fixtures
    upkeep: bool, tables: Any, redis: Redis, claim_all: Make, run: Make, settings_for: Make
) -> None:
    """Killed between Redis and Postgres, it has left no trace of a part; and another message hides the gap."""
    settings = settings_for(lease=timedelta(seconds=2))
    tables.add_worker("silent")
    tables.add_job(parts=2)
    assert run(loop.relay) == 2
    assert len(claim_all(owner="silent")) == 2
    tables.publish_long_ago()
    tables.query(
        "UPDATE parts SET state = 'running', attempt = 1, worker = 'silent', started_at = now() WHERE ordinal = 0"
    )
    redis.lpush(QUEUE, "no message")

    async def watch(stores: loop.Stores) -> None:
        async with loop.workers_watched(stores.database, stores.bus, settings):
            await asyncio.to_thread(eventually, are_back)

    def are_back() -> bool:
        return (redis.llen(QUEUE), redis.llen("read.quarantine")) == (2, 1)

    if upkeep:
        with at_work(loop.Upkeep(settings)):
            eventually(are_back)
    else:
        run(watch)
    assert [part["deaths"] for part in tables.query("SELECT deaths FROM parts ORDER BY ordinal")] == [1, 0]


def test_a_watch_ends_though_a_library_swallows_the_first_cancel(
    run: Make, settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py does while it connects: a worker that stopped at that moment never ended."""
    settings = settings_for(lease=timedelta(seconds=1))

    async def story(stores: loop.Stores) -> None:
        connecting = asyncio.Event()

        async def swallow(*_: Any, **_options: Any) -> int:
            connecting.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(WAIT_S)
            return 0

        monkeypatch.setattr(loop, "relay_due", swallow)
        async with asyncio.timeout(WAIT_S), loop.workers_watched(stores.database, stores.bus, settings):
            await connecting.wait()

    run(story, settings)


def test_an_outage_of_redis_is_told_once_and_outlasted(
    tables: Any, redis_server: Make, settings_for: Make, keeping: Make
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


def test_an_outage_of_postgres_is_told_once_and_outlasted(
    postgres_server: Make, redis: Redis, settings_for: Make, keeping: Make
) -> None:
    first = postgres_server(durable=True)
    upgrade(first.url)
    with capture_logs() as logs, keeping(settings_for(database_url=first.url)):
        first.kill()
        eventually(lambda: outages(logs, "upkeep_outage"))
        time.sleep(0.5)
        postgres_server(replaces=first, durable=True)
        Tables(first.url).add_job()
        eventually(lambda: redis.llen(QUEUE) == 1)

    assert outages(logs, "upkeep_outage") == ["database_unavailable"]


@pytest.mark.parametrize(
    ("sqlstate", "outage"),
    [("25006", "database_unavailable"), ("54000", "relay_failed"), ("42501", "relay_failed")],
)
def test_what_keeps_a_step_from_its_work_is_told_by_the_sqlstate_and_the_others_go_on(  # noqa: PLR0917  fixtures
    sqlstate: str, outage: str, tables: Any, redis: Redis, settings: WorkerSettings, keeping: Make
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


ROUNDS = 3


@pytest.fixture
def two_of_them(tables: Any, started: Started) -> Iterator[None]:
    """Two processes, as operators start them, that look twenty times a second."""
    for _ in range(2):
        started.worker("upkeep", PECIA_UPKEEP_INTERVAL="0.05", PECIA_LOG_LEVEL="warning")
    on_duty = "SELECT name FROM workers WHERE role = 'upkeep'"
    eventually(lambda: len(tables.query(on_duty)) == 2, what="both of them")
    yield
    for process in started.programs:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(WAIT_S) for process in started.programs] == [0, 0]


@pytest.mark.gate
@pytest.mark.usefixtures("two_of_them")
def test_two_instances_do_all_as_redis_forgets(tables: Any, redis: Redis) -> None:
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
