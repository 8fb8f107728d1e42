"""What Redis must not lose while a part comes again, and what must not end the renewal of leases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis import Redis

from pecia_schemas import Lane, Stage
from pecia_schemas.messages import PartMessage, bell_name, publish
from pecia_workers.broker import Capacity, LeaseKeeper, Leases, connect, reap
from pecia_workers.broker.leases import AGAIN

pytestmark = pytest.mark.gate

QUEUE = "read.normal"


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client


def send(redis: Redis, part: UUID) -> None:
    publish(redis, [PartMessage(part=part, stage=Stage.READ, lane=Lane.NORMAL, cost=1, flow=part)])


def claim(redis: Redis, owner: str) -> list[tuple[str, int]]:
    taken = Leases(redis).claim([QUEUE], owner=owner, slots=10, tokens=None, idle=True)
    return [(part.part, part.delivery) for part in taken.parts]


def test_a_part_that_is_queued_anew_while_its_cancelled_run_unwinds_is_not_forgotten(redis: Redis) -> None:
    """Cancel and retry in one breath: the message of the retry meets the lease of the run before."""
    part = uuid4()
    send(redis, part)
    assert claim(redis, "one") == [(str(part), 1)]
    send(redis, part)
    assert claim(redis, "two") == []
    redis.delete(bell_name(Stage.READ))

    assert Leases(redis).ack("one", [str(part)]) == 1

    assert redis.llen(bell_name(Stage.READ)) == 1
    assert claim(redis, "two") == [(str(part), 1)]
    assert Leases(redis).ack("two", [str(part)]) == 1
    assert redis.llen(QUEUE) == 0


@pytest.mark.parametrize("way", ["given back", "reaped"])
def test_a_part_that_came_again_and_goes_back_itself_is_queued_once(redis: Redis, way: str) -> None:
    part = uuid4()
    for _ in range(2):
        send(redis, part)
        claim(redis, "one")

    if way == "reaped":
        assert reap(redis, timedelta()) == 1
    else:
        assert Leases(redis).give_back("one", [str(part)]) == 1

    assert redis.llen("read.quarantine" if way == "reaped" else QUEUE) == 1
    assert redis.exists(AGAIN) == 0


class OneSlot:
    def capacity(self) -> Capacity:
        return Capacity(slots=1, tokens=None, idle=True)

    def dispatch(self) -> None:
        pass


def test_leases_are_renewed_although_nobody_can_be_told_that_one_was_lost(
    redis: Redis, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    keeper = LeaseKeeper(redis, lease=timedelta(milliseconds=600), hold_limit=timedelta(minutes=1))
    keeper.gate, keeper.on_lost = OneSlot(), _fail
    lost, kept = uuid4(), uuid4()
    send(redis, lost)
    keeper.claim([QUEUE])
    with caplog.at_level(logging.CRITICAL):
        keeper.start()
        try:
            redis.delete("pecia:owners")
            eventually(lambda: str(lost) not in keeper._held, what="a lost lease noticed")
            send(redis, kept)
            keeper.claim([QUEUE])
            time.sleep(1)
            assert reap(redis, timedelta(milliseconds=600)) == 1  # the lost one
        finally:
            keeper.stop()


def _fail(_part: str) -> None:
    raise RuntimeError
