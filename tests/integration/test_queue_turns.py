"""Fair turns inside a lane: a long document yields after each turn, and nothing gets lost behind one."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from pecia_schemas.messages import BEHIND_TURNS, TURN, PartMessage, publish, rest_name, standing_name
from pecia_workers.queue.lists import claimed_name, count_waiting, held_parts, mend_turns
from tests.shared.queueing import claim, messages, put_back

QUEUE = "read.normal"
FLOWS = [uuid4() for _ in range(4)]


def ids(parts: Iterable[PartMessage]) -> list[UUID]:
    return [claimed.part for claimed in parts]


def claimed(redis: Redis, slots: int) -> list[UUID]:
    return ids(claim(redis, [QUEUE], slots=slots).parts)


def claim_all(redis: Redis) -> list[UUID]:
    found: list[UUID] = []
    while some := claimed(redis, 100):
        found += some
    return found


def expect_markers_where_something_waits(redis: Redis) -> None:
    """A list behind a turn is there if and only if exactly one marker is; and the counts are those of the list."""
    standing = [json.loads(raw) for raw in redis.lrange(QUEUE, 0, -1)]
    markers = Counter(message["flow"] for message in standing if "part" not in message)
    counts = Counter(message["flow"] for message in standing if "part" in message)
    rests = {str(flow) for flow in FLOWS if redis.exists(rest_name(QUEUE, flow))}
    assert markers == Counter(rests)
    counted = Counter({flow: int(count) for flow, count in redis.hgetall(standing_name(QUEUE)).items()})
    behind = sum(redis.llen(rest_name(QUEUE, flow)) for flow in rests)
    assert counted.pop(BEHIND_TURNS, 0) == behind - len(rests)
    assert counted == counts


def test_a_short_document_waits_for_one_turn_of_a_long_one(redis: Redis) -> None:
    long, short = messages(300, flow=FLOWS[0]), messages(3, flow=FLOWS[1])
    publish(redis, long)
    publish(redis, short)
    order = claim_all(redis)
    assert order[:TURN] == [message.part for message in long[:TURN]]
    assert order[TURN : TURN + 3] == [message.part for message in short]
    assert order[TURN + 3 :] == [message.part for message in long[TURN:]]


def test_long_documents_take_turns(redis: Redis) -> None:
    for flow in FLOWS[:3]:
        publish(redis, messages(3 * TURN, flow=flow))
    flow_of = {one["part"]: one["flow"] for one in _raw(redis) if "part" in one}
    order = [flow_of[str(part)] for part in claim_all(redis)]
    turns = [order[start : start + TURN] for start in range(0, len(order), TURN)]
    assert turns == [[str(flow)] * TURN for flow in FLOWS[:3]] * 3


def _raw(redis: Redis) -> list[dict[str, str]]:
    lists = [QUEUE, *redis.scan_iter(f"{QUEUE}:*")]
    return [json.loads(raw) for name in lists for raw in redis.lrange(name, 0, -1)]


PUBLISH = st.tuples(st.just("publish"), st.sampled_from(range(4)), st.integers(1, 3 * TURN))
CLAIM = st.tuples(st.just("claim"), st.integers(1, 2 * TURN))
END = st.tuples(st.sampled_from(["give back", "acknowledge"]))


@given(steps=st.lists(PUBLISH | CLAIM | END, max_size=25))
def test_nothing_is_lost_or_repeated_and_flows_keep_order(redis: Redis, steps: list[tuple[Any, ...]]) -> None:
    redis.flushall()
    sent: dict[UUID, list[UUID]] = defaultdict(list)
    done: list[UUID] = []
    held: list[PartMessage] = []
    for what, *numbers in steps:
        match what:
            case "publish":
                flow, count = FLOWS[numbers[0]], numbers[1]
                new = messages(count, flow=flow)
                publish(redis, new)
                sent[flow] += [message.part for message in new]
            case "claim":
                held += claim(redis, [QUEUE], slots=numbers[0]).parts
            case "give back":
                put_back(redis, held)
                held = []
            case _:
                done, held = done + ids(held), []
        expect_markers_where_something_waits(redis)
        left = {part for parts in sent.values() for part in parts} - {*done, *ids(held)}
        assert held_parts(redis) == set(map(str, left))
        assert count_waiting(redis).total() == len(left)
    done += ids(held) + claim_all(redis)

    for parts in sent.values():
        assert [part for part in done if part in set(parts)] == parts
    assert len(done) == sum(map(len, sent.values()))
    assert set(redis.keys()) <= {"pecia:bell:read", claimed_name("me")}


@given(steps=st.lists(PUBLISH | CLAIM, max_size=25))
def test_no_flow_waits_for_more_than_its_turn(redis: Redis, steps: list[tuple[Any, ...]]) -> None:
    """One turn of each other flow for a document that arrives; two at most for one that goes on while others arrive."""
    redis.flushall()
    flow_of: dict[UUID, UUID] = {}
    first_in: set[UUID] = set()  # published while nothing of its flow waited
    waiting: Counter[UUID] = Counter()
    passed: dict[UUID, Counter[UUID]] = {}  # of a flow that waits: what others were served since its last

    def serve(part: UUID) -> None:
        flow = flow_of[part]
        most = TURN if part in first_in else 2 * TURN
        assert max(passed[flow].values(), default=0) <= most
        waiting[flow] -= 1
        passed.pop(flow)
        if waiting[flow]:
            passed[flow] = Counter()
        for others in (counter for other, counter in passed.items() if other != flow):
            others[flow] += 1

    for what, *numbers in [*steps, ("claim", 10_000)]:
        if what == "publish":
            flow, new = FLOWS[numbers[0]], messages(numbers[1], flow=FLOWS[numbers[0]])
            publish(redis, new)
            flow_of |= {message.part: flow for message in new}
            if not waiting[flow]:
                first_in.add(new[0].part)
                passed[flow] = Counter()
            waiting[flow] += len(new)
        else:
            for part in claimed(redis, numbers[0]):
                serve(part)
    assert waiting.total() == 0


def test_a_marker_that_somebody_deleted_is_set_again(redis: Redis) -> None:
    parts = messages(100, flow=FLOWS[0])
    publish(redis, parts)
    assert mend_turns(redis) == 0
    redis.delete(QUEUE)
    assert mend_turns(redis) == 1
    expect = [message.part for message in parts[TURN:]]
    assert claim_all(redis) == expect


def test_a_marker_that_somebody_forged_serves_nobody(redis: Redis) -> None:
    redis.lpush(QUEUE, json.dumps({"flow": str(FLOWS[1])}))
    parts = messages(2, flow=FLOWS[0])
    publish(redis, parts)
    assert claim_all(redis) == [message.part for message in parts]
    assert redis.keys("*.*:*") == []


def test_a_count_that_went_wrong_is_forgotten_with_the_empty_list(redis: Redis) -> None:
    publish(redis, messages(3, flow=FLOWS[0]))
    redis.hset(standing_name(QUEUE), str(FLOWS[0]), 1000)
    claim_all(redis)
    assert not redis.exists(standing_name(QUEUE))
