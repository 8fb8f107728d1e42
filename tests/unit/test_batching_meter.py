"""What each part has taken of the engine, kept until its attempt is over."""

import asyncio
from time import monotonic
from uuid import UUID

import numpy as np
import pytest

from pecia_schemas.results import Summary, Timings, Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.meter import Meter
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.base import EngineRequest
from pecia_workers.engines.simulated import IterationModel, SimulatedEngine
from pecia_workers.ledger.commit import Done
from virtual_time import FixedLength, VirtualClock

OUTPUT = 20
ONE, OTHER = UUID(int=1), UUID(int=2)


def asked(name: str, part: UUID | None) -> EngineRequest:
    image = np.zeros((280, 280, 3), np.uint8)
    return EngineRequest(id=name, part=part, images=(image,), workload=DocumentType.MIXED)


def metered(*requests: EngineRequest) -> Meter:
    """Return the meter after all of these were answered at the same time."""

    async def story() -> Meter:
        engine, meter = SimulatedEngine(lengths=FixedLength(OUTPUT), clock=VirtualClock()), Meter()
        await engine.start()
        generator = meter.on(engine)
        await asyncio.gather(*[generator.generate(request) for request in requests])
        await engine.stop()
        return meter

    return asyncio.run(story())


def test_what_requests_of_a_part_took_adds_up_and_is_its_own() -> None:
    meter = metered(asked("a", ONE), asked("b", ONE), asked("c", OTHER), asked("of no part", None))
    one, other = meter.spent(ONE, queued_s=1.5), meter.spent(OTHER, queued_s=0)
    assert one
    assert other
    assert (other.usage.prompt, other.usage.output) == (asked("c", OTHER).prompt_tokens, OUTPUT)
    assert one.usage == other.usage + other.usage
    assert (one.engine, one.timings.queued) == ("simulated", 1.5)
    assert (one.timings.first_token or 0) > 0


def test_an_attempt_that_is_over_or_asked_no_engine_has_taken_nothing() -> None:
    meter = metered(asked("a", ONE))
    meter.forget(ONE)
    meter.forget(OTHER)
    assert meter.spent(ONE, queued_s=1.5) is None
    assert meter.spent(OTHER, queued_s=0) is None


async def test_waiting_for_room_is_not_the_engines_time() -> None:
    """On one slot the second waits for the first."""

    model = IterationModel(base_s=0.01, prefill_token_s=0, decode_sequence_s=0, max_num_seqs=1)
    engine, meter = SimulatedEngine(model, FixedLength(OUTPUT)), Meter()
    policy = policy_named(PolicyName.CONTINUOUS, BatchLimits())
    batcher = Batcher(engine, policy, LearnedLengths(0.75), priced=lambda *_: None)
    generator = meter.on(batcher)
    await engine.start()

    async def read(name: str, part: UUID) -> Timings:
        began = monotonic()
        await generator.generate(asked(name, part))
        told = Timings(queued=1.0, engine=monotonic() - began)
        settled = meter.settled(part, Done(Summary(text="", verdict=Verdict.OK, engine="", timings=told)))
        spent = meter.spent(part, queued_s=1.0)
        assert isinstance(settled, Done)
        timings = settled.content.timings
        assert timings.queued + timings.engine == pytest.approx(told.queued + told.engine)
        assert spent
        assert spent.timings.queued == timings.queued
        return timings

    first, second = await asyncio.gather(read("a", ONE), read("b", OTHER))
    await engine.stop()
    assert first.queued < second.queued
    assert second.queued - 1.0 > OUTPUT * 0.01 / 2
