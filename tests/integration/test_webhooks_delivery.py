"""The webhook worker, real rows and a real receiver: a promised callback arrives, or is visibly dead."""

import json
import signal
import socket
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import psycopg.sql
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia.webhooks import verify
from pecia_migrations import upgrade
from pecia_schemas.events import NoticeType
from pecia_schemas.states import DeliveryState, JobState
from pecia_workers.ledger.outbox import (
    ClaimedDelivery,
    DeliveryOutcome,
    PausePolicy,
    Try,
    claim_deliveries,
    record_outcome,
)
from pecia_workers.outgoing.places import Places
from pecia_workers.outgoing.webhooks import RETRIES
from tests.shared.failing_writes import fail_writes, let_writes_pass
from tests.shared.fixture_types import Make
from tests.shared.forking import Started
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.receivers import DOCUMENT_TEXT, SECRET, Answer, Outbox, Receiver, outbox, receiver

__all__ = ["outbox", "receiver"]

AT_ONCE = 10


def test_a_finished_job_is_told_signed_and_without_text(outbox: Outbox, receiver: Receiver) -> None:
    delivery = outbox.promise(receiver.url)

    with outbox.working():
        eventually(lambda: outbox.state(delivery) == "delivered")

    (request,) = receiver.requests
    notice = verify(request.body, request.headers, SECRET)
    assert notice.type is NoticeType.SUCCEEDED
    assert notice.data.state is JobState.SUCCEEDED
    assert notice.data.progress.done == 1
    assert request.headers["webhook-id"] == str(delivery)
    assert DOCUMENT_TEXT.encode() not in request.body
    row = outbox.row(delivery)
    assert (row["attempts"], row["last_status"], row["last_error"]) == (1, 204, None)
    assert row["finished_at"] is not None


