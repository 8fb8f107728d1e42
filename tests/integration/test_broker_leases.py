"""Leases: a part is its owner's until it is finished, given back or silent for too long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from pecia_schemas import Lane, Stage
from pecia_schemas.messages import PartMessage, publish
from pecia_workers.broker import QUEUES, Capacity, Claimed, LeaseKeeper, Leases, connect, reap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ALL = tuple(QUEUES)
LEASE = timedelta(milliseconds=200)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def leases(redis: Redis) -> Leases:
    return Leases(redis)


def queue_parts(redis: Redis, count: int = 1) -> list[str]:
    """Queue some parts; their ids ascend, as those of the ledger do."""
    ids = sorted(uuid4() for _ in range(count))
    messages = [PartMessage(part=part, stage=Stage.READ, lane=Lane.NORMAL, cost=1, flow=part) for part in ids]
    publish(redis, messages)
    return [str(one.part) for one in messages]


def claim(leases: Leases, owner: str) -> list[Claimed]:
    return list(leases.claim(ALL, owner=owner, slots=100, tokens=None, idle=True).parts)


def test_a_silent_owners_parts_come_back_before_others_and_marked_as_redelivered(
    redis: Redis, leases: Leases
) -> None:
    parts = queue_parts(redis, 3)
    assert [one.delivery for one in claim(leases, "dead")] == [1, 1, 1]
    queue_parts(redis)
    time.sleep(0.3)

    assert reap(redis, LEASE) == 3

    assert [(one.part, one.delivery) for one in claim(leases, "alive")] == [(part, 2) for part in parts]


def test_reaping_takes_any_number_and_any_client(redis: Redis, redis_url: str, leases: Leases) -> None:
    queue_parts(redis, 450)
    while claim(leases, "dead"):
        pass
    time.sleep(0.3)

    with Redis.from_url(redis_url) as raw:
        assert reap(raw, LEASE) == 450
    assert redis.llen("read.quarantine") == 450


def test_a_renewed_lease_does_not_run_out(redis: Redis, leases: Leases) -> None:
    (part,) = queue_parts(redis)
    claim(leases, "me")
    for _ in range(4):
        time.sleep(0.1)
        assert leases.renew("me", [part]) == []
        assert reap(redis, LEASE) == 0


def test_an_owner_learns_which_leases_it_lost(redis: Redis, leases: Leases) -> None:
    (part,) = queue_parts(redis)
    claim(leases, "paused")
    reap(redis, timedelta(0))
    claim(leases, "other")

    assert leases.renew("paused", [part]) == [part]
    assert leases.renew("other", [part]) == []


def test_a_late_acknowledgement_leaves_the_new_owners_lease_alone(redis: Redis, leases: Leases) -> None:
    (part,) = queue_parts(redis)
    claim(leases, "paused")
    reap(redis, timedelta(0))
    claim(leases, "other")

    assert leases.ack("paused", [part]) == 0
    assert leases.give_back("paused", [part]) == 0
    assert leases.ack("other", [part]) == 1


def test_a_give_back_keeps_the_order_and_counts_as_no_delivery(redis: Redis, leases: Leases) -> None:
    parts = queue_parts(redis, 3)
    claim(leases, "leaving")
    behind = queue_parts(redis)

    assert leases.give_back("leaving", parts) == 3

    assert [(one.part, one.delivery) for one in claim(leases, "next")] == [
        (part, 1) for part in (*parts, *behind)
    ]


class OpenGate:
    def capacity(self) -> Capacity:
        return Capacity(slots=10, tokens=None, idle=True)

    def dispatch(self) -> None: ...


@pytest.fixture
def keeper(redis: Redis) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(redis, lease=LEASE, hold_limit=timedelta(seconds=1))
    keeper.gate = OpenGate()
    yield keeper
    keeper.stop()


def test_a_keeper_without_a_gate_claims_nothing(redis: Redis, keeper: LeaseKeeper) -> None:
    queue_parts(redis)
    keeper.gate = None

    assert keeper.claim(ALL).parts == ()


def test_a_part_is_not_held_for_too_long_while_it_waits_for_postgres(redis: Redis) -> None:
    """Its lease is renewed for as long as the keeper's clock stands still."""
    now, lost = [0.0], []
    keeper = LeaseKeeper(redis, lease=LEASE, hold_limit=timedelta(0), clock=lambda: now[0])
    keeper.gate, keeper.on_lost = OpenGate(), lost.append
    (part,) = queue_parts(redis)
    keeper.claim(ALL)

    keeper.renew()
    assert lost == []

    now[0] += 0.001
    keeper.renew()
    assert lost == [part]


