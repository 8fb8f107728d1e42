"""What was learned: how long an output will be, and how much of the budget may be used."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.tasks import EXPECTED_OUTPUT_TOKENS, DocumentType
from pecia_workers.batching.learned import (
    ENOUGH,
    STEPS,
    Headroom,
    LearnedLengths,
    length_of,
    quantile,
    step_of,
)
from pecia_workers.protocol.base import Budget, Load

BUDGET = Budget(slots=8, tokens=1_000)
LENGTHS = st.lists(st.integers(1, 100_000), min_size=ENOUGH, max_size=200)


def having_seen(lengths: list[int], share: float = 0.75) -> LearnedLengths:
    learned = LearnedLengths(share)
    for length in lengths:
        learned.observe(DocumentType.CHART, length)
    return learned


def test_the_table_is_believed_until_enough_was_seen_of_the_same_workload() -> None:
    assert having_seen([10] * (ENOUGH - 1)).expected("chart") == EXPECTED_OUTPUT_TOKENS["chart"]
    assert having_seen([10] * ENOUGH).expected("chart") == length_of(step_of(10))
    assert having_seen([10] * ENOUGH).expected("prescription") == EXPECTED_OUTPUT_TOKENS["prescription"]


@given(tokens=st.integers(1, 131_072))
def test_a_step_is_named_by_its_longest_length_at_most_a_fifth_too_long(tokens: int) -> None:
    assert tokens <= length_of(step_of(tokens)) <= tokens * 2**0.25


@given(weights=st.lists(st.floats(0, 100), min_size=STEPS, max_size=STEPS).filter(any))
def test_a_larger_share_expects_no_less(weights: list[float]) -> None:
    sums = [0.0, *accumulate(weights)]
    found = [quantile(sums, share / 10) for share in range(1, 10)]
    assert found == sorted(found)


@given(lengths=LENGTHS, share=st.floats(0.05, 0.95), written=st.just(0) | st.integers(0, 200_000))
def test_an_expectation_lies_within_a_step_of_what_was_longer_and_that_share_of_it_is_no_longer(
    lengths: list[int], share: float, written: int
) -> None:
    learned = having_seen(lengths, share)
    longer = [length for length in lengths if step_of(length) >= step_of(written + 1)]
    expected = learned.expected("chart", written)
    assert expected >= written
    if longer and written < length_of(STEPS - 1):
        assert min(longer) <= expected <= max(longer) * 2**0.25
        assert sum(length <= expected for length in longer) >= share * len(longer) - 1e-6


def test_what_is_longer_than_all_that_was_seen_goes_on_for_a_quarter() -> None:
    assert having_seen([10] * ENOUGH).expected("chart", 400) == 500
    assert having_seen([]).expected("chart", EXPECTED_OUTPUT_TOKENS["chart"]) == 2_500


def test_what_was_seen_is_handed_out_once_and_can_be_put_back() -> None:
    learned = having_seen([10] * ENOUGH)
    seen = learned.take_seen()
    assert sum(seen["chart"]) == ENOUGH
    assert learned.take_seen() == {}
    learned.put_back(seen)
    assert learned.expected("chart") == length_of(step_of(10))


def test_what_the_fleet_knows_and_what_was_seen_here_count_together() -> None:
    fleet = having_seen([1_000] * 60).take_seen()
    learned = having_seen([10] * 20)
    learned.learn(fleet)
    assert learned.expected("chart") == length_of(step_of(1_000))


def load(kv_used: float = 0.5, preemptions: int = 0) -> Load:
    return Load(running=1, waiting=0, kv_used=kv_used, preemptions=preemptions)


def test_each_preemption_makes_it_smaller_and_air_lets_it_grow_again() -> None:
    headroom = Headroom()
    shares = []
    for now, kv_used in enumerate((0.5, 0.95, 0.5)):
        headroom.capacity(BUDGET, load(kv_used, preemptions=1), now)
        shares.append(headroom.cache)
    assert shares == pytest.approx([0.95, 0.95, 0.97])


@given(looks=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.floats(0, 100))))
def test_it_never_leaves_its_bounds(looks: list[tuple[float, int, float]]) -> None:
    headroom, now, preempted = Headroom(), 0.0, 0
    for kv_used, more, passed in looks:
        now, preempted = now + passed, preempted + more
        headroom.capacity(BUDGET, load(kv_used, preempted), now)
        assert 0.5 <= headroom.cache <= 1.0
