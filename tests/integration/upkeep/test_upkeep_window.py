"""Redis holds a bounded window of each list; the relay fills it from Postgres, flow after flow."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from fixture_types import Picture
from pecia import Client, ReadDocument
from pecia_schemas.messages import IN_POSTGRES, TURN, PartMessage, publish, reserve_of, standing_name
from pecia_schemas.states import Lane, Stage, new_id
from pecia_workers.ledger.recovery import relay_due
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import count_waiting, held_parts
from pecia_workers.upkeep.loop import Reconciler, Stores, relay

QUEUE = "read.normal"
WINDOW = 100
MOST = WINDOW + reserve_of(WINDOW)


def messages(flow: UUID, count: int) -> list[PartMessage]:
    return [
        PartMessage(part=new_id(), stage=Stage.READ, lane=Lane.NORMAL, cost=1, flow=flow)
        for _ in range(count)
    ]


def flows_in(redis: Redis, tables: Any) -> Counter[UUID]:
    """How many parts of each flow Redis holds."""
    jobs = {
        str(row["id"]): row["flow"]
        for row in tables.query("SELECT id, coalesce(flow, job_id) AS flow FROM parts")
    }
    return Counter(jobs[part] for part in held_parts(redis) if part in jobs)


@pytest.fixture
def relay_once(run: Callable[..., Any], redis_url: str) -> Callable[..., int]:
    """One call of a relay whose window has 100 messages."""

    async def relayed(stores: Stores, limit: int) -> int:
        bus = Bus(redis_url, window=WINDOW)
        try:
            return await relay_due(stores.database, bus, limit=limit)
        finally:
            await bus.close()

    return lambda limit=1_000: run(lambda stores: relayed(stores, limit))


@pytest.fixture
def client(database_url: str, redis_url: str, payload_url: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client whose window has 100 messages."""
    monkeypatch.setenv("PECIA_WINDOW", str(WINDOW))
    return Client(database_url, redis_url, payload_url)


@given(counts=st.lists(st.integers(1, 2 * WINDOW), min_size=1, max_size=8))
def test_a_list_takes_no_more_than_its_window_and_says_what_it_left(redis: Redis, counts: list[int]) -> None:
    redis.flushall()
    sent = [message for count in counts for message in messages(new_id(), count)]
    left = publish(redis, sent, window=WINDOW)
    held = held_parts(redis)
    assert left == [message for message in sent if str(message.part) not in held]
    assert len(left) == max(0, len(sent) - WINDOW)
    assert count_waiting(redis)[QUEUE] == len(sent) - len(left)


def test_what_has_no_room_is_in_postgres(client: Client, picture: Picture, redis: Redis, tables: Any) -> None:
    with client:
        client.submit_many([ReadDocument(picture())] * (WINDOW + 20))
    rows = tables.query("SELECT id, published_at IS NULL AS left FROM parts")
    assert count_waiting(redis)[QUEUE] == WINDOW
    assert {str(row["id"]) for row in rows if not row["left"]} == held_parts(redis)
    assert sum(row["left"] for row in rows) == 20


def test_clients_do_not_overtake_what_waits_in_postgres(
    redis: Redis, tables: Any, relay_once: Callable[..., int], claim_all: Callable[..., Any]
) -> None:
    waits = tables.add_job(parts=50)
    publish(redis, messages(new_id(), WINDOW + 1), window=WINDOW)
    assert len(claim_all(slots=60)) == 60
    assert len(publish(redis, messages(new_id(), 10), window=WINDOW)) == 10
    assert relay_once() == 50
    assert flows_in(redis, tables)[waits] == 50
    assert (relay_once(), redis.hexists(standing_name(QUEUE), IN_POSTGRES)) == (0, False)
    assert publish(redis, messages(new_id(), 10), window=WINDOW) == []


def test_the_relay_fills_the_window_with_as_much_of_each_flow(
    redis: Redis, tables: Any, relay_once: Callable[..., int]
) -> None:
    jobs = [tables.add_job(parts=WINDOW) for _ in range(4)]
    relay_once()
    assert flows_in(redis, tables) == dict.fromkeys(jobs, WINDOW // 4)
    assert count_waiting(redis)[QUEUE] == WINDOW


def test_a_few_pages_do_not_wait_for_room_behind_a_large_document(
    tables: Any, relay_once: Callable[..., int], claim_all: Callable[..., Any]
) -> None:
    tables.add_job(parts=3 * WINDOW)
    relay_once()
    few = tables.add_job(parts=5)
    assert relay_once() == 5
    served = claim_all(slots=2 * TURN)
    assert {str(part["id"]) for part in tables.parts(few)} <= set(served)


def test_more_flows_than_there_is_room_for_are_served_in_turn(
    redis: Redis, tables: Any, relay_once: Callable[..., int], claim_all: Callable[..., Any]
) -> None:
    jobs = sorted(tables.add_job(parts=2) for _ in range(2 * WINDOW))
    served = []
    for _ in range(3):
        relay_once()
        served.append(sorted(flows_in(redis, tables)))
        claim_all()
        redis.delete(*redis.scan_iter("pecia:taken:*"))
    assert served == [jobs[:WINDOW], jobs[WINDOW:], jobs[:WINDOW]]


def test_parts_claimed_before_come_first(redis: Redis, tables: Any, relay_once: Callable[..., int]) -> None:
    tables.add_job(parts=WINDOW)
    again = tables.add_job(parts=10)
    tables.query("UPDATE parts SET attempt = 1 WHERE job_id = %s", again)
    relay_once(limit=10)
    assert flows_in(redis, tables)[again] == 10


def test_a_full_list_holds_no_other_up(redis: Redis, tables: Any, relay_once: Callable[..., int]) -> None:
    tables.add_job(parts=3 * WINDOW)
    for _ in range(4):
        relay_once()
    other = tables.add_job(parts=3, stage="caption")
    assert relay_once() == 3
    assert flows_in(redis, tables)[other] == 3
    assert WINDOW <= count_waiting(redis)[QUEUE] <= MOST


def test_an_empty_redis_is_filled_by_flow_not_by_age(
    redis: Redis, tables: Any, run: Callable[..., Any], relay_once: Callable[..., int]
) -> None:
    jobs = [tables.add_job(parts=count) for count in (2 * WINDOW, 2 * WINDOW, 10)]
    for _ in range(3):
        relay_once()
    tables.publish_long_ago()
    redis.flushall()

    run(Reconciler())
    relay_once()

    held = flows_in(redis, tables)
    assert held[jobs[2]] == 10
    assert held[jobs[0]] == pytest.approx(held[jobs[1]], abs=1)


def test_a_job_with_a_time_of_its_own_is_relayed_then(
    client: Client, picture: Picture, redis: Redis, tables: Any, run: Callable[..., Any]
) -> None:
    with client:
        job = client.submit(ReadDocument(picture()), not_before=datetime.now(UTC) + timedelta(hours=1))
    assert (run(relay), held_parts(redis)) == (0, set())
    tables.query("UPDATE parts SET run_at = now() WHERE job_id = %s", job.id)
    assert run(relay) == 1
    assert held_parts(redis) == {str(part["id"]) for part in tables.parts(job.id)}


@pytest.mark.parametrize("junk", ["", "no flow", b"\xff"])
def test_what_a_hand_wrote_where_the_relay_notes_its_place_is_ignored(
    redis: Redis, tables: Any, relay_once: Callable[..., int], junk: str | bytes
) -> None:
    tables.add_job(parts=3)
    redis.hset("pecia:relayed", QUEUE, junk)
    assert relay_once() == 3
