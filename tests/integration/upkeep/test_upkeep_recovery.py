"""Parts whose worker is gone run again or fail as poisoned; jobs whose time is over end."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from redis import Redis
from sqlalchemy.exc import OperationalError

from fixture_types import Eventually
from pecia_schemas.events import NoticeType
from pecia_schemas.messages import CANCEL_CHANNEL, job_channel
from pecia_schemas.settings import WorkerSettings
from pecia_workers.ledger.recovery import Judge
from pecia_workers.upkeep.loop import Stores, expire, relay


@pytest.fixture
def reap(run: Callable[..., int], settings: WorkerSettings) -> Callable[[], int]:
    return lambda: run(lambda stores: Judge(stores.database, settings, stores.bus.tell).judge())


@pytest.mark.parametrize("known", [True, False])
def test_the_parts_of_a_dead_worker_are_queued_again(
    known: bool, tables: Any, run: Callable[..., Any], reap: Callable[[], int]
) -> None:
    job_id = tables.add_job(parts=3)
    tables.run_on("dead", job_id)
    if known:
        tables.add_worker("dead", lost=True)

    assert reap() == 3

    assert {(part["state"], part["deaths"], part["attempt"]) for part in tables.parts(job_id)} == {
        ("queued", 1, 1)
    }
    assert tables.events(job_id) == [("queued", "worker_lost", False)] * 3
    assert tables.job(job_id)["state"] == "running"
    assert run(relay) == 3
    assert reap() == 0


def test_a_worker_that_stopped_of_its_own_will_is_no_strike(tables: Any, reap: Callable[[], int]) -> None:
    job_id = tables.add_job()
    tables.run_on("gone", job_id)
    tables.add_worker("gone", stopped=True)
    assert reap() == 1
    assert tables.parts(job_id)[0]["deaths"] == 0


def test_what_was_let_go_of_before_registration_is_no_strike(tables: Any, reap: Callable[[], int]) -> None:
    job_id = tables.add_job()
    tables.run_on("same", job_id)
    tables.add_worker("same")
    tables.query("UPDATE workers SET started_at = now()")
    assert reap() == 1
    assert tables.parts(job_id)[0]["deaths"] == 0


@pytest.mark.parametrize("jump", ["-1 year", "1 year"])
def test_only_the_judges_clock_tells_the_dead(tables: Any, reap: Callable[[], int], jump: str) -> None:
    """Neither does time in which a part runs: its worker alone knows what it waited for."""
    tables.add_worker("alive")
    tables.run_on("alive", tables.add_job())
    tables.query("UPDATE workers SET seen_at = now() + %s::interval", jump)
    assert reap() == 0


def test_a_part_that_takes_its_workers_down_fails_as_poisoned(tables: Any, reap: Callable[[], int]) -> None:
    job_id = tables.add_job(parts=2, webhook=True)
    tables.query("UPDATE parts SET deaths = 2 WHERE job_id = %s AND ordinal = 0", job_id)
    tables.query("UPDATE parts SET state = 'done' WHERE job_id = %s AND ordinal = 1", job_id)
    tables.query("UPDATE jobs SET done = 1 WHERE id = %s", job_id)
    tables.query("UPDATE parts SET state = 'running', attempt = 3, worker = 'dead' WHERE ordinal = 0")

    assert reap() == 1

    part = tables.parts(job_id)[0]
    assert (part["state"], part["failure"]["code"], part["failure"]["attempt"]) == ("failed", "poisoned", 3)
    job = tables.job(job_id)
    assert (job["state"], job["done"], job["failed"]) == ("partial", 1, 1)
    assert tables.events(job_id) == [("failed", "poisoned", False), ("partial", None, True)]
    assert tables.notices() == [NoticeType.PARTIAL]


def test_a_poisoned_ingest_fails_its_job(tables: Any, reap: Callable[[], int]) -> None:
    job_id = tables.add_job(stage="ingest", webhook=True)
    tables.query("UPDATE parts SET deaths = 2")
    tables.run_on("dead", job_id)
    reap()
    job = tables.job(job_id)
    assert (job["state"], job["failure"]["code"]) == ("failed", "poisoned")
    assert tables.notices() == [NoticeType.FAILED]


def test_two_reapers_count_one_death(tables: Any, settings: WorkerSettings, run: Callable[..., Any]) -> None:
    job_id = tables.add_job(parts=20)
    tables.run_on("dead", job_id)

    async def story(stores: Stores) -> int:
        judges = [Judge(stores.database, settings, stores.bus.tell) for _ in range(4)]
        together = await asyncio.gather(*(judge.judge() for judge in judges))
        return sum(together) + await judges[0].judge()  # what they kept from each other

    assert run(story) == 20
    assert {part["deaths"] for part in tables.parts(job_id)} == {1}


def test_a_late_job_expires_with_its_open_parts(tables: Any, redis: Redis, run: Callable[..., Any]) -> None:
    job_id = tables.add_job(parts=3, expires_in=timedelta(seconds=-1), webhook=True)
    tables.query("UPDATE parts SET state = 'done' WHERE ordinal = 0")
    tables.query("UPDATE parts SET state = 'running' WHERE ordinal = 1")
    tables.query("UPDATE jobs SET done = 1")
    with redis.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(job_channel(job_id), CANCEL_CHANNEL)
        pubsub.get_message(timeout=1)
        pubsub.get_message(timeout=1)

        assert run(expire) == 1

        heard = [pubsub.get_message(timeout=1), pubsub.get_message(timeout=1)]
    assert [(message["channel"], message["data"]) for message in heard if message] == [
        (job_channel(job_id), "expired"),
        (CANCEL_CHANNEL, str(job_id)),
    ]
    job = tables.job(job_id)
    assert (job["state"], job["done"], job["cancelled"]) == ("expired", 1, 2)
    assert job["finished_at"] is not None
    assert [part["state"] for part in tables.parts(job_id)] == ["done", "cancelled", "cancelled"]
    assert sorted(tables.events(job_id)) == [
        ("cancelled", "expired", False),
        ("cancelled", "expired", False),
        ("expired", "expired", True),
    ]
    assert tables.notices() == [NoticeType.EXPIRED]
    assert run(expire) == 0


def test_a_job_that_is_not_cut_yet_expires_too(tables: Any, run: Callable[..., Any]) -> None:
    job_id = tables.add_job(stage="ingest", expires_in=timedelta(seconds=-1))
    assert run(expire) == 1
    assert (tables.job(job_id)["state"], tables.job(job_id)["cancelled"]) == ("expired", 0)


def test_a_job_with_time_left_or_a_result_does_not_expire(tables: Any, run: Callable[..., Any]) -> None:
    tables.add_job(expires_in=timedelta(hours=1))
    finished = tables.add_job(expires_in=timedelta(seconds=-1))
    tables.query("UPDATE jobs SET state = 'succeeded' WHERE id = %s", finished)
    assert run(expire) == 0


@pytest.mark.parametrize("locked", ["jobs", "parts"])
def test_a_job_that_is_being_committed_expires_as_soon_as_it_is_free(
    locked: str, tables: Any, run: Callable[..., Any], eventually: Eventually
) -> None:
    job_id = tables.add_job(parts=2, expires_in=timedelta(seconds=-1))
    lock: dict[str, LiteralString] = {
        "jobs": "SELECT FROM jobs FOR NO KEY UPDATE",
        "parts": "SELECT FROM parts WHERE ordinal = 1 FOR NO KEY UPDATE",
    }
    waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor() as threads, psycopg.connect(tables.database_url) as commit:
        commit.execute(lock[locked])
        expiring = threads.submit(run, expire)
        eventually(lambda: tables.query(waits))
        commit.commit()
        assert expiring.result() == 1

    assert tables.job(job_id)["cancelled"] == 2


def test_free_jobs_expire_though_another_is_held_for_long(tables: Any, run: Callable[..., Any]) -> None:
    held = tables.add_job(expires_in=timedelta(seconds=-2))
    free = tables.add_job(expires_in=timedelta(seconds=-1))
    with psycopg.connect(tables.database_url) as holding:
        holding.execute("SELECT FROM jobs WHERE id = %s FOR NO KEY UPDATE", (held,))
        with pytest.raises(OperationalError):
            run(expire)
    assert (tables.job(free)["state"], tables.job(held)["state"]) == ("expired", "queued")


def test_the_parts_of_a_dead_worker_are_queued_again_while_others_commit_to_their_job(
    tables: Any, reap: Callable[[], int]
) -> None:
    tables.run_on("dead", tables.add_job(parts=3))
    with psycopg.connect(tables.database_url) as commit:
        commit.execute("SELECT FROM jobs FOR NO KEY UPDATE")
        assert reap() == 3


def test_jobs_expire_while_redis_is_away(
    tables: Any, run: Callable[..., Any], settings_for: Callable[..., WorkerSettings]
) -> None:
    job_id = tables.add_job(expires_in=timedelta(seconds=-1))
    assert run(expire, settings_for(redis_url="unix:///nowhere/redis.sock")) == 1
    assert tables.job(job_id)["state"] == "expired"
