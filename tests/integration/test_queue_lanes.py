"""Lower lanes get their share and are not forgotten; otherwise the order of the lanes is strict."""

from collections import Counter
from datetime import timedelta
from itertools import count
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia_schemas.messages import PartMessage, publish, queue_name
from pecia_schemas.states import Lane, Stage
from pecia_workers.queue.lists import CREDIT, QUEUES, SERVED, Claimed, LaneRules, Lists

ALL = tuple(QUEUES)
NUMBERS = count(1)
MOST_COST = 60


def fill(redis: Redis, lane: Lane, costs: list[int], stage: Stage = Stage.READ) -> None:
    publish(
        redis, [PartMessage(part=uuid4(), stage=stage, lane=lane, cost=cost, flow=uuid4()) for cost in costs]
    )


def rules(*, normal: float = 0.0, bulk: float = 0.0, patience: float = 0.0) -> LaneRules:
    return LaneRules(shares={Lane.NORMAL: normal, Lane.BULK: bulk}, patience=timedelta(seconds=patience))


def claim(lists: Lists, slots: int = 1, tokens: int | None = None) -> list[Claimed]:
    claim = lists.claim(ALL, worker="me", number=next(NUMBERS), slots=slots, tokens=tokens, idle=True)
    return list(claim.parts)


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
    lists = Lists(redis, rules(normal=normal, bulk=bulk))
    for lane in Lane:
        fill(redis, lane, costs * (180 // len(costs) + 1))  # more than all claims together take
    served: Counter[Lane] = Counter()
    for slots, tokens in claims:
        for part in claim(lists, slots, tokens):
            served[part.lane] += part.cost

        total = served.total()
        for lane, share in ((Lane.NORMAL, normal), (Lane.BULK, bulk)):
            assert share * total - 2 * MOST_COST <= served[lane] <= share * total + 1


def test_a_lane_collects_nothing_while_nothing_waits_in_it(redis: Redis) -> None:
    lists = Lists(redis, rules(bulk=0.5))
    fill(redis, Lane.URGENT, [10] * 40)
    claim(lists, slots=20)
    fill(redis, Lane.BULK, [10] * 5)
    assert [part.lane for part in claim(lists, slots=2)] == [Lane.URGENT, Lane.URGENT]


def test_what_is_due_to_a_lane_has_a_bound(redis: Redis) -> None:
    """A part of a million tokens must not be followed by nothing but bulk."""
    lists = Lists(redis, rules(bulk=0.05))
    fill(redis, Lane.URGENT, [1_000_000, 1000, 1000])
    fill(redis, Lane.BULK, [10_000] * 50)
    order = [part.lane for part in claim(lists, slots=5)]
    assert order == [Lane.URGENT, Lane.BULK, Lane.BULK, Lane.BULK, Lane.URGENT]


def test_the_stages_of_a_lane_divide_its_share(redis: Redis) -> None:
    lists = Lists(redis, rules(bulk=0.2))
    fill(redis, Lane.URGENT, [10] * 200)
    for stage in (Stage.READ, Stage.CAPTION):
        fill(redis, Lane.BULK, [10] * 50, stage)
    served = Counter(part.queue for part in claim(lists, slots=100))
    assert served["read.bulk"] + served["caption.bulk"] == pytest.approx(20, abs=2)
    assert served["read.bulk"] == pytest.approx(served["caption.bulk"], abs=1)


def long_unserved(redis: Redis, *lanes: Lane) -> None:
    for lane in lanes:
        redis.hset(SERVED, queue_name(Stage.READ, lane), "1")


def test_a_lane_that_was_not_served_for_too_long_is_served_one_part_first(redis: Redis) -> None:
    lists = Lists(redis, rules(patience=60))
    for lane in (Lane.URGENT, Lane.BULK):
        fill(redis, lane, [10] * 10)
    assert [part.lane for part in claim(lists, slots=2)] == [Lane.URGENT] * 2
    long_unserved(redis, Lane.BULK)
    assert [part.lane for part in claim(lists, slots=4)] == [Lane.BULK] + [Lane.URGENT] * 3


@given(aged=st.lists(st.sets(st.sampled_from([Lane.NORMAL, Lane.BULK])), max_size=20))
def test_a_turn_out_of_order_comes_at_once_never_twice_in_a_row(redis: Redis, aged: list[set[Lane]]) -> None:
    """Or parts that take longer than the patience would turn the order of the lanes round."""
    redis.flushall()
    lists = Lists(redis, rules(patience=60))
    for lane in Lane:
        fill(redis, lane, [10] * 25)
    waits: set[Lane] = set()
    last = Lane.URGENT
    claim(lists)
    for lanes in aged:
        long_unserved(redis, *lanes)
        waits |= lanes

        (part,) = claim(lists)

        in_turn = min(waits, key=lambda lane: lane.rank, default=Lane.URGENT)
        assert part.lane is (in_turn if last is Lane.URGENT else Lane.URGENT)
        waits.discard(part.lane)
        last = part.lane


def test_nothing_is_kept_of_lanes_that_are_empty(redis: Redis) -> None:
    lists = Lists(redis, rules(normal=0.1, bulk=0.1, patience=60))
    for lane in Lane:
        fill(redis, lane, [10] * 3)
    claim(lists, slots=4)
    assert redis.exists(CREDIT, SERVED) == 2
    claim(lists, slots=100)
    assert redis.exists(CREDIT, SERVED) == 0
