"""The formulas of the product's requirements, and the comparison that it grew out of, to the digit."""

import math

import pytest

from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, BatchPolicy, ContinuousPolicy, PolicyName
from pecia_workers.engines.models import KvShape
from pecia_workers.simulation.requests import Request
from pecia_workers.simulation.scenarios import SLOTS, TOKEN_S, Figures, figures, seed_requests, simulated_seed
from pecia_workers.simulation.simulator import Simulator, SlotMachine

BATCH = (2, 5, 1, 8)


def of_slots(seconds: tuple[int, ...], slots: int, *, static: bool = False) -> Figures:
    """Return what becomes of requests that are there at the start, each for so many seconds in its slot."""
    requests = [
        Request(id=str(number), arrived=0.0, workload=DocumentType.MIXED, prompt=0, output=output)
        for number, output in enumerate(seconds)
    ]
    whole = BatchLimits(least=slots, most=slots, tokens=math.inf, concurrent=1)
    policy = BatchPolicy(whole, similar=False) if static else ContinuousPolicy()
    machine = SlotMachine(slots, 1.0, leave_together=static)
    return figures(Simulator(policy, machine, LearnedLengths(0.5)).run(requests), batches=static)


def test_a_static_batch_of_2_5_1_and_8_seconds_does_half_a_request_a_second_half_idle() -> None:
    found = of_slots(BATCH, 4, static=True)

    assert found.requests_per_s == pytest.approx(4 / 8)
    assert found.utilisation == pytest.approx(sum(BATCH) / (4 * 8))


def test_a_refill_at_once_gains_the_longest_by_the_mean() -> None:
    static, continuous = (of_slots(BATCH * 100, 4, static=static) for static in (True, False))

    assert continuous.requests_per_s == pytest.approx(4 / 4.0, rel=0.02)
    assert continuous.requests_per_s / static.requests_per_s == pytest.approx(8 / 4.0, rel=0.02)


@pytest.mark.parametrize(("lengths", "padding"), [((100, 50, 50), 1 / 3), ((7, 7), 0)])
def test_padding_is_what_is_missing_to_the_longest(lengths: tuple[int, ...], padding: float) -> None:
    assert of_slots(lengths, len(lengths), static=True).padding == pytest.approx(padding)


@pytest.mark.parametrize(
    ("shape", "tokens", "sequences", "megabytes"),
    [
        (KvShape(layers=6, kv_heads=12, head_dim=64, dtype_bytes=4), 100, 4, 14.75),
        (KvShape(layers=32, kv_heads=32, head_dim=128), 2048, 32, 34_359.7),
        (KvShape(layers=32, kv_heads=32, head_dim=128), 2048, 1, 1_073.7),
        (KvShape(layers=28, kv_heads=4, head_dim=128), 1, 1, 0.057_344),
    ],
    ids=["small", "batch of 32", "hidden 4096", "grouped queries"],
)
def test_the_cache_takes_its_bytes(shape: KvShape, tokens: int, sequences: int, megabytes: float) -> None:
    assert shape.bytes_per_token * tokens * sequences / 1e6 == pytest.approx(megabytes, rel=0.003)


@pytest.fixture(scope="module")
def found() -> dict[PolicyName, Figures]:
    return {name: simulated_seed(name).figures for name in PolicyName}


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
