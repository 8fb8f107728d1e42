"""Whatever dies, every part runs to its end, and none runs twice for nothing."""

import signal
import time
from collections.abc import Callable
from typing import Any

from limits import WAIT_S


def test_a_killed_workers_parts_run_elsewhere(fleet: Any) -> None:
    doomed = fleet.start()
    parts = [fleet.send("wait") for _ in range(5)]
    for part in parts:
        fleet.await_story(part, "run")
    fleet.start()

    fleet.bury(doomed)
    for part in parts:
        fleet.plan(part, "done")

    for part in parts:
        fleet.await_story(part, "run", "run", "done")
        assert fleet.journal(part)[1]["deaths"] == 1
    fleet.await_settled()


def test_a_part_that_is_held_for_too_long_is_given_up_and_runs_again(fleet: Any) -> None:
    fleet.start(PECIA_PART_TIMEOUT="PT1S", PECIA_LEASE="PT1S")
    part = fleet.send("wait")
    fleet.eventually(lambda: fleet.story(part).count("run") > 1, what="another run")
    fleet.plan(part, "done")
    fleet.await_settled()
    first, *given_up, second = fleet.story(part)[:5]
    assert (first, sorted(given_up), second) == ("run", ["cancelled", "given back", "overdue"], "run")


def test_cut_connections_run_nothing_twice(fleet: Any) -> None:
    fleet.start()
    parts = [fleet.send("wait") for _ in range(3)]
    for part in parts:
        fleet.await_story(part, "run")

    for kind in ("normal", "pubsub"):
        fleet.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    time.sleep(3)
    for part in parts:
        fleet.plan(part, "done")

    fleet.await_story(fleet.send(), "run", "done")
    for part in parts:
        fleet.await_story(part, "run", "done")
    fleet.await_settled()


def test_work_goes_on_after_redis_was_killed_and_came_back(
    redis_server: Callable[..., Any], make_fleet: Callable[[str], Any]
) -> None:
    server = redis_server()
    fleet = make_fleet(server.url)
    fleet.start()
    part = fleet.send("wait")
    fleet.await_story(part, "run")
    time.sleep(1.2)  # the server writes its log every second

    server.kill()
    fleet.plan(part, "done")
    fleet.await_story(part, "run", "done")
    redis_server(replaces=server)

    fleet.await_story(fleet.send(), "run", "done")
    fleet.await_settled()
    assert fleet.story(part) == ["run", "done"]


def test_work_goes_on_after_redis_forgot_everything(fleet: Any) -> None:
    fleet.start()
    part = fleet.send("wait")
    fleet.await_story(part, "run")
    fleet.redis.flushall()
    fleet.plan(part, "done")
    fleet.await_story(fleet.send(), "run", "done")
    fleet.await_settled()


def test_a_stopping_worker_finishes_what_it_began(fleet: Any) -> None:
    worker = fleet.start()
    part = fleet.send("wait")
    fleet.await_story(part, "run")

    worker.send_signal(signal.SIGTERM)
    time.sleep(1)
    unclaimed = fleet.send()
    fleet.plan(part, "done")

    assert worker.wait(WAIT_S) == 0, fleet.logs
    assert fleet.story(part) == ["run", "done"]
    assert fleet.story(unclaimed) == []
    assert fleet.left == ["read.normal"]


def test_a_stopping_worker_gives_back_what_it_cannot_finish_in_time(fleet: Any) -> None:
    worker = fleet.start(PECIA_DRAIN_TIMEOUT="PT1S")
    part = fleet.send("wait")
    fleet.await_story(part, "run")

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(WAIT_S) == 0
    assert fleet.story(part) == ["run", "cancelled", "given back"]
    assert fleet.left == ["read.normal"]
    fleet.start()
    fleet.plan(part, "done")
    fleet.await_story(part, "run", "cancelled", "given back", "run", "done")
    assert fleet.journal(part)[-2]["deaths"] == 0


def test_a_second_interrupt_gives_back_at_once(fleet: Any) -> None:
    worker = fleet.start(PECIA_DRAIN_TIMEOUT="PT10M")
    part = fleet.send("wait")
    fleet.await_story(part, "run")

    worker.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert worker.returncode is None
    worker.send_signal(signal.SIGINT)

    worker.wait(WAIT_S)
    assert fleet.story(part) == ["run", "cancelled", "given back"]
    assert fleet.left == ["read.normal"]


def test_a_runtime_that_is_lost_while_nothing_runs_ends_the_worker(fleet: Any) -> None:
    worker = fleet.start()
    (fleet.directory / "lost").touch()
    assert worker.wait(WAIT_S) == 1
    assert fleet.story(fleet.send()) == []
