"""The claim: lanes in order and with their shares, a token budget, nothing lost or twice, and nothing blocks a list."""

import json
from collections import Counter
from datetime import timedelta
from itertools import chain
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia_schemas.messages import PartMessage, publish, queue_name, wakeup_key
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue.lists import CREDIT, DEAD, SERVED, Claim, LaneRules
from tests.shared.queueing import EVERY_LIST, claim, messages


def parts(claimed: Claim) -> list[UUID]:
    return [one.part for one in claimed.parts]


def test_lanes_are_served_strictly_and_each_in_its_order(redis: Redis) -> None:
    bulk, normal, urgent = (messages(3, lane=lane) for lane in (Lane.BULK, Lane.NORMAL, Lane.URGENT))
    (ingest,) = messages(lane=Lane.URGENT, stage=Stage.INGEST)
    publish(redis, [*bulk, *normal, *urgent, ingest])
    assert parts(claim(redis)) == [one.part for one in (ingest, *urgent, *normal, *bulk)]


def test_a_claim_fills_the_free_slots_and_says_that_there_is_more(redis: Redis) -> None:
    publish(redis, messages(5))
    first = claim(redis, slots=3)
    assert (len(first.parts), first.more) == (3, True)
    assert (len(claim(redis, slots=3).parts), claim(redis, slots=3).more) == (2, False)


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
def test_a_malformed_head_is_put_aside(redis: Redis, raw: str | bytes) -> None:
    redis.lpush("read.normal", raw)
    (behind,) = messages()
    publish(redis, [behind])
    assert parts(claim(redis)) == [behind.part]
    assert redis.llen(DEAD) == 1


def test_the_dead_list_is_bounded(redis: Redis) -> None:
    redis.lpush("read.normal", *["x" * 1000] * 3000)
    while claim(redis).more:
        pass
    assert redis.llen("read.normal") == 0
    assert redis.llen(DEAD) == 1000
    assert redis.lindex(DEAD, 0) == "x" * 200


@pytest.mark.parametrize(("sent", "taken"), [("1e300", 2**31 - 1), ("0.25", 1), ("7.9", 7)])
def test_a_cost_out_of_range_is_clamped(redis: Redis, sent: str, taken: int) -> None:
    redis.lpush("read.normal", json.dumps(GOOD).replace('"cost": 1', f'"cost": {sent}'))
    assert [one.cost for one in claim(redis).parts] == [taken]


def test_a_claim_that_leaves_parts_behind_rings_for_the_next_worker(redis: Redis) -> None:
    publish(redis, messages(2))
    redis.delete(wakeup_key(Stage.READ))
    claim(redis, slots=1)
    assert redis.llen(wakeup_key(Stage.READ)) == 1
    redis.delete(wakeup_key(Stage.READ))
    claim(redis, tokens=0, idle=False)
    assert redis.llen(wakeup_key(Stage.READ)) == 0


MESSAGES = st.lists(
    st.tuples(st.sampled_from(Lane), st.sampled_from(Stage), st.integers(1, 60)), min_size=1, max_size=40
)


@given(sent=MESSAGES, slots=st.integers(1, 8), budget=st.integers(1, 100), data=st.data())
def test_budget_holds_lists_stay_in_order_and_nothing_is_lost(
    redis: Redis, sent: list[tuple[Lane, Stage, int]], slots: int, budget: int, data: st.DataObject
) -> None:
    redis.flushall()
    published = [*chain(*(messages(lane=lane, cost=cost, stage=stage) for lane, stage, cost in sent))]
    publish(redis, published)
    held: dict[UUID, int] = {}
    served: list[tuple[str, UUID]] = []
    while held or len(served) < len(published):
        free = budget - sum(held.values())
        if len(held) < slots and free > 0:
            taken = claim(redis, slots=slots - len(held), tokens=free, idle=not held).parts
            held |= {one.part: one.cost for one in taken}
            served += [(one.queue, one.part) for one in taken]
        assert len(held) <= slots
        assert sum(held.values()) <= budget or len(held) == 1
        done = data.draw(st.sampled_from(list(held)))  # in the order of claim: ids are other ones each time
        del held[done]

    for queue in EVERY_LIST:
        expected = [one.part for one in published if one.queue == queue]
        assert [part for name, part in served if name == queue] == expected
    assert not redis.exists(DEAD)


MOST_COST = 60


def fill(redis: Redis, lane: Lane, costs: list[int], stage: Stage = Stage.READ) -> None:
    publish(redis, [*chain(*(messages(lane=lane, cost=cost, stage=stage) for cost in costs))])


def rules(*, normal: float = 0.0, bulk: float = 0.0, patience: float = 0.0) -> LaneRules:
    return LaneRules(shares={Lane.NORMAL: normal, Lane.BULK: bulk}, patience=timedelta(seconds=patience))


