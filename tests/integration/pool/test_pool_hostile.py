"""Whoever can write to Redis runs no code, stops no worker and ends no part: all they can do is to delay."""

import base64
import json
import pickle
import signal
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pecia_schemas.messages import queue_name, wakeup_key
from pecia_schemas.states import Lane, Stage
from pecia_workers.app import FleetApp
from tests.shared.limits import WAIT_S, eventually

BROADCAST = "/0.celery.pidbox"
LANE = queue_name(Stage.READ, Lane.NORMAL)


class Touch:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def command(body: Any, content_type: str = "application/json", **changes: Any) -> str:
    """A message of Celery's remote control, as kombu writes it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    message = {
        "body": base64.b64encode(raw).decode(),
        "content-encoding": "utf-8",
        "content-type": content_type,
        "headers": {},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "celery.pidbox", "routing_key": ""},
            "delivery_mode": 2,
            "delivery_tag": str(uuid4()),
            "priority": 0,
        },
    }
    return json.dumps(message | changes)


MALFORMED = {
    "no text": b"\x00\xff\xfe",
    "no object": "[1]",
    "a number": "1",
    "nothing in it": "{}",
    "too deep": "[" * 100_000,
    "a type whose value is none": '{"__type__": "decimal", "__value__": "x"}',
    "no properties": '{"body": "x"}',
    "other properties": '{"properties": 3}',
    "an unknown encoding": '{"body": "@@", "properties": {"body_encoding": "x", "delivery_tag": "x"}}',
    "headers that are none": command({"method": "ping"}, headers=3),
    "a clock that is none": command({"method": "ping"}, headers={"clock": "x"}),
    "a body that is a list": command([1]),
    "a body that is null": command(None),
    "no method": command({}),
    "arguments that are none": command({"method": "ping", "arguments": 3}),
    "a reply to nobody": command({"method": "ping", "reply_to": 5}),
    "a pattern": command({"method": "ping", "pattern": "(a+)+$", "matcher": "pcre"}),
    "YAML": command(b"!!python/object/apply:os.abort []", "application/x-yaml"),
    "an unknown type": command(b"x", "text/x-strange"),
}

MEDDLING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("shutdown", {}),
    ("pool_restart", {"modules": ["os"], "reload": True}),
    ("pool_shrink", {"n": 100}),
    ("autoscale", {"max": 0, "min": 0}),
    ("time_limit", {"task_name": "pecia.read", "hard": 0.001}),
    ("rate_limit", {"task_name": "pecia.read", "rate_limit": "1/h"}),
    ("cancel_consumer", {"queue": LANE}),
    ("add_consumer", {"queue": "strangers"}),
    ("disable_events", {}),
    ("memsample", {}),
    ("report", {}),
    ("__class__", {}),
)


def broadcast(fleet: Any, message: Any) -> None:
    """Send it to a worker once that listens."""
    eventually(lambda: fleet.redis.publish(BROADCAST, message), what="a listener")


def test_no_broadcast_stops_a_worker(fleet: Any) -> None:
    worker = fleet.start()
    for kind, message in MALFORMED.items():
        broadcast(fleet, message)
        time.sleep(0.1)
        assert worker.returncode is None, kind
    fleet.await_story(fleet.send(), "run", "done")
    fleet.await_settled()


def test_a_pickle_is_never_opened(fleet: Any, tmp_path: Path) -> None:
    fleet.start()
    made = tmp_path / "made"
    hostile = pickle.dumps(Touch(made))
    broadcast(fleet, command(hostile, "application/x-python-serialize"))
    broadcast(fleet, command(hostile, "pickle"))
    fleet.redis.lpush(LANE, hostile, _task(hostile))

    fleet.await_story(fleet.send(), "run", "done")
    eventually(lambda: fleet.redis.llen("pecia:dead") == 2)
    assert not made.exists()


def _task(body: bytes) -> str:
    """A message of Celery's protocol 2 that names a task and pickled arguments."""
    headers = {"task": "celery.map", "id": str(uuid4()), "lang": "py"}
    return command(body, "application/x-python-serialize", headers=headers)


def test_remote_control_changes_nothing_of_a_worker(fleet: Any, console: FleetApp) -> None:
    worker = fleet.start()
    for name, arguments in MEDDLING:
        (answer,) = console.control.broadcast(name, arguments=arguments, reply=True, limit=1, timeout=WAIT_S)
        assert "KeyError" in str(answer), name
    assert worker.returncode is None
    fleet.await_story(fleet.send(), "run", "done")


def test_remote_control_tells_nothing_of_the_configuration(fleet: Any, console: FleetApp) -> None:
    fleet.start()
    assert list(console.control.inspect(timeout=WAIT_S, limit=1).conf().values()) == [{}]


def test_remote_control_ends_no_part(fleet: Any, console: FleetApp) -> None:
    fleet.start()
    (part,) = fleet.hold()
    console.control.revoke(str(part), terminate=True, reply=True, limit=1, timeout=WAIT_S)
    fleet.finish(part)
    fleet.await_story(part, "run", "done")


def test_a_broadcast_that_bears_a_parts_id_acknowledges_nothing(fleet: Any) -> None:
    worker = fleet.start(PECIA_DRAIN_TIMEOUT="PT1S")
    (part,) = fleet.hold()
    refused = json.loads(command(b"x", "text/x-strange"))
    refused["properties"]["delivery_tag"] = str(part)

    broadcast(fleet, json.dumps(refused))

    eventually(lambda: "text/x-strange" in fleet.logs, what="a refusal")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT_S) == 0
    assert fleet.left == ["read.normal"]  # it still had the part, to put it back


@pytest.mark.parametrize("wakeup", ["junk", "wrong type"])
def test_a_strange_bell_deafens_nobody(fleet: Any, wakeup: str) -> None:
    worker = fleet.start()
    name = wakeup_key(Stage.READ)
    if wakeup == "junk":
        fleet.redis.lpush(name, "x" * 100_000)
    else:
        fleet.redis.set(name, "x")

    part = fleet.send() if wakeup == "junk" else _sent_past_the_bell(fleet)

    fleet.await_story(part, "run", "done")
    eventually(lambda: not fleet.redis.exists(name))
    assert worker.returncode is None


def _sent_past_the_bell(fleet: Any) -> Any:
    part = uuid4()
    fleet.finish(part)
    fleet.redis.lpush(
        LANE, json.dumps({"part": str(part), "lane": "normal", "cost": 1, "flow": str(uuid4())})
    )
    return part


def test_a_list_of_another_type_stops_no_worker(fleet: Any) -> None:
    worker = fleet.start()
    fleet.redis.set(LANE, "x")
    time.sleep(2)
    fleet.redis.delete(LANE)
    fleet.await_story(fleet.send(), "run", "done")
    assert worker.returncode is None
