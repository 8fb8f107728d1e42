"""Registered endpoints on a real outbox: secrets of their own, pauses, an end, and a record of every try."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from pecia import Client, Delivery, Endpoint, ReadDocument
from pecia.errors import EndpointLimitError, UnsignedCallbackWarning, WebhookVerificationError
from pecia.webhooks import verify
from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.encryption import Keyring, new_key
from pecia_schemas.states import DeliveryState
from pecia_workers.ledger.outbox import (
    DeliveryOutcome,
    PausePolicy,
    ReceiverState,
    Try,
    claim_deliveries,
    give_up,
    record_outcome,
)
from pecia_workers.ledger.rekeying import rewrap
from pecia_workers.ledger.standing import lag
from pecia_workers.observability.metrics import REGISTRY
from pecia_workers.outgoing.places import Places
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.receivers import (
    SECRET,
    Answer,
    Outbox,
    Receiver,
    Request,
    client,
    client_of,
    outbox,
    receiver,
    receiving,
)

__all__ = ["client", "outbox", "receiver"]

OLD = f'{{"old": "{new_key()}"}}'
NEW = f'{{"new": "{new_key()}"}}'
WELL_AND_IDLE = [{"standing": "well", "next_due": None}]
QUICK: dict[str, Any] = {
    "webhook_retry_delay": timedelta(milliseconds=20),
    "webhook_retry_longest": timedelta(milliseconds=100),
}


def verifies(request: Request, secret: str | None) -> bool:
    try:
        return bool(verify(request.body, request.headers, secret or ""))
    except WebhookVerificationError:
        return False


def test_an_endpoint_is_told_under_its_own_secret_and_while_it_is_rotated_under_both(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    former = client.add_endpoint(receiver.url)
    current = client.rotate_endpoint(former, overlap=timedelta(hours=1))

    with outbox.working():
        job_id = outbox.finish()
        eventually(lambda: len(receiver.requests) == 1)
        latest = client.rotate_endpoint(former, overlap=timedelta())
        outbox.finish()
        eventually(lambda: len(receiver.requests) == 2)

    first, second = receiver.requests
    assert verify(first.body, first.headers, current.secret or "").data.job_id == job_id
    secrets = [*(one.secret for one in (former, current, latest)), SECRET]
    assert [verifies(first, secret) for secret in secrets] == [True, True, False, False]
    assert [verifies(second, secret) for secret in secrets] == [False, False, True, False]


def test_without_the_fleets_secret_endpoints_are_told_all_the_same_and_the_log_says_what_waits(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    client.add_endpoint(receiver.url)
    outbox.promise(receiver.url + "/own")
    with capture_logs() as logs, outbox.working(webhook_secret=""):
        eventually(lambda: {one.state for one in client.deliveries()} == {"delivered", "pending"})
    assert [request.path for request in receiver.requests] == ["/hook"]
    assert [entry["event"] for entry in logs].count("callbacks_wait") == 1


def test_what_waits_for_the_fleets_secret_is_told_plainly(
    stores: dict[str, str], picture: Picture, outbox: Outbox
) -> None:
    outbox.execute(
        """INSERT INTO workers (name, role, stages, host, pid, capabilities, seen_at)
           VALUES ('webhooks', 'webhooks', '{}', 'here', 1, '{"signs": false}', now() + interval '1 hour')"""
    )
    with Client(*stores.values()) as client:
        with pytest.warns(UnsignedCallbackWarning, match="PECIA_WEBHOOK_SECRET"):
            client.submit(ReadDocument(picture()), webhook="https://example.org/hook").cancel()
        client.submit(ReadDocument(picture(shade=1)))
        assert [one.last_error for one in client.deliveries()] == ["no_secret"]
    told = run_pecia("webhook", "deliveries", env=stores)
    assert "no webhook worker of this fleet has PECIA_WEBHOOK_SECRET" in told.stderr
    assert "set PECIA_WEBHOOK_SECRET" in run_pecia("doctor", env=stores).stdout

    outbox.execute("""UPDATE workers SET capabilities = '{"signs": true}'""")
    with Client(*stores.values()) as client:
        client.submit(ReadDocument(picture(shade=2)), webhook="https://example.org/hook")
        assert [one.last_error for one in client.deliveries()] == [None]


def test_secrets_are_encrypted_and_come_under_another_key(
    outbox: Outbox, receiver: Receiver, house: House
) -> None:
    with client_of(outbox, encryption_keys=SecretStr(OLD)) as client:
        former = client.add_endpoint(receiver.url)
        current = client.rotate_endpoint(former)
        stored = str(outbox.query("SELECT secret, former_secret FROM endpoints"))
        assert "whsec" not in stored
        assert stored.count("'enc': 'old'") == 2
        outbox.finish()
        with outbox.working(encryption_keys=NEW, **QUICK):
            eventually(lambda: client.deliveries()[0].attempts)
        assert client.deliveries()[0].attempts[0].error == "secret_unreadable"
        assert client.endpoints()[0].failures == 0
        both = Keyring.of(SecretStr(NEW[:-1] + "," + OLD[1:]))
        assert house.ask(lambda database: rewrap(database, both, lambda _: None)).secrets == 2
        with outbox.working(encryption_keys=NEW, **QUICK):
            eventually(lambda: client.deliveries()[0].state == "delivered")

    assert [verifies(receiver.requests[0], one.secret) for one in (former, current)] == [True, True]


def test_there_are_so_many_endpoints_and_no_more(outbox: Outbox) -> None:
    with client_of(outbox, max_endpoints=2) as limited:
        first, _ = (limited.add_endpoint("https://example.org/hook") for _ in range(2))
        with pytest.raises(EndpointLimitError, match="PECIA_MAX_ENDPOINTS"):
            limited.add_endpoint("https://example.org/hook")
        limited.remove_endpoint(first)
        limited.add_endpoint("https://example.org/hook")


def test_every_try_leaves_a_row(outbox: Outbox, client: Client, receiver: Receiver) -> None:
    receiver.planned = [Answer(500, text="no \x00room\x1b " + "é" * 600), Answer(delay_s=9.0), Answer(204)]
    delivery = outbox.promise(receiver.url)

    with outbox.working(webhook_timeout=timedelta(seconds=3), **QUICK):
        eventually(lambda: outbox.state(delivery) == "delivered")

    attempts = client.delivery(delivery).attempts
    assert [(one.number, one.status, one.error) for one in attempts] == [
        (1, 500, "http_500"),
        (2, None, "timeout"),
        (3, 204, None),
    ]
    assert attempts[0].reply is not None
    assert attempts[0].reply.startswith("no  room  éé")
    assert len(attempts[0].reply.encode()) <= 512
    assert attempts[1].duration > timedelta(seconds=2.95)
    assert [one.at for one in attempts] == sorted(one.at for one in attempts)


def test_who_is_gone_is_told_nothing_more_until_a_test_is_taken(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    endpoint = client.add_endpoint(receiver.url)
    receiver.planned = [Answer(410)]
    outbox.finish_all([None] * 3)
    dead = given_up()

    with outbox.working(webhook_concurrency=1):
        eventually(lambda: not any(one.state is DeliveryState.PENDING for one in client.deliveries()))
        assert len(receiver.requests) == 1
        outbox.finish()
        assert len(client.deliveries()) == 3
        assert client.endpoints()[0].disabled_at is not None
        client.test_endpoint(endpoint)
        eventually(lambda: client.endpoints()[0].disabled_at is None)
        outbox.finish()
        eventually(lambda: len(receiver.taken) == 2)

    errors = sorted(str(one.last_error) for one in client.deliveries(state="dead"))
    assert errors == ["endpoint_gone", "endpoint_gone", "http_410"]
    assert given_up() - dead == 3


def given_up() -> float:
    return REGISTRY.get_sample_value("pecia_webhook_attempts_total", {"outcome": "dead"}) or 0.0


def test_a_try_that_began_before_it_was_gone_does_not_bring_it_back(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    client.add_endpoint(receiver.url)
    receiver.planned = [Answer(), Answer(delay_s=0.4), Answer(410)]
    outbox.finish()
    with outbox.working():
        eventually(lambda: outbox.query("SELECT FROM receivers WHERE standing = 'well'"))
        outbox.finish_all([None] * 2)
        eventually(
            lambda: sorted(one.state for one in client.deliveries()) == ["dead", "delivered", "delivered"]
        )
    assert client.endpoints()[0].disabled_at is not None


def test_nor_does_one_that_is_recorded_long_after_its_answer(
    outbox: Outbox, client: Client, receiver: Receiver, house: House
) -> None:
    client.add_endpoint(receiver.url)
    outbox.finish()

    async def record(database: AsyncEngine, *, age_s: float) -> None:
        places = Places(4, each=1)
        (delivery,) = await claim_deliveries(database, places, signs=True, visibility=timedelta())
        well = DeliveryOutcome(state=DeliveryState.PENDING, receiver=ReceiverState.WELL, status=204)
        begun, quick = time.monotonic() - age_s, timedelta(milliseconds=1)
        tried = Try(at=datetime.now(UTC), begun=begun, duration=quick, reply=None)
        pause = PausePolicy(after=9, first=timedelta(hours=1))
        assert await record_outcome(database, delivery, well, tried, pause) == 0

    outbox.execute("UPDATE endpoints SET disabled_at = now() - interval '1 minute'")
    house.ask(partial(record, age_s=90))
    assert client.endpoints()[0].disabled_at is not None
    house.ask(partial(record, age_s=30))
    assert client.endpoints()[0].disabled_at is None


def test_an_endpoint_that_is_removed_while_a_job_ends_is_not_told_and_costs_the_job_nothing(
    outbox: Outbox, client: Client
) -> None:
    client.add_endpoint("https://example.org/hook")
    with ThreadPoolExecutor() as threads, psycopg.connect(outbox.database_url) as removing:
        removing.execute("DELETE FROM endpoints")
        job = threads.submit(outbox.finish)
        waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        eventually(lambda: outbox.query(waits))
        removing.commit()
        assert client.deliveries(job=job.result(timeout=WAIT_S)) == []


def test_a_url_that_is_gone_leaves_others_of_its_host_alone(outbox: Outbox, receiver: Receiver) -> None:
    receiver.planned = [Answer(410)]
    gone = outbox.promise_all([receiver.url + "?for=me"] * 2)
    well = outbox.promise(receiver.url + "?for=you")
    with outbox.working(webhook_concurrency=1):
        eventually(lambda: outbox.state(well) == "delivered")
    assert [outbox.state(one) for one in gone] == ["dead", "dead"]
    assert len(receiver.requests) == 2


def test_who_keeps_failing_is_paused_and_probed_and_loses_nothing(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    client.add_endpoint(receiver.url)
    receiver.usual = Answer(503)
    outbox.finish_all([None] * 20)
    limits = {"webhook_pause_after": 3, "webhook_pause": timedelta(seconds=0.5), "webhook_concurrency": 1}
    assert late(outbox) == 20

    with outbox.working(**limits, **QUICK):
        eventually(lambda: client.endpoints()[0].paused_until is not None)
        eventually(lambda: len(receiver.requests) >= 4)
        assert client.endpoints()[0].waiting == 20
        assert late(outbox) == 0  # nobody has to look after what waits for a receiver
        receiver.usual = Answer()
        eventually(lambda: len(receiver.taken) == 20)
        eventually(lambda: client.endpoints()[0].waiting == 0)

    assert client.endpoints()[0].failures == 0
    tries = [tried for one in client.deliveries() for tried in one.attempts]
    probes = sorted(tried.at for tried in tries if tried.status == 503)[2:]
    assert all(later - earlier > timedelta(seconds=0.45) for earlier, later in pairwise(probes))


def test_a_host_that_keeps_failing_is_paused_whatever_its_urls(outbox: Outbox, receiver: Receiver) -> None:
    receiver.usual = Answer(503)
    promised = outbox.promise_all([f"{receiver.url}/{number}" for number in range(20)])
    limits = {"webhook_pause_after": 3, "webhook_pause": timedelta(minutes=5), "webhook_concurrency": 1}
    host = f"http://127.0.0.1:{receiver.server_port}"

    with receiving() as well, outbox.working(**limits, **QUICK):
        eventually(lambda: outbox.query("SELECT FROM receivers WHERE paused_until > now()"))
        other = outbox.promise(well.url)
        eventually(lambda: outbox.state(other) == "delivered")

    failing = outbox.query("SELECT receiver, failures FROM receivers WHERE failures > 0")
    assert failing == [{"receiver": host, "failures": 3}]
    assert len(receiver.requests) == 3
    assert {outbox.state(one) for one in promised} == {"pending"}


def test_a_receiver_with_many_callbacks_waiting_lets_others_in_between(
    outbox: Outbox, receiver: Receiver
) -> None:
    told = threading.Event()
    receiver.usual = Answer(after=told)
    outbox.make_well(receiver)
    outbox.promise_all([receiver.url] * 300)
    limits = {"webhook_concurrency": 64, "webhook_timeout": timedelta(minutes=1)}

    with receiving() as quick, outbox.working(**limits):
        eventually(lambda: receiver.under_way == 64)
        other = outbox.promise(quick.url)
        told.set()
        eventually(lambda: not outbox.query("SELECT FROM deliveries WHERE state = 'pending'"))
    order = outbox.query("SELECT delivery_id FROM delivery_attempts ORDER BY at")
    assert order.index({"delivery_id": other}) < 300


def late(outbox: Outbox) -> int:
    engine = create_engine(sqlalchemy_url(outbox.database_url))
    with engine.connect() as connection:
        found = lag(connection, (), window=1).deliveries
    engine.dispose()
    return found


def test_a_slow_receiver_has_its_share_and_no_more(outbox: Outbox, receiver: Receiver) -> None:
    told = threading.Event()
    receiver.usual = Answer(after=told)
    outbox.make_well(receiver)
    slow = outbox.promise_all([receiver.url] * 40)
    limits = {"webhook_concurrency": 2, "webhook_timeout": timedelta(minutes=1)}

    with receiving() as quick, outbox.working(**limits):
        eventually(lambda: receiver.under_way == 2)
        others = outbox.promise_all([quick.url] * 10)
        eventually(lambda: all(outbox.state(one) == "delivered" for one in others))
        assert [outbox.state(one) for one in slow] == ["pending"] * 40
        told.set()

    assert receiver.most == 2


def test_what_nobody_takes_in_time_is_dead(outbox: Outbox, client: Client, receiver: Receiver) -> None:
    receiver.usual = Answer(500)
    delivery = outbox.promise(receiver.url)
    pauses = {"webhook_pause_after": 1, "webhook_pause": timedelta(minutes=5)}

    with outbox.working(**pauses):
        eventually(lambda: client.delivery(delivery).attempts)
    with outbox.working(webhook_give_up=timedelta(milliseconds=1), **pauses):
        eventually(lambda: outbox.state(delivery) == "dead")

    assert client.delivery(delivery).last_error == "given_up"
    assert [one.error for one in client.delivery(delivery).attempts] == ["http_500"]


def test_a_host_that_failed_long_ago_is_forgotten(outbox: Outbox, client: Client, house: House) -> None:
    endpoint = client.add_endpoint("https://example.org/hook")
    failed = """INSERT INTO receivers (receiver, failures, failed_at, known_at)
                VALUES (%s, 1, now() - interval '5 days', now() - interval '6 days')"""
    outbox.execute(failed, "https://gone.example")
    outbox.execute(failed, str(endpoint.id))
    house.ask(lambda database: give_up(database, age=timedelta(days=4)))
    assert [row["receiver"] for row in outbox.query("SELECT receiver FROM receivers")] == [str(endpoint.id)]


def test_what_is_dead_can_be_replayed_under_its_id_and_leaves_its_receiver_well(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    receiver.planned = [Answer(500)] * 3
    delivery = outbox.promise(receiver.url)

    with outbox.working(webhook_attempts=2, **QUICK):
        eventually(lambda: outbox.state(delivery) == "dead")
        client.replay([delivery])
        eventually(lambda: outbox.state(delivery) == "delivered")
        eventually(lambda: outbox.query("SELECT standing, next_due FROM receivers") == WELL_AND_IDLE)

    assert [one.status for one in client.delivery(delivery).attempts] == [500, 500, 500, 204]
    assert {request.headers["webhook-id"] for request in receiver.requests} == {str(delivery)}
    assert all(verifies(request, SECRET) for request in receiver.requests)


def test_a_notice_carries_the_operators_links_and_is_signed_by_the_fleets_former_secret_too(
    outbox: Outbox, receiver: Receiver
) -> None:
    former = "whsec_" + "Zm9ybWVyZm9ybWVyZm9ybWVyZm9ybWVy"
    links = {"job": "https://scans.example.org/jobs/{job_id}", "help": "https://example.org"}
    outbox.promise(receiver.url)

    with outbox.working(webhook_links=links, webhook_former_secret=former):
        eventually(lambda: receiver.requests)

    (request,) = receiver.requests
    assert verifies(request, former)
    data = verify(request.body, request.headers, SECRET).data
    assert data.links == links | {"job": f"https://scans.example.org/jobs/{data.job_id}"}


def test_a_test_goes_out_at_once_before_what_waits(
    outbox: Outbox, client: Client, receiver: Receiver
) -> None:
    endpoint: Endpoint = client.add_endpoint(receiver.url)
    receiver.planned = [Answer(500)]
    outbox.finish()
    limits = {"webhook_pause_after": 1, "webhook_pause": timedelta(minutes=5), "webhook_concurrency": 1}

    with outbox.working(**limits, **QUICK):
        eventually(lambda: client.endpoints()[0].paused_until is not None)
        sent: Delivery = client.test_endpoint(endpoint)
        eventually(lambda: client.delivery(sent).state == "delivered")
        eventually(lambda: len(receiver.taken) == 2)

    notice = verify(receiver.requests[1].body, receiver.requests[1].headers, endpoint.secret or "")
    assert (notice.type, notice.data.job_id) == ("webhook.test", UUID(int=0))
