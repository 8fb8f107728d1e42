"""What stands between the stages and an engine, on the engine that iterates without a model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from limits import WAIT_S
from pecia_schemas import tracing
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher, Packing
from pecia_workers.batching.learned import ENOUGH, LearnedLengths, length_of, step_of
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.base import EngineDeadError, EngineRequest, Generation, Load
from pecia_workers.engines.simulated import BLOCK_TOKENS, DrawnLengths, IterationModel, SimulatedEngine
from pecia_workers.worker.attempts import clocked, waited_s
from virtual_time import FixedLength, VirtualClock

OUTPUT = 20
BUDGET = 2_000
"""Room for three of the requests below, at the length that the table expects."""


def engine(slots: int = 32) -> SimulatedEngine:
    model = IterationModel(max_num_seqs=slots, kv_blocks=BUDGET // BLOCK_TOKENS)
    return SimulatedEngine(model, FixedLength(OUTPUT), VirtualClock())


def asked(number: int, *, priority: int = 1, side: int = 280) -> EngineRequest:
    return EngineRequest(
        id=str(number),
        part=UUID(int=number),
        images=(np.zeros((side, side, 3), np.uint8),),
        workload=DocumentType.LAB_RESULT,
        priority=priority,
    )


class Desk:
    """A batcher, its engine, and what it said of prices."""

    def __init__(self, simulated: SimulatedEngine, policy: PolicyName = PolicyName.CONTINUOUS) -> None:
        self.engine = simulated
        self.lengths = LearnedLengths(0.75)
        self.prices: dict[UUID, int] = {}
        self.batcher = Batcher(
            simulated, policy_named(policy, BatchLimits()), self.lengths, priced=self.prices.__setitem__
        )


@asynccontextmanager
async def opened(desk: Desk) -> AsyncIterator[Desk]:
    await desk.engine.start()
    try:
        yield desk
    finally:
        await desk.engine.stop()


async def watched(desk: Desk) -> list[int]:
    """Return how many requests the engine held, for as long as this runs."""
    seen: list[int] = []
    while True:
        seen.append(desk.engine.load().running + desk.engine.load().waiting)
        if desk.batcher.packing.share is not None and not seen[-1]:
            return seen
        await asyncio.sleep(0)


async def test_the_engine_never_holds_more_than_its_tokens_allow() -> None:
    async with opened(Desk(engine())) as desk:
        looking = asyncio.create_task(watched(desk))
        await asyncio.gather(*(desk.batcher.generate(asked(number)) for number in range(12)))
        held, prices = await looking, desk.prices
    assert len(prices) == 12
    assert max(held) == BUDGET // max(prices.values())


async def test_the_shortest_is_who_is_expected_to_write_least() -> None:
    async with opened(Desk(engine(slots=1), PolicyName.SHORTEST)) as desk:
        ended: list[str] = []

        async def read(request: EngineRequest) -> None:
            await desk.batcher.generate(request)
            ended.append(request.workload)

        kinds = [DocumentType.LAB_RESULT, *[DocumentType.CHART] * 2, *[DocumentType.PRESCRIPTION] * 12]
        await asyncio.gather(
            *(read(replace(asked(number, side=28), workload=kind)) for number, kind in enumerate(kinds))
        )
        first, *others = ended
    assert first == DocumentType.LAB_RESULT, "it was alone when it came"
    assert others[:3] == [DocumentType.PRESCRIPTION] * 3
    assert others[-1] == DocumentType.PRESCRIPTION, "enough of them are kept to end with"


@pytest.mark.parametrize("given_up", [(1, 2, 3), (0, 1, 2, 3, 4)], ids=["some that wait", "all at once"])
async def test_what_is_given_up_leaves_its_place(given_up: tuple[int, ...]) -> None:
    async with opened(Desk(engine(slots=1))) as desk:
        waiting = [asyncio.create_task(desk.batcher.generate(asked(number))) for number in range(5)]
        await asyncio.sleep(0)
        for number in given_up:
            waiting[number].cancel()
        await asyncio.wait(waiting)
        assert [number for number in range(5) if waiting[number].cancelled()] == list(given_up)
        await desk.batcher.generate(asked(5))


class Mortal(SimulatedEngine):
    """Dies on what is in it, when it is told to."""

    def __init__(self) -> None:
        super().__init__(IterationModel(max_num_seqs=1))
        self.death = asyncio.Event()

    def load(self) -> Load:
        if self.death.is_set():
            raise EngineDeadError("killed")
        return super().load()

    async def generate(self, request: EngineRequest) -> Generation:
        await self.death.wait()
        raise EngineDeadError(f"killed with {request.id}")


async def test_what_waits_for_room_at_an_engine_that_dies_is_refused_at_once() -> None:
    engine = Mortal()
    desk = Desk(engine)
    reading = [asyncio.create_task(desk.batcher.generate(asked(number))) for number in range(3)]
    await asyncio.sleep(0)
    engine.death.set()
    for _ in range(20):  # turns of the loop, in which no time passes
        await asyncio.sleep(0)

    assert [task.done() and type(task.exception()) for task in reading] == [EngineDeadError] * 3
    assert desk.batcher.died_on == frozenset({UUID(int=0)})
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(desk.batcher.generate(asked(3)), WAIT_S)


async def test_a_later_urgent_request_enters_first() -> None:
    ended: list[int] = []

    async def read(number: int, priority: int) -> None:
        await desk.batcher.generate(asked(number, priority=priority))
        ended.append(number)

    async with opened(Desk(engine(slots=1))) as desk, asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(read(number, 2))
        await asyncio.sleep(0)
        group.create_task(read(3, 0))

    assert ended == [0, 3, 1, 2]


async def test_an_output_that_was_seen_often_is_what_the_next_is_expected_to_be() -> None:
    async with opened(Desk(engine())) as desk:
        for number in range(ENOUGH + 1):
            await desk.batcher.generate(asked(number))
        first, learned = desk.prices[UUID(int=0)], desk.prices[UUID(int=ENOUGH)]
    assert first - learned == 400 - length_of(step_of(OUTPUT))


async def test_packing_is_the_kv_cache_in_use_while_others_wait() -> None:
    model = IterationModel(kv_blocks=BUDGET // BLOCK_TOKENS)
    async with opened(Desk(SimulatedEngine(model, DrawnLengths(), VirtualClock()))) as desk:
        await desk.batcher.generate(asked(0))
        alone = desk.batcher.packing.share
        await asyncio.gather(*(desk.batcher.generate(asked(number)) for number in range(1, 20)))
        crowded = desk.batcher.packing.share
    assert alone is None
    assert crowded is not None
    assert 0.1 < crowded < 1


def test_packing_is_the_mean_over_the_time_in_which_something_waited() -> None:
    packing = Packing()
    for used, now, waiting in ((0.5, 10, 1), (1.0, 12, 2), (0.2, 13, 0), (0.9, 100, 1)):
        packing.look(used, now, waiting=waiting)
    assert packing.share == pytest.approx((2 * 0.5 + 1 * 1.0) / 3)


async def test_the_span_of_a_request_tells_what_was_reserved_for_it() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    try:
        async with opened(Desk(engine())) as desk:
            with tracing.under(f"00-{1:032x}-{1:016x}-01", "read"):
                await desk.batcher.generate(asked(0))
    finally:
        tracing.disable()
        provider.shutdown()
    attributes = {span.name: span.attributes or {} for span in exporter.get_finished_spans()}
    assert attributes["chat iteration-level"]["pecia.cost"] == desk.prices[UUID(int=0)]


async def test_a_part_that_waits_for_room_does_not_work() -> None:
    async def waited(desk: Desk, number: int) -> float:
        request = asked(number)
        assert request.part
        with clocked(request.part):
            await desk.batcher.generate(request)
            return waited_s(str(request.part))

    async with opened(Desk(engine(slots=1))) as desk:
        assert min(await asyncio.gather(waited(desk, 1), waited(desk, 2))) > 0
