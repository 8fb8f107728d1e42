"""What operators see and do through Celery: revoke, inspect, events, the plain command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pecia_schemas.states import Lane
from pecia_workers.app import FleetApp
from tests.shared.limits import WAIT_S, eventually
from tests.shared.overhearing import celery_events

SECRET = "Jane Doe"


@pytest.fixture
def events(console: FleetApp) -> Iterator[list[dict[str, Any]]]:
    with celery_events(console) as heard:
        yield heard


@pytest.mark.parametrize(
    ("plan", "last", "code"),
    [
        ("done", "task-succeeded", ""),
        ("fail", "task-failed", "PartFailedError('timeout')"),
        ("retry", "task-retried", "PartFailedError('engine_error')"),
        ("cancelled", "task-revoked", ""),
    ],
)
def test_events_tell_how_a_part_went_by_its_code_alone_and_it_is_gone(
    fleet: Any, events: list[dict[str, Any]], plan: str, last: str, code: str
) -> None:
    fleet.start()

    part = fleet.send(plan)

    eventually(
        lambda: (
            [event["type"] for event in events if event.get("uuid") == str(part)]
            == ["task-received", "task-started", last]
        )
    )
    final = next(event for event in events if event["type"] == last)
    assert final.get("exception", "") == code
    assert final.get("runtime", 0) >= 0
    assert final["kwargs"] == "{'job': '7', 'attempt': 1, 'cost': 1}"
    assert final.get("result") == ("{'verdict': 'ok'}" if plan == "done" else None)
    fleet.await_settled()
    assert set(fleet.story(part)) <= {"run", "done"}, "the ledger is told nothing that it knows"
    assert SECRET not in json.dumps(events) + fleet.logs


def test_inspect_shows_ids_and_nothing_else_of_a_part(fleet: Any, console: FleetApp) -> None:
    fleet.start()
    (part,) = fleet.hold(cost=7)

    ((active,),) = console.control.inspect(timeout=WAIT_S, limit=1).active().values()
    (stats,) = console.control.inspect(timeout=WAIT_S, limit=1).stats().values()
    (queues,) = console.control.inspect(timeout=WAIT_S, limit=1).active_queues().values()

    assert (active["id"], active["name"]) == (str(part), "pecia.read")
    assert (active["args"], active["kwargs"]) == ([], {})
    assert (stats["pool"]["in-flight"], stats["pool"]["tokens-in-flight"]) == (1, 7)
    assert stats["pool"]["parts-per-minute"] == 0
    assert [queue["name"] for queue in queues] == ["read.urgent", "read.normal", "read.bulk"]
    fleet.finish(part)
    fleet.await_settled()


def test_a_revoked_part_ends_in_the_ledger(fleet: Any, console: FleetApp) -> None:
    fleet.start(PECIA_REMOTE_CONTROL="revoke")
    (part,) = fleet.hold()
    console.control.revoke(str(part), terminate=True)
    eventually(lambda: sorted(fleet.story(part)) == ["cancelled", "revoked", "run"])
    fleet.await_settled()


def test_a_part_revoked_before_it_starts_never_runs(fleet: Any, console: FleetApp) -> None:
    fleet.start(PECIA_REMOTE_CONTROL="revoke")
    part = uuid4()
    console.control.revoke(str(part), reply=True, limit=1, timeout=WAIT_S)
    fleet.publish(part)
    fleet.await_story(part, "revoked")
    fleet.await_settled()


def test_celerys_own_command_line_starts_a_worker(fleet: Any) -> None:
    application = ("--workdir", str(Path(__file__).parent), "-A", "scripted_worker")
    fleet.launch_program("-m", "celery", *application, "worker", "-Q", "read.urgent,read.bulk")
    fleet.await_story(fleet.send(lane=Lane.BULK), "run", "done")
    fleet.await_settled()


def test_an_unknown_queue_is_refused(fleet: Any) -> None:
    worker = fleet.launch_program("-m", "celery", "-A", "pecia_workers.app", "worker", "-Q", "read.nightly")
    assert worker.wait(WAIT_S) != 0
    assert "read.nightly" in fleet.log(worker)
