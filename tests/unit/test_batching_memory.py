"""An engine that runs out of memory: the work is done all the same, by fewer requests at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_workers.batching.admission import Capacity
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import Headroom, LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.simulated import (
    BLOCK_TOKENS,
    Iteration,
    IterationModel,
    IterationScheduler,
    SimulatedEngine,
)
from pecia_workers.engines.simulated import Sequence as EngineSequence
from pecia_workers.protocol.base import Budget, EngineOverloadedError, EngineRequest, Generation, Load
from tests.shared.limits import WAIT_S
from tests.shared.samples import engine_request
from tests.shared.virtual_time import FixedLength, VirtualClock

OUTPUT = 20
IDLE = Load(running=0, waiting=0)
SIDES = (56, 140, 280, 420)


def largest(requests: Sequence[EngineRequest]) -> int:
    """Return the memory that the largest of the requests takes alone, in tokens."""
    return max(request.prompt_tokens for request in requests) + OUTPUT


class Overflowing(IterationScheduler):
    """Nothing that runs survives an iteration that is larger than the memory."""

    def __init__(
        self, model: IterationModel, memory_tokens: int, run_out: Callable[[EngineSequence], None]
    ) -> None:
        super().__init__(model)
        self._memory_tokens = memory_tokens
        self._run_out = run_out

    def step(self) -> Iteration:
        iteration = super().step()
        held = [one.computed for one in self.running]
        held += [one.prompt + one.output for one in iteration.finished]
        if sum(held) <= self._memory_tokens:
            return iteration
        for sequence in (*self.running, *iteration.finished):
            self.remove(sequence)
            self._run_out(sequence)
        return replace(iteration, started=(), finished=())


class Counted(SimulatedEngine):
    """The simulated engine with memory for so many tokens, which counts the tries and how many of them found none."""

    def __init__(self, memory_tokens: int) -> None:
        super().__init__(
            IterationModel(kv_blocks=200_000 // BLOCK_TOKENS), FixedLength(OUTPUT), VirtualClock()
        )
        self._scheduler = Overflowing(self._scheduler.model, memory_tokens, self.run_out)
        self.tries = self.overloaded = 0

    def run_out(self, sequence: EngineSequence) -> None:
        if (running := self._running.get(sequence)) and not running.ended.done():
            running.ended.set_exception(EngineOverloadedError("The engine ran out of memory."))

    async def generate(self, request: EngineRequest) -> Generation:
        self.tries += 1
        try:
            return await super().generate(request)
        except EngineOverloadedError:
            self.overloaded += 1
            raise


def ends_of(
    engine: Counted, policy: PolicyName, requests: Sequence[EngineRequest]
) -> list[Generation | BaseException]:
    """Return what came of the requests, all at once."""

    async def story() -> list[Generation | BaseException]:
        admits = policy_named(policy, BatchLimits())
        batcher = Batcher(engine, admits, LearnedLengths(0.75), priced=lambda *_: None)
        await engine.start()
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.gather(*map(batcher.generate, requests), return_exceptions=True)
        finally:
            await engine.stop()

    return asyncio.run(story())


@given(
    sides=st.lists(st.sampled_from(SIDES), min_size=1, max_size=40),
    beside=st.integers(0, 6),
    policy=st.sampled_from((PolicyName.CONTINUOUS, PolicyName.DYNAMIC)),
)
def test_what_fits_alone_is_answered_in_few_tries(sides: list[int], beside: int, policy: PolicyName) -> None:
    requests = [engine_request(str(number), side) for number, side in enumerate(sides)]
    engine = Counted(largest(requests) * (1 + beside))
    assert all(isinstance(end, Generation) for end in ends_of(engine, policy, requests))
    # Halved at each shortage, what is inside is one request after the sixth at the latest.
    assert engine.tries <= len(requests) + engine.overloaded
    assert engine.overloaded <= 2 * len(requests) + 6


def test_what_does_not_fit_alone_fails_and_the_others_do_not() -> None:
    requests = [engine_request(str(number), 56) for number in range(8)]
    engine = Counted(largest(requests) * 2)
    *fine, too_large = ends_of(engine, PolicyName.CONTINUOUS, [*requests, engine_request("8", 1120)])
    assert all(isinstance(end, Generation) for end in fine)
    assert isinstance(too_large, EngineOverloadedError)


@pytest.mark.parametrize(
    ("budget", "halved", "whole"),
    [
        (
            Budget(slots=32, tokens=1000, block=16),
            Capacity(slots=32, tokens=200, block=16),
            Capacity(slots=32, tokens=1000, block=16),
        ),
        (Budget(slots=10, tokens=None), Capacity(slots=2, tokens=None), Capacity(slots=10, tokens=None)),
    ],
)
def test_half_of_the_use_is_left_and_time_brings_it_back(
    budget: Budget, halved: Capacity, whole: Capacity
) -> None:
    headroom = Headroom()
    assert headroom.capacity(budget, IDLE, 0) == whole
    for number in range(4):
        headroom.enter(str(number), 100)
    assert all(headroom.ran_out(str(number), budget) for number in range(4))
    assert headroom.capacity(budget, IDLE, 0) == halved
    assert headroom.capacity(budget, IDLE, 600) == whole


def test_an_engine_that_died_of_several_leaves_less_room_and_one_that_died_of_one_page_does_not() -> None:
    crowded, alone = Headroom(), Headroom()
    for name in ("b", "a"):
        crowded.enter(name, 50)
    alone.enter("a", 50)

    for headroom in (crowded, alone):
        headroom.died("a")
    crowded.died("b")

    assert (crowded.memory, crowded.engine_died) == (0.5, True)
    assert (alone.memory, alone.engine_died) == (1.0, False)


def test_one_request_always_has_room() -> None:
    budget, headroom = Budget(slots=4, tokens=100), Headroom()
    for round_ in range(50):
        for name in ("a", "b"):
            headroom.enter(f"{name}{round_}", 1)
        assert headroom.ran_out(f"a{round_}", budget)
        for name in ("a", "b"):
            headroom.leave(f"{name}{round_}")
    assert headroom.capacity(budget, IDLE, 0) == Capacity(slots=4, tokens=1)
