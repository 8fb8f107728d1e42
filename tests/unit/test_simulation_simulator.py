"""When pages arrive, and what no simulated run may ever do, whatever arrives, by whichever policy."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.simulated import BLOCK_TOKENS, IterationModel
from pecia_workers.simulation.requests import Mix, Request, TraceError, bursts, drawn, poisson, read_trace
from pecia_workers.simulation.scenarios import simulated
from pecia_workers.simulation.simulator import IterationMachine, Machine, Run, Simulator, SlotMachine


def test_random_arrivals_have_their_rate_and_a_spread_of_their_own() -> None:
    moments = poisson(5_000, 4.0, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1), (
        "exponential"
    )


def test_bursts_arrive_together_and_keep_the_rate() -> None:
    assert bursts(5, rate=2.0, size=2) == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", "arrived,document_type,lane,output\n0.5,chart,urgent,1200\n2,,,\n"),
        (
            "trace.jsonl",
            '{"arrived": 0.5, "document_type": "chart", "lane": "urgent", "output": 1200}\n{"arrived": 2}\n',
        ),
    ],
)
def test_a_trace_is_read_from_a_table_or_lines(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)

    first, second = read_trace(path, seed=1)

    assert (first.arrived, first.workload, first.lane, first.output) == (
        0.5,
        DocumentType.CHART,
        Lane.URGENT,
        1200,
    )
    assert (second.arrived, second.workload, second.lane) == (2, DocumentType.MIXED, Lane.NORMAL)
    assert second.output > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line"),
        ("not json\n", "Line 1 of the trace is not JSON"),
        ("[1]\n", "Line 1 of the trace is no JSON object"),
        ('{"arrived": 1}\n{"arrived": -1}\n', "Line 2 of the trace: arrived"),
        ('{"arrived": 1, "patient": "x"}\n', "Line 1 of the trace: patient"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path, seed=1)


LIMITS = BatchLimits(least=2, most=5, tokens=4_000, concurrent=2, window_s=0.05)
MODEL = IterationModel(max_num_seqs=6, kv_blocks=400, max_num_batched_tokens=1_000)

arriving = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.sampled_from(DocumentType),
        st.integers(1, 900),
        st.integers(1, 900),
        st.sampled_from(Lane),
    ),
    min_size=1,
    max_size=25,
)
Drawn = list[tuple[float, DocumentType, int, int, Lane]]


def requests(of: Drawn) -> list[Request]:
    return [
        Request(id=str(number), arrived=arrived, workload=workload, prompt=prompt, output=output, lane=lane)
        for number, (arrived, workload, prompt, output, lane) in enumerate(of)
    ]


def machines() -> list[Machine]:
    return [
        IterationMachine(MODEL),
        SlotMachine(4, 0.01, leave_together=False),
        SlotMachine(4, 0.01, leave_together=True),
    ]


def run(policy: PolicyName, machine: Machine, of: list[Request], ahead: int | None = None) -> Run:
    return Simulator(policy_named(policy, LIMITS), machine, LearnedLengths(0.75), ahead=ahead).run(of)


@given(
    of=arriving,
    policy=st.sampled_from(PolicyName),
    kind=st.integers(0, 2),
    ahead=st.none() | st.integers(1, 9),
)
def test_all_that_arrives_is_served_once_not_before_and_within_the_budget(
    of: Drawn, policy: PolicyName, kind: int, ahead: int | None
) -> None:
    machine = machines()[kind]
    done = run(policy, machine, requests(of), ahead)

    assert sorted(int(one.request.id) for one in done.served) == list(range(len(of)))
    for one in done.served:
        assert one.request.arrived <= one.started < one.first_token <= one.ended + 1e-9
    for use in done.use:
        assert use.running <= machine.budget.slots
        if machine.budget.tokens is not None:
            assert use.kv_used is not None
            assert 0 <= use.kv_used <= 1
        assert use.busy <= 1 + 1e-9


@pytest.mark.parametrize(
    "types", [{DocumentType.MIXED: 1}, {DocumentType.PRESCRIPTION: 3, DocumentType.CHART: 1}]
)
def test_the_cache_is_full_and_hardly_overflows(types: dict[DocumentType, float]) -> None:
    of = drawn([0.0] * 300, Mix(types=types), 1)
    model = IterationModel(max_num_seqs=256, kv_blocks=65_536 // BLOCK_TOKENS)
    alone = IterationMachine(model)
    alone.enter(of, 0.0)
    passed, ended = 0.0, 0
    while ended < len(of):
        done = alone.run(passed, math.inf)
        passed, ended = done.now, ended + len(done.ended)
    found = simulated(PolicyName.CONTINUOUS, of, model, ahead=16).figures

    assert found.total < 1.02 * passed
    assert found.preemptions < alone.load().preemptions / 4


@given(of=arriving, policy=st.sampled_from([PolicyName.CONTINUOUS, PolicyName.SHORTEST]))
def test_no_slot_is_empty_while_something_waits(of: Drawn, policy: PolicyName) -> None:
    done = run(policy, SlotMachine(4, 0.01, leave_together=False), requests(of))
    assert all(use.running == 4 or not use.waiting for use in done.use)


def test_the_same_seed_draws_the_same_and_another_another() -> None:
    mix = Mix(
        types={DocumentType.CHART: 1, DocumentType.PRESCRIPTION: 3}, lanes={Lane.URGENT: 1, Lane.BULK: 4}
    )
    assert drawn(poisson(50, 2.0, 7), mix, 7) == drawn(poisson(50, 2.0, 7), mix, 7)
    assert drawn(poisson(50, 2.0, 7), mix, 7) != drawn(poisson(50, 2.0, 8), mix, 8)


def test_urgent_pages_wait_less_than_bulk_ones() -> None:
    mix = Mix(lanes={Lane.URGENT: 1, Lane.BULK: 9})
    found = simulated(PolicyName.CONTINUOUS, drawn([0.0] * 200, mix, 1), IterationModel(), ahead=16).figures
    assert found.lanes[Lane.URGENT].mean < found.lanes[Lane.BULK].mean / 2


def test_a_chunked_prompt_keeps_those_who_write_waiting_less() -> None:
    mix = Mix(types={DocumentType.PRESCRIPTION: 1})
    arriving = drawn(poisson(60, 4.0, 3), mix, 3)
    whole, chunked = IterationMachine(IterationModel()), IterationMachine(IterationModel(chunk_tokens=512))
    for machine in (whole, chunked):
        run(PolicyName.CONTINUOUS, machine, arriving)
    assert chunked.longest_iteration < whole.longest_iteration / 3


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_what_gives_way_for_want_of_memory_is_served_all_the_same(preemption: str) -> None:
    of = [
        Request(id=str(number), arrived=0.0, workload=DocumentType.PRESCRIPTION, prompt=100, output=900)
        for number in range(12)
    ]
    model = IterationModel(
        kv_blocks=4_000 // BLOCK_TOKENS, preemption="swap" if preemption == "swap" else "recompute"
    )
    done = run(PolicyName.CONTINUOUS, IterationMachine(model), of)

    assert done.preemptions > 0
    assert len(done.served) == len(of)


def test_lengths_are_learned_from_what_has_ended() -> None:
    of = [
        Request(id=str(number), arrived=number / 2, workload=DocumentType.PRESCRIPTION, prompt=100, output=64)
        for number in range(60)
    ]
    prices = [one.price for one in run(PolicyName.CONTINUOUS, IterationMachine(MODEL), of).served]
    assert (prices[0], prices[-1]) == (300, 164)
