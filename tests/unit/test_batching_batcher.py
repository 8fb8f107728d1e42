"""What stands between the stages and an engine, on the engine that iterates without a model."""

import asyncio
from time import monotonic
from typing import Any, Self
from uuid import UUID

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pecia_schemas import tracing
from pecia_schemas.results import Summary, Timings, Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher, Meter, Packing
from pecia_workers.batching.learned import ENOUGH, LearnedLengths, length_of, step_of
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.simulated import BLOCK_TOKENS, IterationModel, SimulatedEngine
from pecia_workers.protocol.base import EngineDeadError, EngineRequest, Generation, Load
from pecia_workers.protocol.parts import _CLOCK, Done, clocked
from tests.shared.limits import WAIT_S
from tests.shared.samples import engine_request
from tests.shared.virtual_time import FixedLength, VirtualClock

OUTPUT = 20
BUDGET = 2_000
"""Room for three of the requests below, at the length that the table expects."""


def engine(slots: int = 32) -> SimulatedEngine:
    model = IterationModel(max_num_seqs=slots, kv_blocks=BUDGET // BLOCK_TOKENS)
    return SimulatedEngine(model, FixedLength(OUTPUT), VirtualClock())


def asked(number: int, **about: Any) -> EngineRequest:
    return engine_request(str(number), part=UUID(int=number), **about)


class Desk:
    """A batcher, its engine, and what it said of prices."""

    def __init__(self, simulated: SimulatedEngine, policy: PolicyName = PolicyName.CONTINUOUS) -> None:
        self.engine = simulated
        self.lengths = LearnedLengths(0.75)
        self.prices: dict[UUID, int] = {}
        self.batcher = Batcher(
            simulated, policy_named(policy, BatchLimits()), self.lengths, priced=self.prices.__setitem__
        )

    async def __aenter__(self) -> Self:
        await self.engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()


async def watched(desk: Desk) -> list[int]:
    """Return how many requests the engine held, for as long as this runs."""
    seen: list[int] = []
    while True:
        seen.append(desk.engine.load().running + desk.engine.load().waiting)
        if desk.batcher.packing.share is not None and not seen[-1]:
            return seen
        await asyncio.sleep(0)


async def test_the_engine_never_holds_more_than_its_tokens_allow() -> None:
    async with Desk(engine()) as desk:
        looking = asyncio.create_task(watched(desk))
        await asyncio.gather(*(desk.batcher.generate(asked(number)) for number in range(12)))
        held, prices = await looking, desk.prices
    assert len(prices) == 12
    assert max(held) == BUDGET // max(prices.values())


async def test_the_shortest_is_who_is_expected_to_write_least() -> None:
    async with Desk(engine(slots=1), PolicyName.SHORTEST) as desk:
        ended: list[str] = []

        async def read(request: EngineRequest) -> None:
            await desk.batcher.generate(request)
            ended.append(request.workload)

        kinds = [DocumentType.LAB_RESULT, *[DocumentType.CHART] * 2, *[DocumentType.PRESCRIPTION] * 12]
        await asyncio.gather(*(read(asked(n, side=28, workload=kind)) for n, kind in enumerate(kinds)))
    first, *others = ended
    assert first == DocumentType.LAB_RESULT, "it was alone when it came"
    assert others[:3] == [DocumentType.PRESCRIPTION] * 3
    assert others[-1] == DocumentType.PRESCRIPTION, "enough of them are kept to end with"


@pytest.mark.parametrize("given_up", [(1, 2, 3), (0, 1, 2, 3, 4)], ids=["some that wait", "all at once"])
async def test_what_is_given_up_leaves_its_place(given_up: tuple[int, ...]) -> None:
    async with Desk(engine(slots=1)) as desk:
        waiting = [asyncio.create_task(desk.batcher.generate(asked(number))) for number in range(5)]
        await asyncio.sleep(0)
        for number in given_up:
            waiting[number].cancel()
        await asyncio.wait(waiting)
        assert [number for number in range(5) if waiting[number].cancelled()] == list(given_up)
        await desk.batcher.generate(asked(5))


async def test_a_request_enters_once_the_prompts_before_it_are_read_though_none_has_ended() -> None:
    slow_readers = SimulatedEngine(
        IterationModel(max_num_batched_tokens=256), FixedLength(100_000), VirtualClock()
    )
    async with Desk(slow_readers) as desk:
        reading = [asyncio.create_task(desk.batcher.generate(asked(number))) for number in range(12)]
        await asyncio.sleep(0)
        held = [slow_readers.load().running + slow_readers.load().waiting]
        async with asyncio.timeout(WAIT_S):
            while held[-1] < len(reading):
                await asyncio.sleep(0)
                held.append(slow_readers.load().running + slow_readers.load().waiting)
        assert held[0] < len(reading)
        assert not any(each.done() for each in reading)
        for each in reading:
            each.cancel()
        await asyncio.wait(reading)


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

    async with Desk(engine(slots=1)) as desk, asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(read(number, 2))
        await asyncio.sleep(0)
        group.create_task(read(3, 0))

    assert ended == [0, 3, 1, 2]


async def test_an_output_that_was_seen_often_is_what_the_next_is_expected_to_be() -> None:
    async with Desk(engine()) as desk:
        for number in range(ENOUGH + 1):
            await desk.batcher.generate(asked(number))
        first, learned = desk.prices[UUID(int=0)], desk.prices[UUID(int=ENOUGH)]
    assert first - learned == 400 - length_of(step_of(OUTPUT))


def test_packing_is_the_mean_over_the_time_in_which_something_waited() -> None:
    packing = Packing()
    for used, now, waiting in ((0.5, 10, 1), (1.0, 12, 2), (0.2, 13, 0), (0.9, 100, 1)):
        packing.look(used, now, waiting=waiting)
    assert packing.share == pytest.approx((2 * 0.5 + 1 * 1.0) / 3)


async def test_the_span_of_a_request_tells_what_was_reserved_for_it(spans: InMemorySpanExporter) -> None:
    async with Desk(engine()) as desk:
        with tracing.under(f"00-{1:032x}-{1:016x}-01", "read"):
            await desk.batcher.generate(asked(0))
    attributes = {span.name: span.attributes or {} for span in spans.get_finished_spans()}
    assert attributes["chat iteration-level"]["pecia.cost"] == desk.prices[UUID(int=0)]


async def test_a_part_that_waits_for_room_does_not_work() -> None:
    async def waited(number: int) -> float:
        with clocked(UUID(int=number)):
            await desk.batcher.generate(asked(number))
            clock = _CLOCK.get()
            assert clock is not None
            return clock._past_s

    async with Desk(engine(slots=1)) as desk:
        assert min(await asyncio.gather(waited(1), waited(2))) > 0


ONE, OTHER = UUID(int=1), UUID(int=2)


def metered(*requests: EngineRequest) -> Meter:
    """Return the meter after all of these were answered at the same time."""
    engine, meter = SimulatedEngine(lengths=FixedLength(OUTPUT), clock=VirtualClock()), Meter()

    async def story() -> None:
        await engine.start()
        await asyncio.gather(*map(meter.on(engine).generate, requests))
        await engine.stop()

    asyncio.run(story())
    return meter


def test_what_requests_of_a_part_took_adds_up_and_is_its_own() -> None:
    meter = metered(
        engine_request("a", part=ONE),
        engine_request("b", part=ONE),
        engine_request("c", part=OTHER),
        engine_request("of no part", part=None),
    )
    one, other = meter.spent(ONE, queued_s=1.5), meter.spent(OTHER, queued_s=0)
    assert one
    assert other
    assert (other.usage.prompt, other.usage.output) == (engine_request("c", part=OTHER).prompt_tokens, OUTPUT)
    assert one.usage == other.usage + other.usage
    assert (one.engine, one.timings.queued) == ("simulated", 1.5)
    assert (one.timings.first_token or 0) > 0


def test_an_attempt_that_is_over_or_asked_no_engine_has_taken_nothing() -> None:
    meter = metered(engine_request("a", part=ONE))
    meter.forget(ONE)
    meter.forget(OTHER)
    assert [meter.spent(part, queued_s=0) for part in (ONE, OTHER)] == [None, None]


async def test_waiting_for_room_is_not_the_engines_time() -> None:
    """On one slot the second waits for the first."""

    model = IterationModel(base_s=0.01, prefill_token_s=0, decode_sequence_s=0, max_num_seqs=1)
    engine, meter = SimulatedEngine(model, FixedLength(OUTPUT)), Meter()
    policy = policy_named(PolicyName.CONTINUOUS, BatchLimits())
    generator = meter.on(Batcher(engine, policy, LearnedLengths(0.75), priced=lambda *_: None))
    await engine.start()

    async def read(name: str, part: UUID) -> Timings:
        began = monotonic()
        await generator.generate(engine_request(name, part=part))
        told = Timings(queued=1.0, engine=monotonic() - began)
        settled = meter.settled(part, Done(Summary(text="", verdict=Verdict.OK, engine="", timings=told)))
        spent = meter.spent(part, queued_s=1.0)
        assert isinstance(settled, Done)
        assert isinstance(settled.content, Summary)
        timings = settled.content.timings
        assert timings.queued + timings.engine == pytest.approx(told.queued + told.engine)
        assert spent
        assert spent.timings.queued == timings.queued
        return timings

    first, second = await asyncio.gather(read("a", ONE), read("b", OTHER))
    await engine.stop()
    assert first.queued < second.queued
    assert second.queued - 1.0 > OUTPUT * 0.01 / 2
