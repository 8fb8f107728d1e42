"""The relay publishes what is not in Redis; the reconciler finds what Redis has lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

from pecia_schemas.messages import TURN
from pecia_workers.ledger.recovery import relay_due
from pecia_workers.queue.lists import count_waiting
from pecia_workers.upkeep.loop import Reconciler, Stores, relay
from relaying import RelayingBus

QUEUE = "read.normal"


def test_the_relay_publishes_what_is_not_in_redis_in_order(
    tables: Any, run: Callable[..., Any], claim_all: Callable[..., Any]
) -> None:
    job_id = tables.add_job(parts=30)
    assert run(relay) == 30
    assert claim_all() == [str(part["id"]) for part in tables.parts(job_id)]
    assert all(part["published_at"] for part in tables.parts(job_id))
    assert run(relay) == 0


def test_the_relay_leaves_alone_what_is_not_due(tables: Any, redis: Redis, run: Callable[..., Any]) -> None:
    job_id = tables.add_job()
    tables.query("UPDATE parts SET run_at = now() + interval '1 hour' WHERE job_id = %s", job_id)
    assert run(relay) == 0
    assert redis.keys() == []


def test_more_than_a_batch_is_relayed_at_once(tables: Any, redis: Redis, run: Callable[..., Any]) -> None:
    job_id = tables.add_job()
    tables.query(
        """INSERT INTO parts (id, job_id, stage, ordinal, lane, cost)
           SELECT gen_random_uuid(), %s, 'read', n, 'bulk', 1 FROM generate_series(1, 2500) AS n""",
        job_id,
    )
    assert run(relay) == 2501
    assert count_waiting(redis)["read.bulk"] == 2500


@pytest.fixture
def relaying(redis_url: str, run: Callable[..., Any]) -> Callable[..., Any]:
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


def test_without_redis_nothing_is_marked_as_published(tables: Any, relaying: Callable[..., Any]) -> None:
    job_id = tables.add_job()

    async def refuse(_messages: object) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        relaying(refuse)

    assert tables.parts(job_id)[0]["published_at"] is None


def test_a_part_that_came_back_while_it_was_published_is_published_again(
    tables: Any, redis: Redis, run: Callable[..., Any], relaying: Callable[..., Any]
) -> None:
    job_id = tables.add_job()

    async def publish_to_a_fast_worker(_messages: object) -> None:
        tables.query("UPDATE parts SET attempt = attempt + 1 WHERE job_id = %s", job_id)  # claimed and failed

    relaying(publish_to_a_fast_worker)

    assert tables.parts(job_id)[0]["published_at"] is None
    assert run(relay) == 1
    assert redis.llen(QUEUE) == 1


def test_one_relay_works_at_a_time(tables: Any, relaying: Callable[..., Any]) -> None:
    tables.add_job(parts=50)
    published: list[object] = []

    async def publish_slowly(messages: Any) -> None:
        await asyncio.sleep(0.2)
        published.extend(messages)

    assert sorted(relaying(publish_slowly, times=3)) == [0, 0, 50]
    assert len(published) == 50


def test_only_what_redis_lost_is_published_again(
    tables: Any, redis: Redis, run: Callable[..., Any], claim_all: Callable[..., Any]
) -> None:
    tables.add_job(parts=10)
    run(relay)
    tables.publish_long_ago()
    leased = claim_all(slots=4)
    redis.rpop(QUEUE, 2)
    redis.lpush(QUEUE, "no message")

    # The stranger's message hides one of the two lost ones; the other shows.
    assert run(Reconciler()) == 2
    assert run(relay) == 2
    assert set(leased).isdisjoint(claim_all(owner="another"))


def test_a_fresh_message_is_not_missed(tables: Any, redis: Redis, run: Callable[..., Any]) -> None:
    tables.add_job(parts=3)
    run(relay)
    redis.flushall()
    assert run(Reconciler()) == 0


def test_while_the_counts_agree_no_list_is_read(tables: Any, redis: Redis, run: Callable[..., Any]) -> None:
    tables.add_job(parts=3)
    run(relay)
    tables.publish_long_ago()
    redis.config_resetstat()
    assert run(Reconciler()) == 0
    assert "cmdstat_lrange" not in redis.info("commandstats")


def test_what_the_counts_cannot_show_is_found_by_the_regular_comparison(
    tables: Any, redis: Redis, run: Callable[..., Any]
) -> None:
    tables.add_job(parts=3)
    run(relay)
    tables.publish_long_ago()
    redis.rpop(QUEUE, 1)
    redis.lpush(QUEUE, "no message")
    reconciler = Reconciler()

    assert run(reconciler) == 0
    reconciler._at_latest = 0
    assert run(reconciler) == 1


def test_parts_behind_a_turn_whose_marker_got_lost_are_found_again(
    tables: Any, redis: Redis, run: Callable[..., Any], claim_all: Callable[..., Any]
) -> None:
    job_id = tables.add_job(parts=50)
    run(relay)
    tables.publish_long_ago()
    redis.delete(QUEUE)
    assert run(Reconciler()) == TURN  # what stood in the list; the others are where they were
    assert run(relay) == TURN
    assert set(claim_all()) == {str(part["id"]) for part in tables.parts(job_id)}


def test_parts_of_the_dead_go_into_quarantine(tables: Any, redis: Redis, run: Callable[..., Any]) -> None:
    tables.query("UPDATE parts SET deaths = ordinal WHERE job_id = %s", tables.add_job(parts=3))
    assert run(relay) == 3
    waiting = count_waiting(redis)
    assert (waiting[QUEUE], waiting["read.quarantine"]) == (1, 2)