def claimed(redis: Redis, rules: LaneRules, slots: int = 1, tokens: int | None = None) -> list[PartMessage]:
    return list(claim(redis, rules=rules, slots=slots, tokens=tokens).parts)


@given(
    normal=st.floats(0, 0.45),
    bulk=st.floats(0, 0.45),
    costs=st.lists(st.integers(1, MOST_COST), min_size=3, max_size=30),
    claims=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 500)), min_size=1, max_size=15),
)
def test_a_lane_that_waits_gets_its_share_of_the_tokens_and_no_more(
    redis: Redis, normal: float, bulk: float, costs: list[int], claims: list[tuple[int, int]]
) -> None:
    redis.flushall()
    own = rules(normal=normal, bulk=bulk)
    for lane in Lane:
        fill(redis, lane, costs * (180 // len(costs) + 1))  # more than all claims together take
    served: Counter[Lane] = Counter()
    for slots, tokens in claims:
        for part in claimed(redis, own, slots, tokens):
            served[part.lane] += part.cost

        total = served.total()
        for lane, share in ((Lane.NORMAL, normal), (Lane.BULK, bulk)):
            assert share * total - 2 * MOST_COST <= served[lane] <= share * total + 1


def test_a_lane_collects_nothing_while_nothing_waits_in_it(redis: Redis) -> None:
    own = rules(bulk=0.5)
    fill(redis, Lane.URGENT, [10] * 40)
    claimed(redis, own, slots=20)
    fill(redis, Lane.BULK, [10] * 5)
    assert [part.lane for part in claimed(redis, own, slots=2)] == [Lane.URGENT, Lane.URGENT]


def test_what_is_due_to_a_lane_has_a_bound(redis: Redis) -> None:
    """A part of a million tokens must not be followed by nothing but bulk."""
    own = rules(bulk=0.05)
    fill(redis, Lane.URGENT, [1_000_000, 1000, 1000])
    fill(redis, Lane.BULK, [10_000] * 50)
    order = [part.lane for part in claimed(redis, own, slots=5)]
    assert order == [Lane.URGENT, Lane.BULK, Lane.BULK, Lane.BULK, Lane.URGENT]


def test_the_stages_of_a_lane_divide_its_share(redis: Redis) -> None:
    own = rules(bulk=0.2)
    fill(redis, Lane.URGENT, [10] * 200)
    for stage in (Stage.READ, Stage.CAPTION):
        fill(redis, Lane.BULK, [10] * 50, stage)
    served = Counter(part.queue for part in claimed(redis, own, slots=100))
    assert served["read.bulk"] + served["caption.bulk"] == pytest.approx(20, abs=2)
    assert served["read.bulk"] == pytest.approx(served["caption.bulk"], abs=1)


def long_unserved(redis: Redis, *lanes: Lane) -> None:
    for lane in lanes:
        redis.hset(SERVED, queue_name(Stage.READ, lane), "1")


def test_a_lane_that_was_not_served_for_too_long_is_served_one_part_first(redis: Redis) -> None:
    own = rules(patience=60)
    for lane in (Lane.URGENT, Lane.BULK):
        fill(redis, lane, [10] * 10)
    assert [part.lane for part in claimed(redis, own, slots=2)] == [Lane.URGENT] * 2
    long_unserved(redis, Lane.BULK)
    assert [part.lane for part in claimed(redis, own, slots=4)] == [Lane.BULK] + [Lane.URGENT] * 3


@given(aged=st.lists(st.sets(st.sampled_from([Lane.NORMAL, Lane.BULK])), max_size=20))
def test_a_turn_out_of_order_comes_at_once_never_twice_in_a_row(redis: Redis, aged: list[set[Lane]]) -> None:
    """Or parts that take longer than the patience would turn the order of the lanes round."""
    redis.flushall()
    own = rules(patience=60)
    for lane in Lane:
        fill(redis, lane, [10] * 25)
    waits: set[Lane] = set()
    last = Lane.URGENT
    claimed(redis, own)
    for lanes in aged:
        long_unserved(redis, *lanes)
        waits |= lanes

        (part,) = claimed(redis, own)

        in_turn = min(waits, key=lambda lane: lane.rank, default=Lane.URGENT)
        assert part.lane is (in_turn if last is Lane.URGENT else Lane.URGENT)
        waits.discard(part.lane)
        last = part.lane


def test_nothing_is_kept_of_lanes_that_are_empty(redis: Redis) -> None:
    own = rules(normal=0.1, bulk=0.1, patience=60)
    for lane in Lane:
        fill(redis, lane, [10] * 3)
    claimed(redis, own, slots=4)
    assert redis.exists(CREDIT, SERVED) == 2
    claimed(redis, own, slots=100)
    assert redis.exists(CREDIT, SERVED) == 0