def test_all_times_are_utc_whatever_the_zone_of_the_database(outbox: Outbox, receiver: Receiver) -> None:
    with psycopg.connect(outbox.database_url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET timezone = 'Asia/Seoul'").format(name))
        try:
            body = outbox.row(outbox.promise(receiver.url))["body"]
        finally:
            connection.execute(psycopg.sql.SQL("ALTER DATABASE {} RESET timezone").format(name))
    written = [body["timestamp"], body["data"]["created_at"], body["data"]["finished_at"]]
    assert [moment[-1] for moment in written] == ["Z", "Z", "Z"]
    ago = datetime.now(UTC) - datetime.fromisoformat(body["timestamp"])
    assert timedelta() < ago < timedelta(minutes=1)


def test_names_that_are_not_resolved_hold_up_nobody_else(
    outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, answers = socket.getaddrinfo, threading.Event()

    def hang(host: str, *arguments: Any, **options: Any) -> Any:
        if host.endswith("silent.example"):
            answers.wait(WAIT_S)
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    outbox.promise_all([f"http://{number}.silent.example:{receiver.server_port}/" for number in range(40)])
    with outbox.working(webhook_timeout=timedelta(minutes=1)):
        eventually(lambda: len(outbox.rows("WHERE attempts = 1")) == 40)
        well = outbox.promise(receiver.url)
        eventually(lambda: outbox.state(well) == "delivered")
        assert not outbox.rows("WHERE attempts > 1")
        answers.set()


def test_between_tries_the_row_says_when_it_goes_on(outbox: Outbox, receiver: Receiver) -> None:
    receiver.planned = [Answer(503, headers={"retry-after": "3600"})]
    delivery = outbox.promise(receiver.url)
    with outbox.working(RETRIES):
        eventually(lambda: outbox.row(delivery)["last_status"] == 503)
    (row,) = outbox.query("SELECT state, last_error, next_at - now() AS pause FROM deliveries")
    assert (row["state"], row["last_error"]) == ("pending", "http_503")
    assert timedelta(minutes=50) < row["pause"] <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("answer", "status", "error", "tries"),
    [
        (Answer(delay_s=9), None, "timeout", 2),
        (Answer(reset=True), None, "connection_broken", 2),
        (Answer(302, headers={"location": "/elsewhere"}), 302, "http_302", 2),
        (Answer(404), 404, "http_404", 2),
        (Answer(410), 410, "http_410", 1),
    ],
)
def test_who_does_not_take_it_is_tried_until_the_attempts_are_used_up_and_who_is_gone_once(  # noqa: PLR0917  fixtures
    answer: Answer, status: int | None, error: str, tries: int, outbox: Outbox, receiver: Receiver
) -> None:
    receiver.planned = [answer] * 4
    delivery = outbox.promise(receiver.url)
    limits = {"webhook_attempts": 2, "webhook_timeout": timedelta(seconds=2 if answer.delay_s else 20)}
    with outbox.working(**limits):
        eventually(lambda: outbox.state(delivery) == "dead")
    row = outbox.row(delivery)
    assert (row["attempts"], row["last_status"], row["last_error"]) == (tries, status, error)
    assert [request.path for request in receiver.requests] == ["/hook"] * tries


def test_a_private_address_is_dead_at_once_and_never_called(outbox: Outbox, receiver: Receiver) -> None:
    delivery = outbox.promise(receiver.url)
    with outbox.working(webhook_allow=[]):
        eventually(lambda: outbox.state(delivery) == "dead")
    assert outbox.row(delivery)["last_error"] == "refused_address"
    assert receiver.requests == []


def test_several_workers_share_an_outbox_and_tell_everything_once(outbox: Outbox, receiver: Receiver) -> None:
    promised = set(map(str, outbox.promise_all([receiver.url] * 40)))
    with outbox.working(), outbox.working(), outbox.working():
        eventually(lambda: all(row["state"] == "delivered" for row in outbox.rows()))
    assert sorted([request.headers["webhook-id"] for request in receiver.requests]) == sorted(promised)


def test_what_a_dead_worker_had_claimed_comes_again(outbox: Outbox, receiver: Receiver, house: House) -> None:
    delivery = outbox.promise(receiver.url)
    claim(house, visibility=timedelta(hours=1))  # by a worker that is never heard of again
    with outbox.working():
        time.sleep(0.5)
        assert receiver.requests == []
        outbox.execute("UPDATE deliveries SET next_at = now()")
        eventually(lambda: outbox.state(delivery) == "delivered")
    assert outbox.row(delivery)["attempts"] == 2


def test_an_overtaken_worker_records_nothing(outbox: Outbox, receiver: Receiver, house: House) -> None:
    delivery = outbox.promise(receiver.url)

    async def story(database: AsyncEngine) -> int | None:
        late, *_ = await claim_deliveries(database, free(), signs=True, visibility=timedelta())
        await claim_deliveries(database, free(), signs=True, visibility=timedelta(minutes=1))
        tried = Try(at=datetime.now(UTC), begun=time.monotonic(), duration=timedelta(seconds=9), reply=None)
        pause = PausePolicy(after=1, first=timedelta(hours=1))
        dead = DeliveryOutcome(state=DeliveryState.DEAD)
        return await record_outcome(database, late, dead, tried, pause)

    assert house.ask(story) is None
    assert outbox.state(delivery) == "pending"


def claim(house: House, *, visibility: timedelta) -> list[ClaimedDelivery]:
    return house.ask(
        lambda database: claim_deliveries(database, free(), most=AT_ONCE, signs=True, visibility=visibility)
    )


def free() -> Places:
    return Places(512, each=4)


def test_a_claim_reads_no_more_however_many_callbacks_wait_for_however_many_receivers(
    outbox: Outbox, house: House
) -> None:
    few = blocks_read_by_a_claim(outbox, house, 100)
    many = blocks_read_by_a_claim(outbox, house, 30_000)
    assert many < 3 * few  # an index is a level deeper


def blocks_read_by_a_claim(outbox: Outbox, house: House, receivers: int) -> int:
    """Blocks of tables and indexes, behind a callback for each of so many receivers."""
    outbox.execute("TRUNCATE deliveries, receivers CASCADE")
    outbox.execute(
        """INSERT INTO deliveries (type, url, body, queued)
           SELECT 'job.succeeded', format('https://%%s.example/hook', number), '{}', true
           FROM generate_series(1, %s) AS number""",
        receivers,
    )
    outbox.execute("INSERT INTO receivers (receiver, next_due) SELECT receiver, now() FROM deliveries")
    outbox.execute("VACUUM ANALYZE deliveries, receivers")
    read = """SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::int AS blocks
              FROM pg_statio_user_tables WHERE relname IN ('deliveries', 'receivers')"""
    outbox.execute("SELECT pg_stat_force_next_flush()")
    before = outbox.query(read)
    assert len(claim(house, visibility=timedelta(minutes=1))) == AT_ONCE
    eventually(lambda: outbox.query(read) != before)  # the claim's connection tells as it ends
    after: int = outbox.query(read)[0]["blocks"]
    return after - int(before[0]["blocks"])


def test_the_worker_outlasts_a_restart_of_postgres(postgres_server: Make, receiver: Receiver) -> None:
    first = postgres_server(durable=True)
    upgrade(first.url)
    with closing(Outbox(first.url)) as outbox, outbox.working():
        first.kill()
        time.sleep(0.5)
        postgres_server(replaces=first, durable=True)
        delivery = outbox.promise(receiver.url)
        eventually(lambda: outbox.state(delivery) == "delivered")


@pytest.mark.parametrize("sqlstate", ["25006", "54000"])
def test_a_try_that_postgres_does_not_take_keeps_no_other_from_being_told(
    sqlstate: str, outbox: Outbox, receiver: Receiver, database_url: str
) -> None:
    outbox.make_well(receiver)
    hindered, other = outbox.promise_all([receiver.url, f"{receiver.url}/other"])
    fail_writes(
        database_url,
        "INSERT ON delivery_attempts",
        sqlstate,
        row=psycopg.sql.SQL("NEW.delivery_id = {}").format(psycopg.sql.Literal(hindered)),
    )
    with outbox.working():
        eventually(lambda: outbox.state(other) == "delivered")
        eventually(lambda: outbox.row(hindered)["attempts"] == 1)
        later = outbox.promise(receiver.url)
        eventually(lambda: outbox.state(later) == "delivered")
        assert outbox.state(hindered) == "pending"
        let_writes_pass(database_url)


def test_a_stopped_process_finishes_what_it_has_begun_and_signs_off(
    outbox: Outbox, receiver: Receiver, started: Started
) -> None:
    told = threading.Event()
    receiver.planned = [Answer(after=told)]
    delivery = outbox.promise(receiver.url)
    worker: LiteralString = "SELECT role, pid, stopped_at IS NOT NULL AS stopped FROM workers"
    allowed = {"PECIA_WEBHOOK_ALLOW": json.dumps(["127.0.0.0/8"]), "PECIA_WEBHOOK_PORTS": "[]"}
    process = started.worker("webhooks", PECIA_WEBHOOK_SECRET=SECRET, **allowed)
    eventually(lambda: receiver.requests)
    assert outbox.query(worker) == [{"role": "webhooks", "pid": process.pid, "stopped": False}]
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    told.set()
    assert process.wait(WAIT_S) == 0

    assert outbox.state(delivery) == "delivered"
    assert outbox.query(worker)[0]["stopped"]
