"""What took a worker down runs apart: at first among its former neighbours, then alone; no other part is hurt."""

from typing import Any

from pecia_schemas.states import Lane


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


def test_a_worker_takes_other_parts_again_once_its_suspects_have_ended(fleet: Any) -> None:
    doomed, [suspect] = start_and_hold(fleet, 1)
    fleet.bury(doomed)
    fleet.start()
    await_runs(fleet, suspect, 2)
    normal = fleet.send()
    urgent = fleet.send("done", Lane.URGENT)

    fleet.plan(suspect, "done")

    for part in (normal, urgent):
        fleet.await_story(part, "run", "done")
    ended = next(number for number, entry in enumerate(fleet.journal()) if entry["what"] == "done")
    assert fleet.journal()[ended]["part"] == str(suspect)
    fleet.await_settled()
