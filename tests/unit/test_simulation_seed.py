"""The comparison that the product grew out of, to the digit, and what the worker's own policies make of it."""

import pytest

from pecia_workers.batching.policies import PolicyName
from pecia_workers.simulation.scenarios import SLOTS, TOKEN_S, Figures, seed_requests, simulated_seed


@pytest.fixture(scope="module")
def found() -> dict[PolicyName, Figures]:
    return {name: simulated_seed(name).figures for name in PolicyName}


def test_the_gain_is_that_of_the_source(found: dict[PolicyName, Figures]) -> None:
    continuous, static = found[PolicyName.CONTINUOUS], found[PolicyName.STATIC]
    gain = round(continuous.requests_per_s, 2) / round(static.requests_per_s, 2) - 1
    assert f"{gain:.1%}" == "124.8%"


def test_the_shortest_first_is_sooner_done_and_waits_less(found: dict[PolicyName, Figures]) -> None:
    shortest, continuous = found[PolicyName.SHORTEST], found[PolicyName.CONTINUOUS]
    assert shortest.total <= 71.5
    assert shortest.in_system.mean < continuous.in_system.mean
    assert shortest.total >= sum(one.output for one in seed_requests()) * TOKEN_S / SLOTS, "the floor"


def test_the_order_of_the_shortest_first_does_not_depend_on_lengths_yet_unknown() -> None:
    """All is admitted by type and arrival: the same types with other times start in the same order."""
    run = simulated_seed(PolicyName.SHORTEST, ahead=None).run
    known = {one.price for one in run.served}
    assert known == {200, 400, 800, 2000}, "the product's table, not a drawn length"


def test_dynamic_batches_of_like_lengths_pad_less_than_static_ones(found: dict[PolicyName, Figures]) -> None:
    dynamic, static = found[PolicyName.DYNAMIC], found[PolicyName.STATIC]
    assert dynamic.padding is not None
    assert static.padding is not None
    assert dynamic.padding < static.padding
    assert dynamic.total < static.total
