"""The relay publishes what Redis lacks, flow after flow into a bounded window; the reconciler finds what Redis lost."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia import Client, ReadDocument
from pecia_schemas.messages import IN_POSTGRES, TURN, publish, reserve_of, standing_name
from pecia_schemas.states import new_id
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import count_waiting, held_parts
from pecia_workers.upkeep.loop import Reconciler, Stores, relay, relay_due
from tests.shared.fixture_types import Make, Picture
from tests.shared.queueing import messages
from tests.shared.relaying import RelayingBus

QUEUE = "read.normal"


def test_the_relay_publishes_what_is_not_in_redis_in_order(tables: Any, run: Make, claim_all: Make) -> None:
    job_id = tables.add_job(parts=30)
    assert run(relay) == 30
    assert claim_all() == [str(part["id"]) for part in tables.parts(job_id)]
    assert all(part["published_at"] for part in tables.parts(job_id))
    assert run(relay) == 0


def test_more_than_a_batch_is_relayed_at_once(tables: Any, redis: Redis, run: Make) -> None:
    job_id = tables.add_job()
    tables.query(
        """INSERT INTO parts (id, job_id, stage, ordinal, lane, cost)
           SELECT gen_random_uuid(), %s, 'read', n, 'bulk', 1 FROM generate_series(1, 2500) AS n""",
        job_id,
    )
    assert run(relay) == 2501
    assert count_waiting(redis)["read.bulk"] == 2500


@pytest.fixture
def relaying(redis_url: str, run: Make) -> Callable[..., Any]:
    """Relays so many times at once, with `publish` in Redis's place; returns what each relay returned."""

    def relay(publish: Callable[[Any], Awaitable[object]], *, times: int = 1) -> Any:
        async def story(stores: Stores) -> list[int]:
            bus = RelayingBus(redis_url, publish)
            try:
                return await asyncio.gather(
                    *(relay_due(stores.database, bus, limit=100) for _ in range(times))
                )
            finally:
                await bus.close()

        return run(story)

    return relay


def test_without_redis_nothing_is_marked_as_published(tables: Any, relaying: Make) -> None:
    job_id = tables.add_job()

    async def refuse(_messages: object) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        relaying(refuse)

    assert tables.parts(job_id)[0]["published_at"] is None


def test_a_part_that_came_back_while_it_was_published_is_published_again(
    tables: Any, redis: Redis, run: Make, relaying: Make
) -> None:
    job_id = tables.add_job()

    async def publish_to_a_fast_worker(_messages: object) -> None:
        tables.query("UPDATE parts SET attempt = attempt + 1 WHERE job_id = %s", job_id)  # claimed and failed

    relaying(publish_to_a_fast_worker)

    assert tables.parts(job_id)[0]["published_at"] is None
    assert run(relay) == 1
    assert redis.llen(QUEUE) == 1


def test_one_relay_works_at_a_time(tables: Any, relaying: Make) -> None:
    tables.add_job(parts=50)
    published: list[object] = []

    async def publish_slowly(messages: Any) -> None:
        await asyncio.sleep(0.2)
        published.extend(messages)

    assert sorted(relaying(publish_slowly, times=3)) == [0, 0, 50]
    assert len(published) == 50


def look_again(run: Make, reconciler: Reconciler) -> int:
    reconciler._not_before = 0.0
    lost: int = run(reconciler)
    return lost


def test_only_what_redis_lost_is_republished(tables: Any, redis: Redis, run: Make, claim_all: Make) -> None:
    tables.add_job(parts=10)
    run(relay)
    tables.publish_long_ago()
    claimed = claim_all(slots=4)
    redis.rpop(QUEUE, 2)
    redis.lpush(QUEUE, "[" * 100_000)

    # The stranger's message hides one of the two lost ones; the other shows.
    reconciler = Reconciler()
    assert run(reconciler) == 0
    tables.query("UPDATE parts SET state = 'running' WHERE id = ANY(%s)", [UUID(part) for part in claimed])
    assert look_again(run, reconciler) == 2
    assert run(relay) == 2
    assert set(claimed).isdisjoint(claim_all(owner="another"))


def test_a_fresh_message_is_not_missed(tables: Any, redis: Redis, run: Make) -> None:
    tables.add_job(parts=3)
    run(relay)
    redis.flushall()
    reconciler = Reconciler()
    assert [run(reconciler), look_again(run, reconciler)] == [0, 0]


def test_while_the_counts_agree_no_list_is_read(tables: Any, redis: Redis, run: Make) -> None:
    tables.add_job(parts=3)
    run(relay)
    tables.publish_long_ago()
    redis.config_resetstat()
    assert run(Reconciler()) == 0
    assert "cmdstat_lrange" not in redis.info("commandstats")


def test_what_the_counts_cannot_show_is_found_by_comparing(tables: Any, redis: Redis, run: Make) -> None:
    tables.add_job(parts=3)
    run(relay)
    tables.publish_long_ago()
    redis.rpop(QUEUE, 1)
    redis.lpush(QUEUE, "no message")
    reconciler = Reconciler()

    assert [run(reconciler), look_again(run, reconciler)] == [0, 0]
    reconciler._at_latest = 0
    assert [run(reconciler), look_again(run, reconciler)] == [0, 1]


def test_parts_behind_a_turn_whose_marker_got_lost_are_found_again(
    tables: Any, redis: Redis, run: Make, claim_all: Make
) -> None:
    job_id = tables.add_job(parts=50)
    run(relay)
    tables.publish_long_ago()
    redis.delete(QUEUE)
    reconciler = Reconciler()
    # What stood in the list; the others are where they were.
    assert [run(reconciler), look_again(run, reconciler)] == [0, TURN]
    assert run(relay) == TURN
    assert set(claim_all()) == {str(part["id"]) for part in tables.parts(job_id)}


