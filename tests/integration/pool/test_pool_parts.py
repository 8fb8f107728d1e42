"""A worker runs parts to their end and tells Celery how they ended, without a word of a document."""

import time
from typing import Any

import pytest

from limits import WAIT_S


def test_what_a_part_really_costs_counts_as_soon_as_it_is_known(fleet: Any) -> None:
    parts = [fleet.send("wait", cost=60) for _ in range(3)]
    fleet.start(SCRIPTED_TOKENS="100", SCRIPTED_PRICE="10")
    fleet.eventually(lambda: len(fleet.journal()) == len(parts), what="the parts that fit")
    for part in parts:
        fleet.plan(part, "done")
    fleet.await_settled()


@pytest.mark.parametrize(
    ("budget", "cost"),
    [({"SCRIPTED_SLOTS": "8"}, 1), ({"SCRIPTED_TOKENS": "80"}, 10)],
    ids=["slots", "tokens"],
)
def test_less_is_claimed_while_an_engine_has_less_room(fleet: Any, budget: dict[str, str], cost: int) -> None:
    (fleet.directory / "room").write_text("0.25")
    parts = [fleet.send("wait", cost=cost) for _ in range(10)]
    fleet.start(**budget)

    for claimed in (2, 8):
        fleet.eventually(lambda claimed=claimed: len(fleet.journal()) == claimed, what=f"{claimed} parts")
        (fleet.directory / "room.new").write_text("1")
        (fleet.directory / "room.new").rename(fleet.directory / "room")

    for part in parts:
        fleet.plan(part, "done")
    fleet.await_settled()


def test_nothing_is_claimed_while_nothing_may_be(fleet: Any) -> None:
    """So it is while Postgres is away: what was claimed would only wait for it."""
    (fleet.directory / "room").write_text("0")
    part = fleet.send("done")
    fleet.start()
    time.sleep(1.5)  # it looks every second
    assert fleet.journal() == []

    (fleet.directory / "room").unlink()

    fleet.await_story(part, "run", "done")
    fleet.await_settled()


def test_a_part_with_nothing_to_do_is_acknowledged(fleet: Any) -> None:
    fleet.start()
    fleet.await_story(fleet.send("ignore"), "run")
    fleet.await_settled()
    assert "Jane Doe" not in fleet.logs


def test_a_part_thrown_out_by_a_fault_is_given_back_and_runs_again(fleet: Any) -> None:
    fleet.start()
    part = fleet.send("bug")
    fleet.await_story(part, "run", "given back", "run", "done")
    fleet.await_settled()
    assert fleet.journal(part)[2]["deaths"] == 0
    assert "ValueError" in fleet.logs
    assert "Jane Doe" not in fleet.logs


def test_a_worker_whose_runtime_is_lost_gives_all_back_and_fails(fleet: Any) -> None:
    worker = fleet.start()
    bystander = fleet.send("wait")
    fleet.await_story(bystander, "run")
    lost = fleet.send("lose")
    assert worker.wait(WAIT_S) != 0
    assert fleet.story(bystander) == ["run", "cancelled", "given back"]
    assert fleet.story(lost) == ["run", "given back"]
    assert fleet.redis.llen("read.normal") == 2


def test_a_runtime_that_cannot_start_ends_the_worker_with_its_reason(fleet: Any) -> None:
    worker = fleet.launch(SCRIPTED_START="fails")
    assert worker.wait(WAIT_S) != 0
    assert "LookupError: no such model" in fleet.log(worker)


def test_a_hard_time_limit_gives_the_part_back(fleet: Any) -> None:
    fleet.start("--time-limit=1")
    part = fleet.send("wait")
    fleet.await_story(part, "run", "cancelled", "given back", "run")
    fleet.plan(part, "done")
    fleet.await_settled()
