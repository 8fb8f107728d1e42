"""Who may enter the engine, and when: four policies and what none of them may ever do."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pecia_workers.batching.admission import Capacity, Item
from pecia_workers.batching.policies import (
    MOST_OVERTAKEN,
    BatchLimits,
    Policy,
    PolicyName,
    Waiting,
    policy_named,
)
from pecia_workers.protocol.base import WHOLE, Layers

ROOM = Capacity(slots=4, tokens=100)
LIMITS = BatchLimits(least=2, most=3, tokens=80, concurrent=2, window_s=0.1)


def item(name: str, tokens: int = 10, rank: int = 1, arrived: float = 0.0, *, output: int = 1) -> Item:
    return Item(id=name, prompt=tokens - output, output=output, rank=rank, arrived=arrived)


def names(starts: list[Item]) -> list[str]:
    return [start.id for start in starts]


def offered(name: PolicyName, *items: Item) -> Policy:
    policy = policy_named(name, LIMITS)
    for each in items:
        policy.offer(each)
    return policy


def test_whatever_fits_starts_at_once() -> None:
    policy = offered(PolicyName.CONTINUOUS, item("a", 60), item("b", 40), item("c", 20))  # of equal outputs
    assert names(policy.start(0, ROOM)) == ["a", "b"]
    policy.withdraw("b")
    assert names(policy.start(0, ROOM)) == ["c"]


def test_what_ends_early_leaves_its_place_to_what_writes_long() -> None:
    short, long = item("short", 50, output=10), item("long", 60, output=40)
    policy = offered(PolicyName.CONTINUOUS, short, long)
    assert short.tokens + long.tokens > 80
    assert names(policy.start(0, Capacity(slots=4, tokens=79))) == ["short"]
    told = "50 and 30 when the short one ends"
    assert names(policy.start(0, Capacity(slots=4, tokens=80))) == ["long"], told


def test_what_has_been_written_will_not_be_written_again() -> None:
    policy = offered(PolicyName.CONTINUOUS, item("old", 50, output=40))
    capacity = Capacity(slots=4, tokens=80)
    policy.start(0, capacity)
    policy.offer(item("new", 60, output=40))

    assert names(policy.start(0, capacity)) == []
    assert names(policy.start(0, replace(capacity, written={"old": 29}))) == []
    told = "50 and 30 when the old one ends"
    assert names(policy.start(0, replace(capacity, written={"old": 30}))) == ["new"], told


def test_what_has_written_more_than_expected_is_expected_to_write_on() -> None:
    endless = replace(item("old", 20, output=10), longer=lambda written: written + 20)
    policy = offered(PolicyName.CONTINUOUS, endless)
    capacity = Capacity(slots=4, tokens=60)
    policy.start(0, capacity)
    policy.offer(item("new", 30, output=25))
    assert names(policy.start(0, replace(capacity, written={"old": 16}))) == [], (
        "46 and 25 when the old one ends"
    )
    assert names(policy.start(0, replace(capacity, written={"old": 5}))) == ["new"], "35 and 25"


def test_a_request_takes_whole_blocks_of_the_cache() -> None:
    page = item("page", 390, output=32)
    policy = offered(PolicyName.CONTINUOUS, *(replace(page, id=str(number)) for number in range(30)))
    capacity = Capacity(slots=30, tokens=85 * 128)
    assert len(policy.start(0, replace(capacity, block=128))) == 21, "four blocks each, and one is left"
    assert len(policy.start(0, capacity)) == 6, "27 by tokens alone"


def test_a_request_that_will_fill_its_blocks_does_not_fill_them_while_it_writes() -> None:
    policy = offered(PolicyName.CONTINUOUS, item("short", 30, output=10), item("long", 64, output=40))
    capacity = Capacity(slots=2, tokens=75, block=16)
    assert names(policy.start(0, capacity)) == ["short"], (
        "32 when it ends, and the other has 48 by then, not 34"
    )
    assert names(policy.start(0, replace(capacity, tokens=80))) == ["long"]


def test_layers_with_a_window_take_no_more_of_a_long_request_than_their_window() -> None:
    policy = offered(PolicyName.CONTINUOUS, item("old", 1_000, output=100), item("new", 900, output=100))
    capacity = Capacity(slots=2, tokens=1_320, layers=Layers(full=0.5, windows=((100, 0.5),), in_flight=500))

    assert names(policy.start(0, capacity)) == ["old"], "450 and 300 of its prompt, and 50 until it ends"
    begun, told = replace(capacity, written={"old": 0}), "400 and 300 beside it: 1,550 at the end"
    assert names(policy.start(0, begun)) == [], told
    begun, told = replace(capacity, written={"old": 1}), "the old one keeps 50 of its window"
    assert names(policy.start(0, begun)) == ["new"], told


ORDERS: dict[str, tuple[PolicyName, list[Item], Capacity, list[str]]] = {
    "an urgent request goes before all that wait": (
        *(PolicyName.CONTINUOUS, [item("bulk", rank=2), item("urgent", rank=0), item("normal", rank=1)]),
        *(ROOM, ["urgent", "normal", "bulk"]),
    ),
    "the longest starts when what is shorter would not fill the engine beside it": (
        *(PolicyName.SHORTEST, [item("long", output=50), *(item(f"short {n}", output=10) for n in range(9))]),
        *(Capacity(slots=2, tokens=None), ["long", "short 0"]),
    ),
    "how many fit by their tokens tells what fills the engine": (
        PolicyName.SHORTEST,
        [item("long", 50, output=90), *(item(f"short {n}", 50, output=10) for n in range(20))],
        *(Capacity(slots=100, tokens=100), ["short 0", "short 1"]),
    ),
    "an urgent long request goes before short ones of another lane": (
        *(PolicyName.SHORTEST, [item("short", rank=1), item("urgent", rank=0, output=900)]),
        *(Capacity(slots=1, tokens=None), ["urgent"]),
    ),
}


@pytest.mark.parametrize(("name", "items", "capacity", "started"), ORDERS.values(), ids=ORDERS)
def test_who_starts_first(
    name: PolicyName, items: list[Item], capacity: Capacity, started: list[str]
) -> None:
    assert names(offered(name, *items).start(0, capacity)) == started


def test_a_batch_waits_for_its_size_or_its_window() -> None:
    policy = offered(PolicyName.DYNAMIC, item("a"))
    assert policy.start(0.05, ROOM) == []
    assert policy.due(0.05) == pytest.approx(0.05)
    assert names(policy.start(0.1, ROOM)) == ["a"]
    full = offered(PolicyName.DYNAMIC, item("a"), item("b"), item("c"))
    assert names(full.start(0, ROOM)) == ["a", "b", "c"]


@given(arrived=st.floats(0, 1e6), window=st.floats(0.001, 10))
def test_a_batch_starts_when_its_window_ends_whatever_the_last_digit(arrived: float, window: float) -> None:
    policy = policy_named(PolicyName.DYNAMIC, replace(LIMITS, window_s=window))
    policy.offer(item("a", arrived=arrived))
    assert policy.due(arrived) is not None
    end = arrived + window
    assert policy.due(end) is None
    assert names(policy.start(end, ROOM)) == ["a"]


@pytest.mark.parametrize(
    ("tokens", "started"), [((79,), []), ((80,), ["0"]), ((50, 30), ["0", "1"]), ((50, 31), ["0"])]
)
def test_a_batch_with_its_tokens_waits_for_no_more(tokens: tuple[int, ...], started: list[str]) -> None:
    policy = offered(PolicyName.DYNAMIC, *(item(str(number), size) for number, size in enumerate(tokens)))
    assert names(policy.start(0, ROOM)) == started


def test_a_batch_is_filled_with_requests_of_its_first_ones_size() -> None:
    sizes = {"long": 40, "short": 2, "longish": 38, "brief": 3}
    policy = offered(PolicyName.DYNAMIC, *(item(name, size) for name, size in sizes.items()))
    assert names(policy.start(0, ROOM))[:2] == ["long", "longish"]


def test_a_batch_refills_when_all_of_it_has_ended_and_no_more_run_than_allowed() -> None:
    policy = offered(PolicyName.STATIC, *(item(str(number), 1) for number in range(17)))
    capacity = Capacity(slots=100, tokens=None)
    assert names(policy.start(0, capacity)) == [str(number) for number in range(8)]
    for number in range(7):
        policy.withdraw(str(number))
    assert policy.start(5, capacity) == []
    policy.withdraw("7")
    assert names(policy.start(5, capacity)) == [str(number) for number in range(8, 16)]


@given(mean=st.floats(min_value=1, max_value=1e6), limits=st.tuples(st.integers(1, 50), st.integers(50, 200)))
def test_the_size_of_a_batch_stays_between_its_bounds(mean: float, limits: tuple[int, int]) -> None:
    least, most = limits
    assert least <= BatchLimits(least=least, most=most).size(4_000, mean) <= most


def test_the_size_of_a_batch_is_its_tokens_by_the_mean() -> None:
    assert BatchLimits().size(4_000, 80) == 50
    assert BatchLimits(most=5_000).size(4_000, 1) == 4_000


def test_batches_share_the_room() -> None:
    limits = BatchLimits(concurrent=5)
    assert limits.tokens_of(Capacity(slots=9, tokens=1_000), 10) == 200
    assert limits.tokens_of(Capacity(slots=9, tokens=None), 10) == math.inf
    assert replace(limits, tokens=70).tokens_of(Capacity(slots=9, tokens=1_000), 10) == 70


def test_a_batch_holds_several_requests_however_many_batches_share_the_room() -> None:
    policy = policy_named(PolicyName.DYNAMIC, BatchLimits(concurrent=2, window_s=0))
    for number in range(6):
        policy.offer(item(str(number), 30))
    assert names(policy.start(0, Capacity(slots=9, tokens=100))) == ["0", "1", "2"]


@given(policy=st.sampled_from(PolicyName), urgent=st.integers(0, 3))
def test_a_stream_of_urgent_requests_starves_no_other(policy: PolicyName, urgent: int) -> None:
    queue = policy_named(policy, LIMITS)
    queue.offer(item("patient", rank=2))
    for number in range(2 * MOST_OVERTAKEN):
        for place in range(urgent + 1):
            queue.offer(item(f"{number}.{place}", rank=0, arrived=number))
        started = names(queue.start(number + 10.0, Capacity(slots=urgent + 1, tokens=None)))
        if "patient" in started:
            return
        for name in started:
            queue.withdraw(name)
    pytest.fail("overtaken for ever")


def test_a_request_that_was_overtaken_often_enough_is_next_and_alone() -> None:
    waiting = Waiting()
    for patient in (item("patient", rank=2), item("other", rank=1)):
        waiting.add(patient)
    urgent = item("urgent", rank=0)
    for _ in range(MOST_OVERTAKEN):
        waiting.add(urgent)
        assert waiting.next_lane() == [urgent]
        waiting.take(urgent)
    waiting.add(urgent)

    assert [each.id for each in waiting.next_lane()] == ["patient"]
    assert [each.id for each in waiting.in_order()] == ["patient", "other", "urgent"]


def held_at_most(items: list[Item], written: Mapping[str, int], layers: Layers = WHOLE) -> float:
    """Return the most that the cache holds while these write on, each to its expected end, step by step."""
    left = {each.id: max(0, each.output - written.get(each.id, 0)) for each in items}

    def held(each: Item, step: int) -> float:
        tokens = each.prompt + written.get(each.id, 0) + step
        begun = written.get(each.id, 0) + step > 0
        windows = (
            share * min(tokens, window + (0 if begun else layers.in_flight))
            for window, share in layers.windows
        )
        return layers.full * tokens + sum(windows)

    return max(
        sum(held(each, step) for each in items if left[each.id] >= step)
        for step in range(max(left.values()) + 1)
    )


class Admission(RuleBasedStateMachine):
    """Arrivals, ends, cancellations, progress and a changing room, in any order."""

    policy_name: PolicyName
    capacity = ROOM

    def __init__(self) -> None:
        super().__init__()
        self.policy = policy_named(self.policy_name, LIMITS)
        self.now = 0.0
        self.waiting: dict[str, Item] = {}
        self.running: dict[str, Item] = {}
        self.started: list[Item] = []
        self.count = 0

    @rule(prompt=st.integers(1, 80), rank=st.integers(0, 2), output=st.integers(1, 50))
    def arrive(self, prompt: int, rank: int, output: int) -> None:
        self.count += 1
        new = item(str(self.count), prompt + output, rank, self.now, output=output)
        self.waiting[new.id] = new
        self.policy.offer(new)
        self.start()

    @rule(passed=st.floats(0.01, 2.0))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.start()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[name]
        self.policy.withdraw(name)
        self.start()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[name]
        self.policy.withdraw(name)
        self.start()

    @rule(slots=st.integers(1, 6), tokens=st.none() | st.integers(20, 120))
    def resize(self, slots: int, tokens: int | None) -> None:
        self.capacity = replace(self.capacity, slots=slots, tokens=tokens)
        self.start()

    @rule(steps=st.integers(1, 20))
    def write(self, steps: int) -> None:
        written = {name: self.capacity.written.get(name, 0) + steps for name in self.running}
        self.capacity = replace(self.capacity, written=written)
        self.start()

    def start(self) -> None:
        for start in self.policy.start(self.now, self.capacity):
            assert start == self.waiting.pop(start.id), "started twice, or never offered"
            self.running[start.id] = start
            self.keep_to_the_room(start)

    def keep_to_the_room(self, start: Item) -> None:
        tokens = held_at_most(list(self.running.values()), self.capacity.written, self.capacity.layers)
        assert len(self.running) <= self.capacity.slots
        if self.capacity.tokens is not None and tokens > self.capacity.tokens:
            assert start.tokens > self.capacity.tokens or self.capacity.layers.windows
            assert len(self.running) == 1

    @invariant()
    def all_that_waits_is_known(self) -> None:
        assert self.policy.waiting == len(self.waiting)

    def teardown(self) -> None:
        """Everything that still waits starts at last, once there is room."""
        while self.waiting:
            for name in list(self.running):
                del self.running[name]
                self.policy.withdraw(name)
            self.now += 2.0
            before = len(self.waiting)
            self.start()
            assert len(self.waiting) < before


class OrderedAdmission(Admission):
    def start(self) -> None:
        before = dict(self.waiting)
        super().start()
        for name in before.keys() - self.waiting.keys():
            started = before[name]
            assert not [
                each
                for each in self.waiting.values()
                if each.rank == started.rank and int(each.id) < int(started.id)
            ]


class ContinuousAdmission(OrderedAdmission):
    policy_name = PolicyName.CONTINUOUS


class WindowedAdmission(ContinuousAdmission):
    capacity = replace(ROOM, layers=Layers(full=0.4, windows=((10, 0.9), (30, 0.3)), in_flight=12))


class SteppedAdmission(ContinuousAdmission):
    capacity = replace(ROOM, step_tokens=30)

    def keep_to_the_room(self, start: Item) -> None:
        super().keep_to_the_room(start)
        ahead = [each for each in self.running.values() if each.rank <= start.rank]
        unread = sum(each.prompt for each in ahead if not self.capacity.written.get(each.id))
        assert unread - start.prompt < 2 * 30


class StaticAdmission(OrderedAdmission):
    policy_name = PolicyName.STATIC


class ShortestAdmission(Admission):
    policy_name = PolicyName.SHORTEST


class DynamicAdmission(Admission):
    policy_name = PolicyName.DYNAMIC


TestContinuousAdmission = ContinuousAdmission.TestCase
TestWindowedAdmission = WindowedAdmission.TestCase
TestSteppedAdmission = SteppedAdmission.TestCase
TestStaticAdmission = StaticAdmission.TestCase
TestShortestAdmission = ShortestAdmission.TestCase
TestDynamicAdmission = DynamicAdmission.TestCase