def test_parts_of_the_dead_go_into_quarantine(tables: Any, redis: Redis, run: Make) -> None:
    tables.query("UPDATE parts SET deaths = ordinal WHERE job_id = %s", tables.add_job(parts=3))
    assert run(relay) == 3
    waiting = count_waiting(redis)
    assert (waiting[QUEUE], waiting["read.quarantine"]) == (1, 2)


WINDOW = 100
MOST = WINDOW + reserve_of(WINDOW)


def flows_in(redis: Redis, tables: Any) -> Counter[UUID]:
    """How many parts of each flow Redis holds."""
    jobs = {
        str(row["id"]): row["flow"]
        for row in tables.query("SELECT id, coalesce(flow, job_id) AS flow FROM parts")
    }
    return Counter(jobs[part] for part in held_parts(redis) if part in jobs)


@pytest.fixture
def relay_once(run: Make, redis_url: str) -> Callable[..., int]:
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
    sent = [message for count in counts for message in messages(count, flow=new_id())]
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
    redis: Redis, tables: Any, relay_once: Make, claim_all: Make
) -> None:
    waits = tables.add_job(parts=50)
    publish(redis, messages(WINDOW + 1, flow=new_id()), window=WINDOW)
    assert len(claim_all(slots=60)) == 60
    assert len(publish(redis, messages(10, flow=new_id()), window=WINDOW)) == 10
    assert relay_once() == 50
    assert flows_in(redis, tables)[waits] == 50
    assert (relay_once(), redis.hexists(standing_name(QUEUE), IN_POSTGRES)) == (0, False)
    assert publish(redis, messages(10, flow=new_id()), window=WINDOW) == []


def test_the_relay_fills_the_window_evenly_by_flow(redis: Redis, tables: Any, relay_once: Make) -> None:
    jobs = [tables.add_job(parts=WINDOW) for _ in range(4)]
    relay_once()
    assert flows_in(redis, tables) == dict.fromkeys(jobs, WINDOW // 4)
    assert count_waiting(redis)[QUEUE] == WINDOW


def test_few_pages_do_not_wait_behind_a_large_document(
    tables: Any, relay_once: Make, claim_all: Make
) -> None:
    tables.add_job(parts=3 * WINDOW)
    relay_once()
    few = tables.add_job(parts=5)
    assert relay_once() == 5
    served = claim_all(slots=2 * TURN)
    assert {str(part["id"]) for part in tables.parts(few)} <= set(served)


def test_more_flows_than_there_is_room_for_are_served_in_turn(
    redis: Redis, tables: Any, relay_once: Make, claim_all: Make
) -> None:
    jobs = sorted(tables.add_job(parts=2) for _ in range(2 * WINDOW))
    served = []
    for _ in range(3):
        relay_once()
        served.append(sorted(flows_in(redis, tables)))
        claim_all()
    assert served == [jobs[:WINDOW], jobs[WINDOW:], jobs[:WINDOW]]


def test_parts_claimed_before_come_first(redis: Redis, tables: Any, relay_once: Make) -> None:
    tables.add_job(parts=WINDOW)
    again = tables.add_job(parts=10)
    tables.query("UPDATE parts SET attempt = 1 WHERE job_id = %s", again)
    relay_once(limit=10)
    assert flows_in(redis, tables)[again] == 10


def test_a_full_list_holds_no_other_up(redis: Redis, tables: Any, relay_once: Make) -> None:
    tables.add_job(parts=3 * WINDOW)
    for _ in range(4):
        relay_once()
    other = tables.add_job(parts=3, stage="caption")
    assert relay_once() == 3
    assert flows_in(redis, tables)[other] == 3
    assert WINDOW <= count_waiting(redis)[QUEUE] <= MOST


def test_an_empty_redis_is_filled_by_flow(redis: Redis, tables: Any, run: Make, relay_once: Make) -> None:
    jobs = [tables.add_job(parts=count) for count in (2 * WINDOW, 2 * WINDOW, 10)]
    for _ in range(3):
        relay_once()
    tables.publish_long_ago()
    redis.flushall()

    reconciler = Reconciler()
    assert run(reconciler) == 0
    assert look_again(run, reconciler) >= WINDOW
    relay_once()

    held = flows_in(redis, tables)
    assert held[jobs[2]] == 10
    assert held[jobs[0]] == pytest.approx(held[jobs[1]], abs=1)


def test_a_job_with_a_time_of_its_own_is_relayed_then(
    client: Client, picture: Picture, redis: Redis, tables: Any, run: Make
) -> None:
    with client:
        job = client.submit(ReadDocument(picture()), not_before=datetime.now(UTC) + timedelta(hours=1))
    assert (run(relay), held_parts(redis)) == (0, set())
    tables.query("UPDATE parts SET run_at = now() WHERE job_id = %s", job.id)
    assert run(relay) == 1
    assert held_parts(redis) == {str(part["id"]) for part in tables.parts(job.id)}


@pytest.mark.parametrize("junk", ["", "no flow", b"\xff"])
def test_what_a_hand_wrote_where_the_relay_notes_its_place_is_ignored(
    redis: Redis, tables: Any, relay_once: Make, junk: str | bytes
) -> None:
    tables.add_job(parts=3)
    redis.hset("pecia:relayed", QUEUE, junk)
    assert relay_once() == 3
