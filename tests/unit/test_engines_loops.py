"""When a text is a loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_workers.engines.in_flight import LOOPS, is_loop

LEAST, MOST, COUNT = LOOPS["min_pattern_size"], LOOPS["max_pattern_size"], LOOPS["min_count"]
patterns = st.lists(st.text(max_size=3), min_size=LEAST, max_size=MOST)


@given(before=st.lists(st.text(max_size=3), max_size=30), pattern=patterns)
def test_a_pattern_often_enough_at_the_end_is_a_loop(before: list[str], pattern: list[str]) -> None:
    assert is_loop([*before, *pattern * COUNT])


@pytest.mark.parametrize("size", [LEAST, MOST])
def test_a_pattern_that_comes_less_often_is_none(size: int) -> None:
    pattern = [str(number) for number in range(size)]
    assert not is_loop(["before", *pattern * COUNT][2:])
    assert not is_loop([*pattern * COUNT, "after"])


def test_a_short_pattern_is_a_loop_once_it_is_as_long_as_the_shortest() -> None:
    assert not is_loop(["|"] * (LEAST * COUNT - 1))
    assert is_loop(["|"] * (LEAST * COUNT))


def test_a_long_pattern_may_come_again() -> None:
    assert not is_loop([str(number) for number in range(MOST + 1)] * COUNT)
