"""Who is taken for dead, when, and what becomes of a worker that was and lives."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from command import ran
from house import House, hear_nothing
from pecia_schemas.states import Stage
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.recovery import Judge, pardon
from pecia_workers.ledger.workers import Watch, WorkerIdentity, beat, gone_of, is_gone, new_name, register

if TYPE_CHECKING:
    from uuid import UUID

LEASE = timedelta(seconds=15)


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
    assert house.ask(lambda database: gone_of(database, {"dead", "alive", "unknown"})) == {"dead", "unknown"}


def test_a_worker_that_beats_while_it_is_judged_lives(tables: Any, house: House) -> None:
    tables.add_worker("alive", silent=timedelta(seconds=1))

    async def story(database: AsyncEngine) -> None:
        judge = Judge(database, house.settings(), hear_nothing)
        before = tables.query("SELECT seen_at FROM workers")[0]["seen_at"]
        tables.query("UPDATE workers SET seen_at = now()")
        await judge._bury("alive", before)

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


def test_a_strike_is_taken_back_from_what_is_not_over(tables: Any, house: House) -> None:
    job_id = tables.add_job(parts=3)
    tables.query("UPDATE parts SET attempt = 1, deaths = 1")
    tables.query("UPDATE parts SET state = 'failed' WHERE ordinal = 1")
    tables.query("UPDATE parts SET attempt = 2, state = 'running' WHERE ordinal = 2")
    mine: list[UUID] = [part["id"] for part in tables.parts(job_id)]
    house.ask(lambda database: pardon(database, [(part, 1) for part in mine]))
    assert [part["deaths"] for part in tables.parts(job_id)] == [0, 1, 0]
