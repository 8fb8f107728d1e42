"""A worker runs parts to their end and tells Celery how; whatever dies, every part runs, and none twice for nothing."""

import signal
import time
from typing import Any

import pytest

from pecia_schemas.states import Lane
from tests.shared.fixture_types import Make
from tests.shared.limits import WAIT_S, eventually


def test_what_a_part_really_costs_counts_as_soon_as_it_is_known(fleet: Any) -> None:
    parts = [fleet.send("wait", cost=60) for _ in range(3)]
    fleet.start(SCRIPTED_TOKENS="100", SCRIPTED_PRICE="10")
    eventually(lambda: len(fleet.journal()) == len(parts), what="the parts that fit")
    fleet.finish(*parts)
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

    def await_claims(count: int) -> None:
        eventually(lambda: len(fleet.journal()) == count, what=f"{count} parts")

    for claimed in (2, 8):
        await_claims(claimed)
        (fleet.directory / "room.new").write_text("1")
        (fleet.directory / "room.new").rename(fleet.directory / "room")

    fleet.finish(*parts)
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
    (bystander,) = fleet.hold()
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
    again = ["run", "cancelled", "given back", "run"]
    eventually(lambda: fleet.story(part)[: len(again)] == again, what="another run, which ends as soon")
    fleet.finish(part)
    fleet.await_settled()


def test_a_killed_workers_parts_run_elsewhere(fleet: Any) -> None:
    doomed = fleet.start()
    parts = fleet.hold(5)
    fleet.start()

    fleet.reap(doomed)
    fleet.finish(*parts)

    for part in parts:
        fleet.await_story(part, "run", "run", "done")
        assert fleet.journal(part)[1]["deaths"] == 1
    fleet.await_settled()


def test_cut_connections_run_nothing_twice(fleet: Any) -> None:
    fleet.start()
    parts = fleet.hold(3)

    for kind in ("normal", "pubsub"):
        fleet.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    time.sleep(3)
    fleet.finish(*parts)

    fleet.await_story(fleet.send(), "run", "done")
    for part in parts:
        fleet.await_story(part, "run", "done")
    fleet.await_settled()


def test_work_goes_on_after_redis_was_killed_and_came_back(redis_server: Make, make_fleet: Make) -> None:
    server = redis_server()
    fleet = make_fleet(server.url)
    fleet.start()
    (part,) = fleet.hold()
    eventually(lambda: not fleet.redis.info("persistence")["aof_buffer_length"], what="Redis's log")

    server.kill()
    fleet.finish(part)
    fleet.await_story(part, "run", "done")
    redis_server(replaces=server)

    fleet.await_story(fleet.send(), "run", "done")
    fleet.await_settled()
    assert fleet.story(part) == ["run", "done"]


def test_work_goes_on_after_redis_forgot_everything(fleet: Any) -> None:
    fleet.start()
    (part,) = fleet.hold()
    fleet.redis.flushall()
    fleet.finish(part)
    fleet.await_story(fleet.send(), "run", "done")
    fleet.await_settled()


def stop(fleet: Any, worker: Any, number: signal.Signals) -> None:
    """Ask the worker to stop, and return once it has been told."""
    worker.send_signal(number)
    eventually(lambda: "Warm shutdown" in fleet.log(worker), what="the beginning of the stop")


def test_a_stopping_worker_finishes_what_it_began(fleet: Any) -> None:
    worker = fleet.start()
    (part,) = fleet.hold()

    stop(fleet, worker, signal.SIGTERM)
    unclaimed = fleet.send()
    fleet.finish(part)

    assert worker.wait(WAIT_S) == 0, fleet.logs
    assert fleet.story(part) == ["run", "done"]
    assert fleet.story(unclaimed) == []
    assert fleet.left == ["read.normal"]


def test_a_stopping_worker_gives_back_what_it_cannot_finish_in_time(fleet: Any) -> None:
    worker = fleet.start(PECIA_DRAIN_TIMEOUT="PT1S")
    (part,) = fleet.hold()

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(WAIT_S) == 0
    assert fleet.story(part) == ["run", "cancelled", "given back"]
    assert fleet.left == ["read.normal"]
    fleet.start()
    fleet.finish(part)
    fleet.await_story(part, "run", "cancelled", "given back", "run", "done")
    assert fleet.journal(part)[-2]["deaths"] == 0


def test_a_second_interrupt_gives_back_at_once(fleet: Any) -> None:
    worker = fleet.start(PECIA_DRAIN_TIMEOUT="PT10M")
    (part,) = fleet.hold()

    stop(fleet, worker, signal.SIGINT)
    eventually(lambda: not fleet.redis.pubsub_numpat(), what="the end of all but the part")
    time.sleep(0.5)  # now it waits for the part alone
    assert worker.returncode is None
    worker.send_signal(signal.SIGINT)

    worker.wait(WAIT_S)
    assert fleet.story(part) == ["run", "cancelled", "given back"]
    assert fleet.left == ["read.normal"]


def test_a_second_interrupt_gives_back_though_the_pool_has_not_begun_to_stop(fleet: Any) -> None:
    worker = fleet.start(PECIA_DRAIN_TIMEOUT="PT10M", SCRIPTED_CLOSE="interrupted")
    (part,) = fleet.hold()

    worker.send_signal(signal.SIGINT)

    worker.wait(WAIT_S)
    assert fleet.story(part) == ["run", "cancelled", "given back"]
    assert fleet.left == ["read.normal"]


def test_a_runtime_that_is_lost_while_nothing_runs_ends_the_worker(fleet: Any) -> None:
    worker = fleet.start()
    (fleet.directory / "lost").touch()
    assert worker.wait(WAIT_S) == 1
    assert fleet.story(fleet.send()) == []


def await_runs(fleet: Any, part: Any, count: int) -> None:
    eventually(lambda: fleet.story(part).count("run") == count, what=f"run {count}")


def test_nothing_runs_beside_the_parts_of_a_dead_worker_and_others_run_elsewhere(fleet: Any) -> None:
    doomed, suspects = fleet.start(), fleet.hold(3)
    fleet.reap(doomed)
    guard = fleet.start()
    for part in suspects:
        await_runs(fleet, part, 2)

    normal = fleet.send()
    fleet.start()
    fleet.await_story(normal, "run", "done")

    assert all(entry["pid"] != guard.pid for entry in fleet.journal(normal))
    for part in suspects:
        fleet.finish(part)
        fleet.await_story(part, "run", "run", "done")
    fleet.await_settled()


def test_a_worker_takes_other_parts_again_once_its_suspects_have_ended(fleet: Any) -> None:
    doomed, [suspect] = fleet.start(), fleet.hold()
    fleet.reap(doomed)
    fleet.start()
    await_runs(fleet, suspect, 2)
    normal = fleet.send()
    urgent = fleet.send("done", Lane.URGENT)

    fleet.finish(suspect)

    for part in (normal, urgent):
        fleet.await_story(part, "run", "done")
    ended = next(number for number, entry in enumerate(fleet.journal()) if entry["what"] == "done")
    assert fleet.journal()[ended]["part"] == str(suspect)
    fleet.await_settled()
