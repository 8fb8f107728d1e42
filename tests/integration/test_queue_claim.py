"""The claim: lanes in order, a token budget, no duplicates, nothing lost, and nothing that blocks a list."""

import json
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia_schemas.messages import PartMessage, bell_name, publish
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue.lists import DEAD, QUEUES, Claim, Ended, Lists, taken_name

ALL = tuple(QUEUES)
NUMBERS = count(1)


@pytest.fixture
def lists(redis: Redis) -> Lists:
    return Lists(redis)


def message(lane: Lane = Lane.NORMAL, cost: int = 1, stage: Stage = Stage.READ) -> PartMessage:
    return PartMessage(part=uuid4(), stage=stage, lane=lane, cost=cost, flow=uuid4())


def claim(lists: Lists, *, slots: int = 100, idle: bool = True, **more: Any) -> Claim:
    return lists.claim(ALL, worker="me", number=next(NUMBERS), slots=slots, idle=idle, **more)


def parts(claimed: Claim) -> list[UUID]:
    return [UUID(one.part) for one in claimed.parts]


def test_lanes_are_served_strictly_and_each_in_its_order(redis: Redis, lists: Lists) -> None:
    bulk, normal, urgent = (
        [message(lane) for _ in range(3)] for lane in (Lane.BULK, Lane.NORMAL, Lane.URGENT)
    )
    ingest = message(Lane.URGENT, stage=Stage.INGEST)
    publish(redis, [*bulk, *normal, *urgent, ingest])
    assert parts(claim(lists)) == [one.part for one in (ingest, *urgent, *normal, *bulk)]


def test_a_claim_fills_the_free_slots_and_says_that_there_is_more(redis: Redis, lists: Lists) -> None:
    publish(redis, [message() for _ in range(5)])
    first = claim(lists, slots=3)
    assert (len(first.parts), first.more) == (3, True)
    assert (len(claim(lists, slots=3).parts), claim(lists, slots=3).more) == (2, False)


PART = "0197b1f2-5d3e-7c44-9a10-3f6c2b8e7d51"
FLOW = "4f1cc1d8-0f0e-4b63-8a4b-0a6f2f5e9c11"
GOOD = {"part": PART, "lane": "normal", "cost": 1, "flow": FLOW}


@pytest.mark.parametrize(
    "raw",
    [
        "{not json",
        "[]",
        "17",
        "null",
        '"text"',
        "[" * 200,
        json.dumps(GOOD | {"part": "../../etc/passwd"}),
        json.dumps(GOOD | {"part": 7}),
        json.dumps(GOOD | {"part": PART.upper()}),
        json.dumps(GOOD | {"part": PART + "0"}),
        json.dumps(GOOD | {"part": None}),
        json.dumps(GOOD | {"lane": "urgent"}),
        json.dumps(GOOD | {"cost": 0}),
        json.dumps(GOOD | {"cost": -5}),
        json.dumps(GOOD | {"cost": "1"}),
        json.dumps(GOOD | {"flow": "../other"}),
        json.dumps({name: GOOD[name] for name in ("part", "lane", "flow")}),
        json.dumps({name: GOOD[name] for name in ("part", "lane", "cost")}),
        json.dumps({name: GOOD[name] for name in ("lane", "cost", "flow")}),
        json.dumps({"flow": "no-uuid"}),
        json.dumps(GOOD | {"task": "x" * 500}),
        json.dumps(GOOD).replace('"cost": 1', '"cost": NaN'),
        b"\xff\xfe\x00",
    ],
)
def test_a_malformed_head_is_put_aside(redis: Redis, lists: Lists, raw: str | bytes) -> None:
    redis.lpush("read.normal", raw)
    behind = message()
    publish(redis, [behind])
    assert parts(claim(lists)) == [behind.part]
    assert redis.llen(DEAD) == 1


def test_the_dead_list_is_bounded(redis: Redis, lists: Lists) -> None:
    redis.lpush("read.normal", *["x" * 1000] * 3000)
    while claim(lists).more:
        pass
    assert redis.llen("read.normal") == 0
    assert redis.llen(DEAD) == 1000
    assert redis.lindex(DEAD, 0) == "x" * 200


@pytest.mark.parametrize(("sent", "taken"), [("1e300", 2**31 - 1), ("0.25", 1), ("7.9", 7)])
def test_costs_are_clamped(redis: Redis, lists: Lists, sent: str, taken: int) -> None:
    redis.lpush("read.normal", json.dumps(GOOD).replace('"cost": 1', f'"cost": {sent}'))
    assert [one.cost for one in claim(lists).parts] == [taken]


def test_a_claim_that_leaves_parts_behind_rings_for_the_next_worker(redis: Redis, lists: Lists) -> None:
    publish(redis, [message(), message()])
    redis.delete(bell_name(Stage.READ))
    claim(lists, slots=1)
    assert redis.llen(bell_name(Stage.READ)) == 1
    redis.delete(bell_name(Stage.READ))
    claim(lists, tokens=0, idle=False)
    assert redis.llen(bell_name(Stage.READ)) == 0


MESSAGES = st.lists(
    st.tuples(st.sampled_from(Lane), st.sampled_from(Stage), st.integers(1, 60)), min_size=1, max_size=40
)


@given(sent=MESSAGES, slots=st.integers(1, 8), budget=st.integers(1, 100), data=st.data())
def test_budget_holds_lists_stay_in_order_and_nothing_is_lost(
    redis: Redis, sent: list[tuple[Lane, Stage, int]], slots: int, budget: int, data: st.DataObject
) -> None:
    lists = Lists(redis)
    redis.flushall()
    messages = [message(lane, cost, stage) for lane, stage, cost in sent]
    publish(redis, messages)
    held: dict[str, int] = {}
    served: list[tuple[str, UUID]] = []
    while held or len(served) < len(messages):
        free = budget - sum(held.values())
        if len(held) < slots and free > 0:
            taken = claim(lists, slots=slots - len(held), tokens=free, idle=not held).parts
            held |= {one.part: one.cost for one in taken}
            served += [(one.queue, UUID(one.part)) for one in taken]
        assert len(held) <= slots
        assert sum(held.values()) <= budget or len(held) == 1
        done = data.draw(st.sampled_from(list(held)))  # in the order of claim: ids are other ones each time
        claim(lists, slots=0, ended=Ended(finished=(done,)))
        del held[done]

    for queue in ALL:
        expected = [one.part for one in messages if one.queue == queue]
        assert [part for name, part in served if name == queue] == expected
    assert redis.hkeys(taken_name("me")) == ["#"]
    assert not redis.exists(DEAD)
