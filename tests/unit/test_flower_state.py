"""What Flower makes of the events of a part."""

import pytest
from celery.events.state import Task

from pecia_workers.observability.flower import PartsState

PART = "01a1fb95-340d-7214-94b8-439c85af8453"
RUN = ("received", "started", "succeeded")


class Watched:
    """A state of Flower's that hears one event each second."""

    def __init__(self, *, max_tasks: int = 10) -> None:
        self.state = PartsState(max_tasks_in_memory=max_tasks)
        self.clock = 0

    def hear(self, *kinds: str, part: str = PART, worker: str = "engine@one") -> Task:
        for kind in kinds:
            self.clock += 1
            at = float(self.clock)
            times = {"timestamp": at, "local_received": at, "clock": self.clock}
            name = {"name": "pecia.read"} if kind == "received" else {}
            self.state.event({"type": f"task-{kind}", "uuid": part, "hostname": worker, **times, **name})
        return self.state.tasks[part]


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (("received",), "RECEIVED"),
        (("received", "started"), "STARTED"),
        (RUN, "SUCCESS"),
        (("received", "started", "failed"), "FAILURE"),
        (("received", "started", "retried"), "RETRY"),
        (("received", "started", "revoked"), "REVOKED"),
        (("received", "started", "rejected"), "REJECTED"),
        (("received", "started", "retried", "received"), "RECEIVED"),
        (("received", "started", "rejected", "received", "started"), "STARTED"),
    ],
)
def test_a_part_is_in_the_state_that_its_last_event_tells(kinds: tuple[str, ...], state: str) -> None:
    assert Watched().hear(*kinds).state == state


@pytest.mark.parametrize("end", ["failed", "revoked", "retried", "rejected"])
def test_a_part_that_runs_again_is_in_the_end_as_its_new_end_says(end: str) -> None:
    watched = Watched()
    watched.hear("received", "started", end)
    watched.hear("received", "started", worker="engine@two")
    task = watched.hear("succeeded", worker="engine@two")
    assert (task.state, task.name) == ("SUCCESS", "pecia.read")
    assert task.worker
    assert task.worker.hostname == "engine@two"
    assert task.exception is None


@pytest.mark.parametrize(
    ("end", "state"), [("succeeded", "SUCCESS"), ("failed", "FAILURE"), ("revoked", "REVOKED")]
)
def test_the_message_of_a_part_that_has_ended_changes_nothing_when_it_comes_twice_but_a_new_end_does(
    end: str, state: str
) -> None:
    watched = Watched()
    watched.hear("received", "started", end)
    assert watched.hear("received", "started").state == state
    assert watched.hear("failed").state == "FAILURE", "it ran anew and failed"


def test_events_that_come_out_of_order_lead_to_the_end_all_the_same() -> None:
    watched = Watched()
    watched.hear("succeeded")
    late = {"uuid": PART, "hostname": "engine@one", "local_received": 0.5, "clock": 0}
    watched.state.event({"type": "task-received", "timestamp": 0.5, "name": "pecia.read", **late})
    assert (watched.state.tasks[PART].state, watched.state.tasks[PART].name) == ("SUCCESS", "pecia.read")


@pytest.mark.parametrize("end", ["failed", "retried"])
def test_how_long_a_part_took_that_failed_is_known(end: str) -> None:
    assert Watched().hear("received", "started", end).runtime == 1.0


def test_only_the_latest_parts_are_kept_and_found() -> None:
    watched = Watched(max_tasks=3)
    for number in range(5):
        watched.hear(*RUN, part=f"part-{number}")
    assert list(watched.state.tasks) == ["part-2", "part-3", "part-4"]
    assert set(watched.state.search_engine.documents) == {"part-2", "part-3", "part-4"}
