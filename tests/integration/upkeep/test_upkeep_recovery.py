"""Who is taken for dead, and when; parts whose worker is gone run again or fail as poisoned; late jobs end."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from redis import Redis
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.events import NoticeType
from pecia_schemas.messages import CANCEL_CHANNEL, job_channel
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.ledger.database import change, open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import _DECLARE_DEAD, Judge, pardon
from pecia_workers.ledger.workers import Watch, WorkerIdentity, beat, is_gone, new_name, register
from pecia_workers.upkeep.loop import Stores, expire, relay
from tests.shared.command import ran
from tests.shared.fixture_types import Make
from tests.shared.house import House, claimed, hear_nothing
from tests.shared.limits import WAIT_S, eventually

LEASE = timedelta(seconds=15)
WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looks(clock: Clock) -> Callable[..., list[list[str]]]:
    """Looks every second for so long, at beats that a function of the time tells."""
    watch = Watch(LEASE, clock=clock)

    def look(seconds: int, beats: Callable[[float], dict[str, datetime]]) -> list[list[str]]:
        found = []
        for _ in range(seconds):
            clock.now += 1
            found.append(watch.silent(beats(clock.now)))
        return found

    return look


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def test_a_worker_is_dead_whose_beat_stands_still_for_a_lease(looks: Callable[..., list[list[str]]]) -> None:
    assert looks(16, lambda now: {"silent": at(0), "alive": at(now // 5)}) == [[]] * 15 + [["silent"]]


def test_a_beat_that_goes_backwards_is_a_beat(looks: Callable[..., list[list[str]]]) -> None:
    """Clocks may jump: that a beat has changed says that its worker lives, not what it says."""
    assert not any(looks(60, lambda now: {"alive": at(1_000 - now // 5)}))


def test_after_a_gap_the_judge_waits_for_a_lease(clock: Clock, looks: Callable[..., list[list[str]]]) -> None:
    looks(14, lambda _: {"silent": at(0)})
    clock.now += 60  # an outage of Postgres, or of the judge
    assert looks(16, lambda _: {"silent": at(0)}) == [[]] * 15 + [["silent"]]


def test_a_beat_that_stands_still_while_postgres_is_read_only_says_nothing(
    tables: Any, house: House, clock: Clock, database_url: str
) -> None:
    tables.add_worker("alive")
    options = {"options": "-c default_transaction_read_only=on"}
    url = make_url(database_url).update_query_dict(options).render_as_string(hide_password=False)

    async def story(database: AsyncEngine) -> list[bool]:
        judge = Judge(database, house.settings(), hear_nothing)
        judge._watch = Watch(LEASE, clock=clock)
        lost = []
        read_only = open_database(url)
        for judge._database in (*[read_only] * 30, *[database] * 17):
            clock.now += 1
            await judge.judge()
            lost.append(tables.query("SELECT lost_at FROM workers")[0]["lost_at"] is not None)
        await read_only.dispose()
        return lost

    assert house.ask(story) == [False] * 45 + [True] * 2


def test_a_name_tells_that_its_process_is_gone_on_this_machine_alone() -> None:
    naming = "from pecia_workers.ledger.workers import new_name; print(new_name('engine'))"
    ended = ran(sys.executable, "-c", naming).stdout.strip()
    assert is_gone(ended)
    assert not is_gone(new_name("engine"))
    place, _, token = ended.rpartition(":")
    assert not is_gone(f"{place}:{token[::-1]}"), "of another machine"
    assert not any(map(is_gone, ("", "worker", "engine@host:", ":::")))


@contextmanager
def gone(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("pecia_workers.ledger.recovery.is_gone", name.__eq__)
        yield


def test_the_parts_of_a_process_that_is_gone_run_again_at_once(
    tables: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.add_worker("dead")
    tables.add_worker("alive")
    (dead, alive) = (tables.add_job(parts=2), tables.add_job())
    tables.run_on("dead", dead)
    tables.run_on("alive", alive)

    with gone("dead", monkeypatch):
        taken_back = house.ask(lambda database: Judge(database, house.settings(), hear_nothing).judge())

    assert taken_back == 2
    assert {(part["state"], part["deaths"]) for part in tables.parts(dead)} == {("queued", 1)}
    assert tables.parts(alive)[0]["state"] == "running"
    assert tables.query("SELECT name FROM workers WHERE lost_at IS NOT NULL") == [{"name": "dead"}]


def test_a_worker_that_beats_while_it_is_judged_lives(tables: Any, house: House) -> None:
    tables.add_worker("alive", silent=timedelta(seconds=1))

    async def story(database: AsyncEngine) -> None:
        before = tables.query("SELECT seen_at FROM workers")[0]["seen_at"]
        tables.query("UPDATE workers SET seen_at = now()")
        assert await change(database, _DECLARE_DEAD, name="alive", seen_at=before) == 0

    house.ask(story)

    assert tables.query("SELECT lost_at FROM workers") == [{"lost_at": None}]


def test_a_worker_taken_for_dead_claims_nothing_until_registered(tables: Any, house: House) -> None:
    worker = WorkerIdentity.new("engine", [Stage.READ])
    job_id = tables.add_job()
    part = tables.parts(job_id)[0]["id"]

    async def story(database: AsyncEngine) -> list[bool]:
        async def claims() -> bool:
            ledger = Ledger(database, worker.name, announce=hear_nothing)
            return await ledger.claim(part) is not None

        await register(database, worker)
        tables.query("UPDATE workers SET lost_at = now() + interval '1 second'")
        refused, lives = await claims(), await beat(database, worker)
        await register(database, worker)
        return [refused, lives, await beat(database, worker), await claims()]

    assert house.ask(story) == [False, False, True, True]


def test_a_death_is_undone_once_where_nothing_failed(tables: Any, house: House) -> None:
    job_id = tables.add_job(parts=5)
    tables.query("UPDATE parts SET deaths = 1 WHERE ordinal = 3")

    async def story(database: AsyncEngine) -> None:
        ledger = Ledger(database, "alive", announce=hear_nothing)
        claims = [await claimed(ledger, part["id"], deaths=part["deaths"]) for part in tables.parts(job_id)]
        # Of the last, the judge has counted none.
        tables.query("UPDATE parts SET deaths = 1, state = 'queued'")
        tables.query("UPDATE parts SET state = 'failed' WHERE ordinal = 1")
        tables.query("UPDATE parts SET attempt = 2, state = 'running' WHERE ordinal = 2")
        tables.query("UPDATE parts SET attempt = 2, state = 'done' WHERE ordinal = 4")
        with psycopg.connect(tables.database_url) as claim_elsewhere:
            claim_elsewhere.execute("SELECT FROM parts WHERE ordinal = 2 FOR NO KEY UPDATE")
            pardoned = asyncio.create_task(pardon(database, claims))
            await asyncio.to_thread(eventually, lambda: pardoned.done() or tables.query(WAITS))
        assert await pardoned == 3
        assert await pardon(database, claims) == 0, "as after a reply that was lost"

    house.ask(story)
    assert [part["deaths"] for part in tables.parts(job_id)] == [0, 1, 0, 1, 0]


@pytest.fixture
def reap(run: Make, settings: WorkerSettings) -> Callable[[], int]:
    return lambda: run(lambda stores: Judge(stores.database, settings, stores.bus.announce).judge())


@pytest.mark.parametrize("known", [True, False])
def test_the_parts_of_a_dead_worker_are_queued_again(
    known: bool, tables: Any, run: Make, reap: Callable[[], int]
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


@pytest.mark.parametrize("stopped", [True, False], ids=["it stopped of its own will", "it began anew"])
def test_what_a_worker_let_go_of_is_no_strike(stopped: bool, tables: Any, reap: Callable[[], int]) -> None:
    job_id = tables.add_job()
    tables.run_on("same", job_id)
    tables.add_worker("same", stopped=stopped)
    if not stopped:
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


def test_a_clock_that_is_set_back_takes_no_part_from_its_worker(
    tables: Any, house: House, reap: Callable[[], int]
) -> None:
    tables.add_worker("alive")
    tables.query("UPDATE workers SET started_at = now() + interval '1 hour'")
    (part,) = tables.parts(tables.add_job())
    house.ask(lambda database: claimed(Ledger(database, "alive", announce=hear_nothing), part["id"]))
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


def test_two_reapers_count_one_death(tables: Any, settings: WorkerSettings, run: Make) -> None:
    job_id = tables.add_job(parts=20)
    tables.run_on("dead", job_id)

    async def story(stores: Stores) -> int:
        judges = [Judge(stores.database, settings, stores.bus.announce) for _ in range(4)]
        together = await asyncio.gather(*(judge.judge() for judge in judges))
        return sum(together) + await judges[0].judge()  # what they kept from each other

    assert run(story) == 20
    assert {part["deaths"] for part in tables.parts(job_id)} == {1}


def test_a_late_job_expires_with_its_open_parts(tables: Any, redis: Redis, run: Make) -> None:
    job_id = tables.add_job(parts=3, expires_in=timedelta(seconds=-1), webhook=True)
    tables.query("UPDATE parts SET state = 'done' WHERE ordinal = 0")
    tables.query("UPDATE parts SET state = 'running' WHERE ordinal = 1")
    tables.query("UPDATE jobs SET done = 1")
    with redis.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(job_channel(job_id), CANCEL_CHANNEL)
        pubsub.get_message(timeout=WAIT_S)
        pubsub.get_message(timeout=WAIT_S)

        assert run(expire) == 1

        heard = [pubsub.get_message(timeout=WAIT_S), pubsub.get_message(timeout=WAIT_S)]
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


def test_a_job_that_is_not_cut_yet_expires_too(tables: Any, run: Make) -> None:
    job_id = tables.add_job(stage="ingest", expires_in=timedelta(seconds=-1))
    assert run(expire) == 1
    assert (tables.job(job_id)["state"], tables.job(job_id)["cancelled"]) == ("expired", 0)


def test_a_job_with_time_left_or_a_result_does_not_expire(tables: Any, run: Make) -> None:
    tables.add_job(expires_in=timedelta(hours=1))
    finished = tables.add_job(expires_in=timedelta(seconds=-1))
    tables.query("UPDATE jobs SET state = 'succeeded' WHERE id = %s", finished)
    assert run(expire) == 0


@pytest.mark.parametrize("locked", ["jobs", "parts"])
def test_a_job_that_is_being_committed_expires_as_soon_as_it_is_free(
    locked: str, tables: Any, run: Make
) -> None:
    job_id = tables.add_job(parts=2, expires_in=timedelta(seconds=-1))
    lock: dict[str, LiteralString] = {
        "jobs": "SELECT FROM jobs FOR NO KEY UPDATE",
        "parts": "SELECT FROM parts WHERE ordinal = 1 FOR NO KEY UPDATE",
    }
    with ThreadPoolExecutor() as threads, psycopg.connect(tables.database_url) as commit:
        commit.execute(lock[locked])
        expiring = threads.submit(run, expire)
        eventually(lambda: tables.query(WAITS))
        commit.commit()
        assert expiring.result() == 1

    assert tables.job(job_id)["cancelled"] == 2


def test_free_jobs_expire_though_another_is_held_for_long(tables: Any, redis: Redis, run: Make) -> None:
    held = tables.add_job(expires_in=timedelta(seconds=-2))
    free = tables.add_job(expires_in=timedelta(seconds=-1))
    with redis.pubsub() as pubsub, psycopg.connect(tables.database_url) as holding:  # type: ignore[no-untyped-call]
        pubsub.subscribe(job_channel(free), CANCEL_CHANNEL)
        holding.execute("SELECT FROM jobs WHERE id = %s FOR NO KEY UPDATE", (held,))
        with pytest.raises(OperationalError):
            run(expire)
        heard = [message["data"] for _ in range(4) if (message := pubsub.get_message(timeout=WAIT_S))]
    assert (tables.job(free)["state"], tables.job(held)["state"]) == ("expired", "queued")
    assert heard == [1, 2, "expired", str(free)], "its client and the workers that run it"


def test_the_parts_of_a_dead_worker_are_queued_again_while_others_commit_to_their_job(
    tables: Any, reap: Callable[[], int]
) -> None:
    tables.run_on("dead", tables.add_job(parts=3))
    with psycopg.connect(tables.database_url) as commit:
        commit.execute("SELECT FROM jobs FOR NO KEY UPDATE")
        assert reap() == 3


def test_jobs_expire_while_redis_is_away(tables: Any, run: Make, settings_for: Make) -> None:
    job_id = tables.add_job(expires_in=timedelta(seconds=-1))
    assert run(expire, settings_for(redis_url="unix:///nowhere/redis.sock")) == 1
    assert tables.job(job_id)["state"] == "expired"
