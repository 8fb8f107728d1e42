"""Notices on a real outbox: a row for each event, a delivery for each endpoint, once, whatever dies; ids that stay."""

import asyncio
import socket
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import Client
from pecia_workers.ledger import outbox as ledger_outbox
from pecia_workers.ledger.outbox import fan_out
from tests.shared.failing_writes import fail_writes, let_writes_pass
from tests.shared.house import House
from tests.shared.limits import eventually
from tests.shared.receivers import Answer, Outbox, Receiver, client, fan_out_all, outbox, receiver, receiving

__all__ = ["client", "outbox", "receiver"]

OWN = "https://own.example/hook"


def register(outbox: Outbox, number: int, tenant: str | None = None) -> None:
    """Register so many endpoints, past the limit."""
    outbox.execute(
        """INSERT INTO endpoints (id, url, events, secret, client, tenant)
           SELECT gen_random_uuid(), format('https://%%s.example/', number), '{job.succeeded}', '"x"', 'me', %s
           FROM generate_series(1, %s) AS number""",
        tenant,
        number,
    )


def waiting(outbox: Outbox) -> tuple[int, int]:
    """Notices and deliveries."""
    (row,) = outbox.query(
        "SELECT (SELECT count(*) FROM notices) AS notices, (SELECT count(*) FROM deliveries) AS deliveries"
    )
    return row["notices"], row["deliveries"]


def receivers_of(outbox: Outbox) -> Counter[str]:
    """How many deliveries each endpoint has."""
    return Counter(row["receiver"] for row in outbox.rows())


@pytest.mark.parametrize(
    ("endpoints_of", "tenant", "notices"),
    [("one", "one", 1), (None, "one", 1), (None, None, 1), ("two", "one", 0), ("one", None, 0)],
)
def test_an_end_writes_one_row_for_all_endpoints_and_none_without_a_subscriber(
    outbox: Outbox, endpoints_of: str | None, tenant: str | None, notices: int
) -> None:
    register(outbox, 30, endpoints_of)
    outbox.commit_all([OWN], tenant=tenant)
    assert waiting(outbox) == (notices, 1)
    fan_out_all(outbox.database_url)
    assert waiting(outbox) == (0, 1 + 30 * notices)


def test_every_endpoint_has_its_delivery_once_whatever_breaks_and_however_many_workers_there_are(
    outbox: Outbox, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_outbox, "_AT_A_TIME", 3)
    register(outbox, 10)
    outbox.commit_all([None] * 4)

    async def fan_out_beside_failures(database: AsyncEngine) -> None:
        while waiting(outbox)[0]:
            await asyncio.gather(*(fan_out(database) for _ in range(3)), return_exceptions=True)

    fail_writes(outbox.database_url, "INSERT ON deliveries", "57P01", times=7)
    house.ask(fan_out_beside_failures)
    let_writes_pass(outbox.database_url)

    assert waiting(outbox) == (0, 40)
    assert set(receivers_of(outbox).values()) == {4}


def test_who_is_registered_or_gone_after_the_event_is_not_told(outbox: Outbox, client: Client) -> None:
    stays, removed, disabled = (client.add_endpoint(OWN) for _ in range(3))
    outbox.commit_all([None])
    client.add_endpoint(OWN)
    client.remove_endpoint(removed)
    outbox.execute("UPDATE endpoints SET disabled_at = now() WHERE id = %s", disabled.id)
    fan_out_all(outbox.database_url)
    assert receivers_of(outbox) == {str(stays.id): 1}


def test_a_tenant_with_many_notices_and_endpoints_delays_no_other(
    outbox: Outbox, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_outbox, "_AT_A_TIME", 10)
    register(outbox, 200, "greedy")
    register(outbox, 1, "modest")
    outbox.commit_all([None] * 100, tenant="greedy")
    (modest,) = outbox.commit_all([None], tenant="modest")
    house.ask(fan_out)
    assert waiting(outbox) == (100, 11)
    assert len(outbox.rows("WHERE job_id = %s", modest)) == 1


def test_an_end_that_a_failover_has_lost_comes_again_with_the_same_ids(
    outbox: Outbox, client: Client
) -> None:
    client.add_endpoint(OWN)
    job = outbox.finish(OWN)

    def ids() -> dict[str, Any]:
        return {row["receiver"]: row["id"] for row in outbox.rows()}

    first = ids()
    outbox.execute("DELETE FROM deliveries")
    outbox.tell_of(job, endings=0)
    assert ids() == first
    outbox.execute("DELETE FROM deliveries")
    outbox.tell_of(job)
    assert len({*ids().values(), *first.values()}) == 4


MALFORMED: list[Any] = [
    {},
    [],
    "text",
    None,
    {"type": 5, "data": {}},
    {"type": "job.succeeded"},
    {"type": "part.done", "data": {}},
]


def test_a_row_that_holds_no_notice_is_dead_and_costs_no_other(outbox: Outbox, receiver: Receiver) -> None:
    job = outbox.finish()
    for body in MALFORMED:
        outbox.execute(
            "INSERT INTO deliveries (job_id, type, url, body) VALUES (%s, 'job.succeeded', %s, %s)",
            job,
            receiver.url,
            Jsonb(body),
        )
    with outbox.working():
        eventually(lambda: len(outbox.rows("WHERE state = 'dead'")) == len(MALFORMED))
        well = outbox.promise(receiver.url)
        eventually(lambda: outbox.state(well) == "delivered")
    assert {row["last_error"] for row in outbox.rows("WHERE state = 'dead'")} == {"malformed_notice"}
    assert len(receiver.requests) == 1


def test_a_hundred_receivers_that_stall_delay_neither_those_that_are_well_nor_new_ones(
    outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, over = socket.getaddrinfo, threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *more, **how: resolve("127.0.0.1", *more, **how))
    receiver.usual = Answer(after=over)
    stalling = [f"http://{number}.stalls.example:{receiver.server_port}/" for number in range(100)]

    with receiving() as quick, outbox.working(webhook_timeout=timedelta(minutes=5), webhook_pause_after=100):
        first = outbox.promise(quick.url)
        eventually(lambda: outbox.state(first) == "delivered")
        outbox.promise_all(stalling * 3)
        eventually(lambda: receiver.under_way == 100)
        new = f"http://new.example:{quick.server_port}/"
        later = outbox.promise_all([quick.url, quick.url, new])
        eventually(lambda: {outbox.state(one) for one in later} == {"delivered"})
        assert receiver.under_way == 100
        over.set()
