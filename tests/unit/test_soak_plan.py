"""What a soak does follows from its seed alone."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from tests.soak.catalogue import FAULTS
from tests.soak.plan import plan
from tests.soak.workload import Shape, orders

SEEDS = st.integers(min_value=0, max_value=10**6)


@given(seed=SEEDS, rounds=st.integers(1, 3), pages=st.integers(10, 5_000))
def test_a_seed_says_when_each_fault_strikes_each_as_often_in_order_and_while_pages_are_read(
    seed: int, rounds: int, pages: int
) -> None:
    strikes, again = (
        plan(seed, pages=pages, faults=list(FAULTS), count=rounds * len(FAULTS)) for _ in range(2)
    )
    marks = [strike.mark for strike in strikes]
    assert strikes == again
    assert sorted(strike.fault for strike in strikes) == sorted(list(FAULTS) * rounds)
    assert marks == sorted(marks)
    assert 0 <= marks[0] <= marks[-1] < pages


def test_another_seed_breaks_them_in_another_order() -> None:
    one, other = (plan(seed, pages=2_000, faults=list(FAULTS), count=len(FAULTS)) for seed in (1, 2))
    assert [strike.fault for strike in one] != [strike.fault for strike in other]


def test_the_same_seed_hands_over_the_same_documents() -> None:
    one, same = (list(islice(orders(7), 200)) for _ in range(2))
    assert one == same
    assert {order.shape for order in one} == set(Shape)
    assert [order.draw() for order in one if order.shape is Shape.PICTURE] == [
        order.draw() for order in same if order.shape is Shape.PICTURE
    ]


def test_no_document_looks_like_another() -> None:
    documents = [order.draw() for order in islice(orders(7), 50)]
    assert len(set(documents)) == len(documents)
