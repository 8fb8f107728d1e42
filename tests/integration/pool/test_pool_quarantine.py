"""What took a worker down runs apart: at first among its former neighbours, then alone; no other part is hurt."""

import signal
from typing import Any

from limits import WAIT_S


def start_and_hold(fleet: Any, count: int) -> tuple[Any, list[Any]]:
    """Start a worker and let it hold parts that wait."""
    worker = fleet.start()
    parts = [fleet.send("wait") for _ in range(count)]
    for part in parts:
        fleet.await_story(part, "run")
    return worker, parts


def await_runs(fleet: Any, part: Any, count: int) -> None:
    fleet.eventually(lambda: fleet.story(part).count("run") == count, what=f"run {count}")


def test_nothing_runs_beside_the_parts_of_a_dead_worker_and_others_run_elsewhere(fleet: Any) -> None:
    doomed, suspects = start_and_hold(fleet, 3)
    fleet.bury(doomed)
    guard = fleet.start()
    for part in suspects:
        await_runs(fleet, part, 2)

    normal = fleet.send()
    fleet.start()
    fleet.await_story(normal, "run", "done")

    assert all(entry["pid"] != guard.pid for entry in fleet.journal(normal))
    for part in suspects:
        fleet.plan(part, "done")
        fleet.await_story(part, "run", "run", "done")
    fleet.await_settled()


def test_a_part_that_kills_its_workers_kills_one_that_it_shares_with_others(fleet: Any) -> None:
    """Three deaths: among all, among the suspects, alone; a part that was not its neighbour is not touched."""
    first, parts = start_and_hold(fleet, 4)
    poison, *innocent = parts
    fleet.plan(poison, "die")
    assert first.wait(WAIT_S) == -signal.SIGKILL
    fleet.bury(first)
    second = fleet.start()
    assert second.wait(WAIT_S) == -signal.SIGKILL
    fleet.bury(second)

    for part in innocent:
        fleet.plan(part, "done")
    last = [fleet.start(), fleet.start()]
    bystanders = [fleet.send() for _ in range(3)]
    third = fleet.eventually(lambda: next((one for one in last if one.returncode is not None), None))
    fleet.plan(poison, "done")
    fleet.bury(third)

    for part in parts:
        fleet.eventually(lambda part=part: fleet.story(part)[-1:] == ["done"])
        assert fleet.story(part).count("run") <= (4 if part is poison else 3)
    for part in bystanders:
        fleet.await_story(part, "run", "done")
    fleet.await_settled()
    for worker in last:
        expect_suspects_alone(fleet, worker.pid, {str(part) for part in parts})


def expect_suspects_alone(fleet: Any, pid: int, suspects: set[str]) -> None:
    running: set[str] = set()
    for entry in fleet.journal():
        if entry["pid"] == pid:
            (running.add if entry["what"] == "run" else running.discard)(entry["part"])
            assert len(running) <= 1 or not running & suspects
