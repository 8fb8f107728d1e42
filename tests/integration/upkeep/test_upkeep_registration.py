"""Each process of the fleet is known while it lives, and known to have stopped."""

import signal
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, LiteralString

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.running import Need
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.engines.registry import create_engine
from pecia_workers.ledger.workers import (
    Heartbeat,
    WorkerIdentity,
    forget_gone,
    is_registered,
    readers_can,
    register,
    stages_on_duty,
)
from tests.shared.fixture_types import Make
from tests.shared.forking import Started
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually, until

LEASE = timedelta(milliseconds=200)
WORKER = WorkerIdentity.new("engine", [Stage.READ, Stage.CAPTION])


async def test_a_worker_is_seen_while_it_works_and_stopped_afterwards(tables: Any) -> None:
    async with Heartbeat(tables.database_url, WORKER, lease=LEASE):
        first = await seen(tables)
        later = await seen_after(tables, first)
        assert first["stopped_at"] is None
        assert first["stages"] == ["caption", "read"]
        assert later["started_at"] == first["started_at"]

    assert tables.query("SELECT stopped_at FROM workers")[0]["stopped_at"] is not None


def test_no_worker_is_registered_where_there_is_no_table(empty_database_url: str) -> None:
    assert not is_registered(empty_database_url, 1)


def test_a_heartbeat_is_updated_in_place(house: House) -> None:
    counted = text("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'workers'")

    async def story(database: AsyncEngine) -> None:
        await register(database, WORKER)
        async with database.begin() as connection:
            await connection.execute(text("UPDATE workers SET seen_at = now(), stopped_at = NULL"))
            assert (await connection.execute(counted)).one() == (1, 1)

    house.ask(story)


async def test_a_worker_registers_what_its_engine_can_do_and_hold(tables: Any, settings_for: Make) -> None:
    engine = create_engine(settings_for(engine="rapidocr", engine_processes=3))

    async with Heartbeat(tables.database_url, WORKER.running(engine), lease=LEASE):
        assert (await seen(tables))["capabilities"] == {
            "model": "PP-OCRv6-small",
            "device": "cpu",
            "languages": ["en", "zh"],
            "fields": False,
            "adapters": [],
            "slots": 4,
            "tokens": None,
            "preparers": 0,
        }


@pytest.mark.parametrize(
    "told", ["DELETE FROM workers", "UPDATE workers SET lost_at = now() + interval '1 minute'"]
)
async def test_a_worker_whose_row_is_gone_or_dead_registers_again(tables: Any, told: LiteralString) -> None:
    lost: list[int] = []

    lose = partial(lost.append, 1)
    async with Heartbeat(tables.database_url, WORKER, lease=LEASE, on_lost=lose):
        await seen(tables)
        tables.query(told)
        await until(lambda: lost and tables.query("SELECT name FROM workers WHERE lost_at IS NULL"))
    assert lost == [1]


async def test_a_worker_whose_loop_stands_still_does_not_say_that_it_lives(tables: Any) -> None:
    turning, answers = [True], list[bool]()

    def alive() -> bool:
        answers.append(all(turning))
        return answers[-1]

    async with Heartbeat(tables.database_url, WORKER, lease=LEASE, alive=alive):
        first = await seen(tables)
        turning[0] = False
        await until(lambda: answers.count(False) >= 1)  # the beat before is written
        still = await seen(tables)
        await until(lambda: answers.count(False) >= 4)
        assert (await seen(tables))["seen_at"] == still["seen_at"]
        turning[0] = True
        assert (await seen_after(tables, still))["started_at"] == first["started_at"]


def test_the_stages_on_duty_are_those_of_workers_that_live(tables: Any, house: House) -> None:
    tables.add_worker("stopped", stopped=True)
    tables.add_worker("silent", silent=timedelta(minutes=1))

    async def story(database: AsyncEngine) -> None:
        assert await stages_on_duty(database) == set()
        async with Heartbeat(tables.database_url, WORKER, lease=timedelta(minutes=1)):
            await seen(tables)
            assert await stages_on_duty(database) == {Stage.CAPTION, Stage.READ}
        assert await stages_on_duty(database) == set()

    house.ask(story)


ENGLISH = {"languages": ["en"]}


FIELDS, KOREAN = (Need.FIELDS, "true"), (Need.LANGUAGE, "ko")


@pytest.mark.parametrize(
    ("need", "able", "answer"),
    [
        (FIELDS, [], True),
        (FIELDS, [{"fields": False}], False),
        (FIELDS, [{"fields": False}, {"fields": True}], True),
        (FIELDS, [{"fields": False}, None], True),
        (KOREAN, [], True),
        (KOREAN, [ENGLISH], False),
        (KOREAN, [ENGLISH, {"languages": ["en", "ko"]}], True),
        (KOREAN, [ENGLISH, {"languages": None}], True),
        (KOREAN, [ENGLISH, None], True),
        (KOREAN, [ENGLISH, {}], True),
    ],
)
def test_what_is_asked_for_is_refused_only_while_all_who_read_say_that_they_cannot_do_it(
    house: House, need: tuple[Need, str], able: list[dict[str, Any] | None], answer: bool
) -> None:
    async def story(database: AsyncEngine) -> bool:
        captioning = WorkerIdentity.new("engine", [Stage.CAPTION])
        await register(database, replace(captioning, capabilities={"fields": True, "languages": ["ko"]}))
        for capabilities in able:
            reading = WorkerIdentity.new("engine", [Stage.READ])
            await register(database, replace(reading, capabilities=capabilities))
        return await readers_can(database, *need)

    assert house.ask(story) is answer


def test_workers_that_went_long_ago_are_forgotten_but_for_those_a_part_still_runs_on(
    tables: Any, run: Make, settings: WorkerSettings
) -> None:
    long_ago = timedelta(days=2)
    tables.add_worker("alive")
    tables.add_worker("died today", silent=timedelta(hours=1))
    tables.add_worker("died", silent=long_ago)
    tables.add_worker("stopped", silent=long_ago, stopped=True)
    tables.add_worker("died with a part", silent=long_ago)
    tables.query("UPDATE workers SET stopped_at = seen_at WHERE name = 'stopped'")
    tables.run_on("died with a part", tables.add_job())

    assert run(lambda stores: forget_gone(stores.database, age=settings.keep_workers)) == 2
    names = {row["name"] for row in tables.query("SELECT name FROM workers")}
    assert names == {"alive", "died today", "died with a part"}


async def seen(tables: Any, name: str = WORKER.name) -> dict[str, Any]:
    """Return the worker's row as soon as there is one."""
    row: dict[str, Any] = (await until(lambda: tables.query("SELECT * FROM workers WHERE name = %s", name)))[
        0
    ]
    return row


async def seen_after(tables: Any, former: dict[str, Any]) -> dict[str, Any]:
    """Return the worker's row once it has been updated."""
    newer = "SELECT name FROM workers WHERE name = %s AND seen_at <> %s"
    await until(lambda: tables.query(newer, WORKER.name, former["seen_at"]))
    return await seen(tables)


def test_the_upkeep_process_ends_cleanly(tables: Any, started: Started) -> None:
    process = started.worker("upkeep")
    tables.add_job()
    eventually(lambda: tables.query("SELECT id FROM parts WHERE published_at IS NOT NULL"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0

    (worker,) = tables.query("SELECT * FROM workers")
    assert (worker["role"], worker["pid"]) == ("upkeep", process.pid)
    assert worker["stopped_at"] is not None
