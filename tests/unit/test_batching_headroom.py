"""How much of the budget is used, by what the engine says of itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_workers.batching.learned import Headroom
from pecia_workers.engines.base import Budget, Load

BUDGET = Budget(slots=8, tokens=1_000)


def load(kv_used: float = 0.5, preemptions: int = 0) -> Load:
    return Load(running=1, waiting=0, kv_used=kv_used, preemptions=preemptions)


def test_each_preemption_makes_it_smaller_and_air_lets_it_grow_again() -> None:
    headroom = Headroom()
    shares = []
    for now, kv_used in enumerate((0.5, 0.95, 0.5)):
        headroom.room(BUDGET, load(kv_used, preemptions=1), now)
        shares.append(headroom.cache)
    assert shares == pytest.approx([0.95, 0.95, 0.97])


@given(looks=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.floats(0, 100))))
def test_it_never_leaves_its_bounds(looks: list[tuple[float, int, float]]) -> None:
    headroom, now, preempted = Headroom(), 0.0, 0
    for kv_used, more, passed in looks:
        now, preempted = now + passed, preempted + more
        headroom.room(BUDGET, load(kv_used, preempted), now)
        assert 0.5 <= headroom.cache <= 1.0
