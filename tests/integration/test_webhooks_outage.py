"""Receivers that are down, broken, slow, resetting, redirecting and gone: every delivery arrives or is visibly dead."""

import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from pecia import Client, Delivery
from pecia.webhooks import verify
from tests.shared.http_doubles import free_port
from tests.shared.limits import eventually
from tests.shared.receivers import SECRET, Answer, Outbox, Receiver, client, outbox, receiving

pytestmark = pytest.mark.gate

__all__ = ["client", "outbox"]

EACH = 8
TROUBLE_S = 1.5
HURRIED: dict[str, Any] = {
    "webhook_attempts": 1_000,
    "webhook_timeout": timedelta(seconds=1),
    "webhook_retry_delay": timedelta(milliseconds=50),
    "webhook_retry_longest": timedelta(seconds=1),
    "webhook_pause_after": 4,
    "webhook_pause": timedelta(milliseconds=300),
    "webhook_concurrency": 2,
}
TROUBLES = {
    "broken": Answer(500),
    "slow": Answer(delay_s=2),
    "resetting": Answer(reset=True),
    "well": Answer(),
}
"""Over after a while."""
ENDLESS = {"redirecting": Answer(302, headers={"location": "/elsewhere"}), "gone": Answer(410)}


def test_every_delivery_arrives_or_is_visibly_dead(outbox: Outbox, client: Client) -> None:
    with ExitStack() as open_receivers:
        receivers = {name: open_receivers.enter_context(receiving()) for name in TROUBLES | ENDLESS}
        for name, answer in (TROUBLES | ENDLESS).items():
            receivers[name].usual = answer
        port = free_port()
        urls = {name: one.url for name, one in receivers.items()} | {"down": f"http://127.0.0.1:{port}/hook"}
        names = [*urls] * EACH
        promised = dict(zip(outbox.promise_all([urls[name] for name in names]), names, strict=True))

        with outbox.working(None, **HURRIED), outbox.working(None, **HURRIED):
            time.sleep(TROUBLE_S)
            receivers["down"] = open_receivers.enter_context(receiving(port))
            for name in TROUBLES:
                receivers[name].usual = Answer()
            left = {delivery for delivery, name in promised.items() if name == "redirecting"}
            eventually(lambda: {one.id for one in client.deliveries(state="pending")} == left)
        with outbox.working(webhook_give_up=timedelta(milliseconds=1)):
            eventually(lambda: not client.deliveries(state="pending"))

        told = {one.id: one for one in client.deliveries()}

    assert set(told) == set(promised)
    assert Counter((name, str(told[delivery].state)) for delivery, name in promised.items()) == {
        **{(name, "delivered"): EACH for name in (*TROUBLES, "down")},
        **{(name, "dead"): EACH for name in ENDLESS},
    }
    for delivery, name in promised.items():
        assert_is_accounted_for(told[delivery], receivers[name])
    assert {one.last_error for one in told.values() if promised[one.id] == "gone"} <= {
        "http_410",
        "endpoint_gone",
    }
    tries = [one for delivery, name in promised.items() if name == "gone" for one in told[delivery].attempts]
    assert sum(one.status == 410 for one in tries) <= 4  # two workers, two at a time
    assert all(request.path == "/hook" for request in receivers["redirecting"].requests)


def assert_is_accounted_for(delivery: Delivery, receiver: Receiver) -> None:
    """What is delivered was taken, under its id and signed; what is dead says why."""
    calls = [one for one in receiver.requests if one.headers["webhook-id"] == str(delivery.id)]
    assert len(calls) <= len(delivery.attempts)
    if delivery.state == "delivered":
        assert str(delivery.id) in receiver.taken
        assert delivery.attempts[-1].status == 204
        assert delivery.last_error is None
    else:
        assert delivery.last_error is not None
    assert [one.number for one in delivery.attempts] == list(range(1, len(delivery.attempts) + 1))
    assert all(one.error or one.status == 204 for one in delivery.attempts)


def test_late_callbacks_can_be_ordered(outbox: Outbox) -> None:
    with receiving() as receiver:
        receiver.planned = [Answer(500)]
        job_id = outbox.finish(receiver.url)
        schedule = {"webhook_retry_delay": timedelta(hours=1), "webhook_concurrency": 1}
        with outbox.working(None, **schedule):
            eventually(lambda: outbox.query("SELECT FROM deliveries WHERE last_status = 500"))
            outbox.tell_of(job_id)
            eventually(lambda: len(receiver.taken) == 1)
            outbox.execute("UPDATE deliveries SET next_at = now() WHERE last_status = 500")
            eventually(lambda: len(receiver.taken) == 2)
    notices = [verify(one.body, one.headers, SECRET) for one in receiver.requests]
    refused, second, first = (notice.data.sequence for notice in notices)
    assert refused == first < second
    assert {notice.data.job_id for notice in notices} == {job_id}


def test_workers_that_come_and_go_lose_nothing(outbox: Outbox, client: Client) -> None:
    with receiving() as receiver:
        receiver.planned = [Answer(503, delay_s=0.01), Answer(reset=True)] * 10
        promised = set(map(str, outbox.promise_all([receiver.url] * 30)))
        hurried = HURRIED | {"webhook_pause_after": 100}
        stop = threading.Event()

        def come_and_go() -> None:
            while not stop.is_set():
                before = len(receiver.requests)
                with outbox.working(None, **hurried):
                    while not stop.wait(0.3) and len(receiver.requests) == before:
                        pass  # it has not begun yet

        threads = [threading.Thread(target=come_and_go) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: not client.deliveries(state="pending"))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert set(receiver.taken) == promised
    assert {one.state for one in client.deliveries()} == {"delivered"}
