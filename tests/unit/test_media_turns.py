"""Who gets a decoder next: lanes, flows and slow documents, without a clock."""

from collections.abc import Iterator

import pytest

from pecia_workers.media.turns import MOST_OVERTAKEN, SLOW_S, Call, Turn, Turns

URGENT, NORMAL, BULK = range(3)


def call(flow: str, rank: int = NORMAL, document: str | None = None) -> Call:
    return Call(Turn(rank=rank, flow=flow, document=document or flow))


def flows(calls: list[Call]) -> list[object]:
    return [call.turn.flow for call in calls]


class Decoders:
    """Processes in simulated time, whose pages take as long as their flows' do."""

    def __init__(self, processes: int, **takes: float) -> None:
        self.turns = Turns(processes, slow_s=SLOW_S)
        self._takes = takes
        self._ends: dict[Call, float] = {}
        self.now = 0.0

    def offer(self, calls: list[Call]) -> None:
        for new in calls:
            self.turns.offer(new)

    def run(self, until: float) -> Iterator[tuple[float, object]]:
        """Yield when each call is answered, and its flow."""
        while self.now < until:
            while (evicted := self.turns.evicted(self.now)) is not None:
                del self._ends[evicted]
                self.turns.withdraw(evicted, self.now)
                self.turns.offer(evicted)
            for started in self.turns.start(self.now):
                self._ends[started] = self.now + self._takes[str(started.turn.flow)]
            looks = [started.since + SLOW_S for started in self._ends if started.since + SLOW_S > self.now]
            self.now = min([*self._ends.values(), *looks, until])
            for ended in [ended for ended, end in self._ends.items() if end <= self.now]:
                del self._ends[ended]
                self.turns.withdraw(ended, self.now, answered=True)
                yield self.now, ended.turn.flow


def test_lanes_are_served_in_their_order_and_flows_by_turns() -> None:
    turns = Turns(1)
    calls = [call("one"), call("one"), call("bulk", BULK), call("other"), call("urgent", URGENT)]
    for new in calls:
        turns.offer(new)
    order = []
    for now in range(len(calls)):
        order += turns.start(now)
        turns.withdraw(order[-1], now + 1, answered=True)
    assert flows(order) == ["urgent", "one", "other", "one", "bulk"]


def test_a_flow_that_takes_longer_gets_no_more_time_than_others() -> None:
    decoders = Decoders(1, slow=20.0, quick=1.0)
    decoders.offer([call("slow", document=f"slow {page}") for page in range(10)])
    decoders.offer([call("quick") for _ in range(100)])
    served = list(decoders.run(until=82))
    assert [at for at, flow in served if flow == "slow"] == pytest.approx([20, 60], abs=2)
    assert sum(flow == "quick" for _, flow in served) == pytest.approx(40, abs=2)


def test_a_flow_that_comes_late_makes_up_for_nothing() -> None:
    turns, old = Turns(1), [call("old") for _ in range(8)]
    for new in old[:4]:
        turns.offer(new)
    for now in range(4):
        (served,) = turns.start(now)
        turns.withdraw(served, now + 1, answered=True)
    for new in [*old[4:], *(call("new") for _ in range(4))]:
        turns.offer(new)
    order = []
    for now in range(4, 8):
        order += turns.start(now)
        turns.withdraw(order[-1], now + 1, answered=True)
    assert sorted(map(str, flows(order))) == ["new", "new", "old", "old"]


@pytest.mark.parametrize("lane", [URGENT, NORMAL, BULK])
def test_slow_documents_leave_one_process_to_the_others_whatever_their_lane(lane: int) -> None:
    decoders = Decoders(2, one=20.0, two=20.0, good=0.1)
    decoders.offer([call(flow, lane) for flow in ("one", "two") for _ in range(10)])
    list(decoders.run(until=15))
    began = decoders.now
    decoders.offer([call("good") for _ in range(40)])
    good = [at for at, flow in decoders.run(until=60) if flow == "good"]
    assert len(good) == 40
    assert good[-1] - began == pytest.approx(40 * 0.1, abs=0.2)


def test_documents_that_are_not_known_yet_hold_a_process_for_seconds_at_most() -> None:
    decoders = Decoders(2, good=0.1, **{f"bad {number}": 60.0 for number in range(20)})
    decoders.offer([call(f"bad {number}") for number in range(20)])
    list(decoders.run(until=1))
    decoders.offer([call("good", URGENT) for _ in range(40)])
    good = [at for at, flow in decoders.run(until=30) if flow == "good"]
    assert len(good) == 40
    assert good[-1] <= 1 + SLOW_S + 40 * 0.1 + 0.2


def test_slow_documents_use_all_processes_while_nothing_else_waits_and_end() -> None:
    decoders = Decoders(4, slow=20.0)
    decoders.offer([call("slow") for _ in range(8)])
    assert [at for at, _ in decoders.run(until=41)] == [20.0] * 4 + [40.0] * 4


def test_a_slow_document_goes_on_beside_others_without_end() -> None:
    decoders = Decoders(2, slow=20.0, good=1.0)
    decoders.offer([call("slow") for _ in range(4)])
    decoders.offer([call("good") for _ in range(200)])
    served = list(decoders.run(until=100))
    assert sum(flow == "slow" for _, flow in served) >= 3


def test_a_flow_of_a_lower_lane_is_not_starved() -> None:
    decoders = Decoders(1, bulk=0.1, urgent=0.1)
    decoders.offer([call("urgent", URGENT) for _ in range(3 * MOST_OVERTAKEN)])
    decoders.offer([call("bulk", BULK) for _ in range(2)])
    order = [flow for _, flow in decoders.run(until=25)]
    places = [place for place, flow in enumerate(order) if flow == "bulk"]
    assert places == [MOST_OVERTAKEN, 2 * MOST_OVERTAKEN + 1]


@pytest.mark.parametrize(("seconds", "is_slow"), [(0.1, False), (SLOW_S, True)])
def test_a_document_is_as_slow_as_the_last_page_of_it(seconds: float, is_slow: bool) -> None:
    turns = Turns(2, slow_s=SLOW_S)
    for now, took in (0, 3 * SLOW_S), (10, seconds):
        turns.offer(page := call("one"))
        turns.start(now)
        turns.withdraw(page, now + took, answered=True)
    pages = [call("one"), call("one")]
    for page in pages:
        turns.offer(page)
    turns.start(20)
    turns.offer(call("other"))
    assert turns.evicted(20.1) is (pages[1] if is_slow else None)


def test_slow_calls_beyond_their_share_are_postponed_the_waiting_ones_first_and_come_back_spread() -> None:
    turns = Turns(2, slow_s=SLOW_S)
    turns.most_slow = 3
    calls = [call("slow") for _ in range(8)]
    for new in calls:
        turns.offer(new)
    turns.start(0)
    assert turns.postponed(0) is None
    for ended in calls[:2]:
        turns.withdraw(ended, 10, answered=True)
    turns.start(10)
    postponed = list(iter(lambda: turns.postponed(12), None))
    assert postponed == [(calls[7], 10.0), (calls[6], 20.0), (calls[5], 30.0)]


def test_what_is_alike_is_served_in_the_order_of_arrival_and_never_evicted() -> None:
    turns, calls = Turns(2), [Call(Turn()) for _ in range(4)]
    for new in calls:
        turns.offer(new)
    assert turns.start(0) == calls[:2]
    assert turns.evicted(1000) is None
    assert turns.postponed(1000) is None