def test_a_part_is_not_held_for_too_long_while_it_waits_for_others(redis: Redis) -> None:
    now, waited = [0.0], [5.0]
    lost: list[str] = []
    keeper = LeaseKeeper(
        redis, lease=LEASE, hold_limit=timedelta(0), clock=lambda: now[0], waited_s=lambda _part: waited[0]
    )
    keeper.gate, keeper.on_lost = OpenGate(), lost.append
    (part,) = queue_parts(redis)
    keeper.claim(ALL)

    now[0] += 5
    keeper.renew()
    assert lost == []

    now[0] += 0.001
    keeper.renew()
    assert lost == [part]


def test_a_failed_acknowledgement_is_made_good(
    redis_server: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    server = redis_server()
    with connect(server.url) as redis:
        keeper = LeaseKeeper(redis, lease=timedelta(seconds=15), hold_limit=timedelta(seconds=60))
        keeper.gate = OpenGate()
        (part,) = queue_parts(redis)
        keeper.claim(ALL)
        time.sleep(1.2)  # the server writes its log every second
        server.kill()

        keeper.ack(part)
        assert not keeper.settle()
        redis_server(replaces=server)
        assert redis.hlen("pecia:owners") == 1

        eventually(keeper.settle)
        assert redis.hlen("pecia:owners") == 0


def test_a_worker_that_starts_knows_who_died_on_its_machine(redis: Redis, keeper: LeaseKeeper) -> None:
    """Not those that live, nor those of other machines: their leases run out by themselves."""
    dead, living, away = queue_parts(redis, 3)
    leases = Leases(redis)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = keeper.owner.rsplit(":", 2)[0]
    try:
        for owner in (
            f"{place}:{process.pid}:1",
            f"{place}:{os.getppid()}:2",
            f"elsewhere:0:{process.pid}:3",
        ):
            leases.claim(ALL, owner=owner, slots=1, tokens=None, idle=True)
    finally:
        process.kill()
        process.communicate()

    keeper.start()

    assert redis.hkeys("pecia:owners") == [living, away]
    assert [(one.part, one.delivery, one.suspect) for one in claim(leases, "new")] == [(dead, 2, True)]


def test_only_what_is_still_held_and_unfinished_can_be_lost(redis: Redis, keeper: LeaseKeeper) -> None:
    lost: list[str] = []
    finished, first, taken_again = queue_parts(redis, 3)
    keeper.claim(ALL)

    def report(part: str) -> None:
        lost.append(part)
        keeper.give_back(taken_again)
        keeper.settle()
        keeper.claim(ALL)

    keeper.on_lost = report
    keeper.ack(finished)
    reap(redis, timedelta(0))

    keeper.renew()

    assert lost == [first]


def test_a_keeper_renews_although_redis_was_away_at_its_start(keeper: LeaseKeeper) -> None:
    keeper._leases = Leases(connect("unix:///nowhere/redis.sock"))

    keeper.start()

    assert keeper._renewer
    assert keeper._renewer.is_alive()


def test_parts_taken_in_a_claim_whose_answer_was_lost_go_back(redis: Redis, keeper: LeaseKeeper) -> None:
    held, unseen = queue_parts(redis, 2)
    leases = Leases(redis)
    leases.claim(ALL, owner=keeper.owner, slots=1, tokens=None, idle=True)
    keeper._held[held] = time.monotonic()
    claim(leases, keeper.owner)
    _fail_to_claim(keeper)

    keeper.tend()

    assert [one.part for one in claim(leases, "other")] == [unseen]


def _fail_to_claim(keeper: LeaseKeeper) -> None:
    def break_off(*_: object) -> None:
        raise RedisConnectionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper._leases, "_claim", break_off)
        with pytest.raises(RedisConnectionError):
            keeper.claim(ALL)


def test_renewal_keeps_parts_and_reports_those_held_too_long(
    redis: Redis, keeper: LeaseKeeper, eventually: Callable[..., Any]
) -> None:
    (part,) = queue_parts(redis)
    lost: list[str] = []
    keeper.on_lost = lost.append
    keeper.claim(ALL)
    keeper.start()
    try:
        time.sleep(0.6)
        assert (reap(redis, LEASE), lost) == (0, [])
        eventually(lambda: lost == [part])
        eventually(lambda: reap(redis, LEASE) == 1)
    finally:
        keeper.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "lease-renewer"]
