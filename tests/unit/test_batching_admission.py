"""Prompts that wait inside an engine are bounded, and lower lanes yield to an urgent request but for their share."""

import random
from dataclasses import replace

from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.admission import LOOK_AGAIN_S, Capacity, Item
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import MOST_OVERTAKEN, ContinuousPolicy
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.simulation.requests import Request
from pecia_workers.simulation.scenarios import Figures, figures
from pecia_workers.simulation.simulator import IterationMachine, Simulator

STEP = Capacity(slots=1000, tokens=None, step_tokens=100)


def item(name: str, lane: Lane = Lane.BULK, prompt: int = 50) -> Item:
    return Item(id=name, prompt=prompt, output=10, rank=lane.rank, arrived=0.0)


def offered(policy: ContinuousPolicy, count: int, lane: Lane = Lane.BULK) -> None:
    for number in range(count):
        policy.offer(item(f"{lane}{number}", lane))


def names(starts: list[Item]) -> list[str]:
    return [start.id for start in starts]


def test_two_steps_of_prompts_wait_inside_and_the_rest_follows_as_they_are_read() -> None:
    policy = ContinuousPolicy()
    offered(policy, 10)
    assert len(policy.start(0, STEP)) == 4
    assert policy.due(0) == LOOK_AGAIN_S
    assert names(policy.start(1, replace(STEP, written={"bulk0": 1, "bulk1": 1}))) == ["bulk4", "bulk5"]


def test_an_engine_that_reports_nothing_takes_all_that_fit() -> None:
    policy = ContinuousPolicy()
    offered(policy, 10)
    offered(policy, 1, Lane.URGENT)
    assert len(policy.start(0, replace(STEP, step_tokens=None))) == 11
    assert policy.due(0) is None


def test_an_urgent_request_passes_the_prompts_of_lower_lanes() -> None:
    policy = ContinuousPolicy()
    offered(policy, 10)
    policy.start(0, STEP)
    offered(policy, 1, Lane.URGENT)
    assert names(policy.start(0, STEP)) == ["urgent0"]


def test_lower_lanes_begin_at_their_share_while_an_urgent_request_is_inside() -> None:
    policy = ContinuousPolicy(beside_urgent=0.1)
    offered(policy, 10)
    offered(policy, 1, Lane.URGENT)
    assert names(policy.start(0, STEP)) == ["urgent0", "bulk0"]

    read = {"urgent0": 1, "bulk0": 1}
    assert not policy.start(2.0, replace(STEP, written=read)), "half of the two seconds were its own, of ten"
    assert policy.due(2.0) == LOOK_AGAIN_S
    assert not policy.start(9.9, replace(STEP, written=read))
    assert names(policy.start(10.1, replace(STEP, written=read))) == ["bulk1"]
    assert not policy.start(99.0, replace(STEP, written=read)), "not before the last one has been read"

    policy.withdraw("urgent0")
    assert len(policy.start(99.1, replace(STEP, written=read))) == 3


def test_a_share_of_one_holds_nothing() -> None:
    policy = ContinuousPolicy(beside_urgent=1)
    offered(policy, 3)
    offered(policy, 1, Lane.URGENT)
    assert len(policy.start(0, STEP)) == 4


def test_a_request_that_was_overtaken_too_often_yields_to_nothing() -> None:
    policy = ContinuousPolicy(beside_urgent=0.001)
    offered(policy, 2)
    written: dict[str, int] = {}
    started: list[str] = []
    for number in range(2 * MOST_OVERTAKEN):
        policy.offer(item(f"urgent{number}", Lane.URGENT))
        started += names(policy.start(number, replace(STEP, written=written)))
        written |= dict.fromkeys(started, 1)
        policy.withdraw(f"urgent{number - 1}")
    assert [name for name in started if name.startswith("bulk")] == ["bulk0", "bulk1"]


H200 = IterationModel(
    max_num_seqs=128,
    max_num_batched_tokens=16_384,
    kv_blocks=132_144,
    base_s=0.0041,
    prefill_token_s=1 / 23_600,
    decode_sequence_s=0.000_09,
)
"""Speeds measured on an H200 with a model of 7 B at 4 bits, pages of 2,879 tokens and 400 written."""


def page(name: str, lane: Lane, arrived: float, rng: random.Random) -> Request:
    output = max(20, int(352 * rng.lognormvariate(0, 0.5)))
    return Request(
        id=name, arrived=arrived, workload=DocumentType.MIXED, prompt=2_879, output=output, lane=lane
    )


def run(requests: list[Request], policy: ContinuousPolicy) -> Figures:
    simulator = Simulator(policy, IterationMachine(H200), LearnedLengths(0.5), ahead=150)
    return figures(simulator.run(requests), batches=False)


def test_an_urgent_page_on_a_full_h200_takes_at_most_four_times_its_time_alone() -> None:
    rng = random.Random(1)  # noqa: S311  a workload, no secret
    urgent = [page(f"urgent{number}", Lane.URGENT, 20 + 50.0 * number, rng) for number in range(3)]
    bulk = [page(f"bulk{number}", Lane.BULK, 0.0, rng) for number in range(1_000)]
    alone = run(urgent, ContinuousPolicy())
    beside = run([*bulk, *urgent], ContinuousPolicy())
    held_back = run([*bulk, *urgent], ContinuousPolicy(beside_urgent=1))
    assert beside.lanes[Lane.URGENT].p95 <= 4 * alone.in_system.mean
    assert held_back.lanes[Lane.URGENT].p95 > 4 * alone.in_system.p95
    assert beside.requests_per_s >= 0.97 * run(bulk, ContinuousPolicy()).requests_per_s
