"""Batcher between the stages and the engine: prepares requests, computes their cost, queues, admits and meters them."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from uuid import UUID

import structlog

from pecia_schemas.bundles import Split
from pecia_schemas.results import Timings, TokenUsage, Verdict
from pecia_workers.batching.admission import Item
from pecia_workers.batching.learned import Headroom, LearnedLengths
from pecia_workers.batching.policies import Policy
from pecia_workers.observability import metrics
from pecia_workers.observability.tracing import admitted, generate_traced
from pecia_workers.protocol import base
from pecia_workers.protocol.parts import Done, Outcome, Spent, waiting

log = structlog.get_logger(__name__)

Priced = Callable[[UUID, int], None]
"""Called with a part and its cost in the engine's budget, in tokens."""


class Batcher:
    """Admits requests to one engine by a policy. To be used on the engine's loop."""

    def __init__(
        self,
        engine: base.Engine,
        policy: Policy,
        lengths: LearnedLengths,
        *,
        priced: Priced,
        headroom: Headroom | None = None,
    ) -> None:
        self._engine = engine
        self.capabilities = engine.capabilities
        self._policy = policy
        self._lengths = lengths
        self._priced = priced
        self._headroom = headroom or Headroom()
        self._entering: dict[str, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.packing = Packing()
        self.died_on: frozenset[UUID] | None = None
        """Parts that were in the engine when it was found dead; None while it lives."""

    @property
    def memory(self) -> float:
        """Share of the engine's budget for which it is known to have memory."""
        return self._headroom.memory

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        """Return the text, after waiting for capacity. Raises `EngineError`.

        A request that ran out of memory beside others waits for capacity again.
        """
        expected = self._lengths.expected(request.workload)
        fitted = await self._engine.fit(replace(request, expected_output_tokens=expected))
        clock, waited, generation = asyncio.get_running_loop().time, 0.0, None
        with fitted.prepared or nullcontext():
            tokens = self._engine.cost(fitted)
            if fitted.part is not None:
                self._priced(fitted.part, tokens)
            while generation is None:
                offered = clock()
                async with self._admitted(fitted, tokens):
                    waited += clock() - offered
                    admitted(clock() - offered)
                    try:
                        generation = await generate_traced(self._engine, fitted, tokens)
                    except base.EngineOverloadedError:
                        if not self._headroom.ran_out(request.id, self._engine.budget):
                            raise
                        log.warning("engine_out_of_memory", request=request.id, share=self._headroom.memory)
                    except base.EngineDeadError:
                        self.found_dead()
                        self._headroom.died(request.id)
                        raise
        if generation.verdict is Verdict.OK:  # an answer cut short says nothing about its length
            self._lengths.observe(request.workload, generation.usage.output)
        shrunk_to = generation.shrunk_to if request.images is fitted.images else fitted.size
        return replace(generation, waited_s=waited, shrunk_to=shrunk_to)

    def found_dead(self) -> None:
        """Record the parts that were in the engine when it died; waiting parts are not suspected."""
        if self.died_on is None:
            self.died_on = self._headroom.parts

    @asynccontextmanager
    async def _admitted(self, request: base.EngineRequest, tokens: int) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        output = min(tokens, request.output_tokens)  # an engine may bound it further
        most = request.max_output_tokens or math.inf
        entering = self._entering[request.id] = loop.create_future()
        item = Item(
            id=request.id,
            prompt=tokens - output,
            output=output,
            longer=lambda written: int(min(most, self._lengths.expected(request.workload, written))),
            rank=request.priority,
            arrived=loop.time(),
        )
        self._policy.offer(item)
        try:
            self._admit()
            with waiting():
                await entering
            self._headroom.enter(request.id, tokens, request.part)
            yield
        finally:
            self._headroom.leave(request.id)
            self._entering.pop(request.id, None)
            self._policy.withdraw(request.id)
            self._admit()

    def _admit(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            load = self._engine.load()
        except base.EngineDeadError as error:  # what waits for it would wait for ever
            self.found_dead()
            for entering in self._entering.values():
                if not entering.done():
                    entering.set_exception(base.EngineDeadError(str(error)))
            return
        capacity = self._headroom.capacity(self._engine.budget, load, now)
        starts = self._policy.start(now, capacity)
        for item in starts:
            if capacity.is_exceeded_by(item):
                log.warning("larger_than_the_budget", request=item.id, tokens=item.tokens)
            entering = self._entering.pop(item.id)
            if not entering.done():  # given up a moment ago, its task has not heard of it yet
                entering.set_result(None)
        slots = self._policy.running / self._engine.budget.slots
        used = slots if load.kv_used is None else load.kv_used
        self.packing.look(used, now, waiting=self._policy.waiting)
        if starts:
            metrics.BATCH_SIZE.observe(self._policy.running)  # with those that were let in
            if load.kv_used is not None:
                metrics.BATCH_KV_USED.observe(load.kv_used)  # before them
        if self._timer:
            self._timer.cancel()
        wait = self._policy.due(now)
        self._timer = asyncio.get_running_loop().call_later(wait, self._admit) if wait is not None else None


class Packing:
    """Mean use of the KV cache, or of the slots without one, over the time in which requests waited."""

    def __init__(self) -> None:
        self._used = 0.0
        self._backlog = False
        self._since = 0.0
        self._used_s = 0.0
        self._waited_s = 0.0

    @property
    def share(self) -> float | None:
        """The mean; None before anything waited."""
        return self._used_s / self._waited_s if self._waited_s else None

    def look(self, used: float, now: float, *, waiting: int) -> None:
        """Record the share in use at `now`, in seconds, while so many requests wait for capacity."""
        if self._backlog:
            passed = now - self._since
            self._waited_s += passed
            self._used_s += passed * self._used
        self._used, self._backlog, self._since = used, waiting > 0, now


class EngineWatch:
    """Exports an engine's own figures, some of which are sums since its start."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._last = base.Load(running=0, waiting=0)

    @property
    def kv_used(self) -> float | None:
        """Share of the KV cache's blocks in use at the last look, 0 to 1; None if the engine does not report it."""
        return self._last.kv_used

    def saw(self, load: base.Load, share: float) -> None:
        """Record the engine's load, and the share of its budget that may be used."""
        metrics.ENGINE_RUNNING.labels(self._engine).set(load.running)
        metrics.ENGINE_WAITING.labels(self._engine).set(load.waiting)
        if load.kv_used is not None:
            metrics.KV_USED.labels(self._engine).set(load.kv_used)
        metrics.ENGINE_PREPARING.labels(self._engine).set(load.preparing)
        metrics.BUDGET_SHARE.labels(self._engine).set(share)
        for counter, now, before in (
            (metrics.PREEMPTIONS, load.preemptions, self._last.preemptions),
            (metrics.DRAFTED, load.drafted, self._last.drafted),
            (metrics.ACCEPTED, load.accepted, self._last.accepted),
            (metrics.MISPRICED, load.drifted, self._last.drifted),
        ):
            counter.labels(self._engine).inc(max(0, now - before))
        self._last = load


@dataclass(slots=True)
class _Reading:
    engine: str
    usage: TokenUsage = TokenUsage()  # noqa: RUF009  frozen, so it may be shared
    seconds: float = 0.0
    waited: float = 0.0
    first_token_s: float | None = None


class Meter:
    """Adds up the use of its generators' answers for each part. For one loop."""

    def __init__(self) -> None:
        self._readings: dict[UUID, _Reading] = {}

    def on(self, generator: base.Generator, *, traced: bool = False) -> base.Generator:
        """Return the same generator, metered; `traced`: each of its requests is a span, as a batcher's are already."""
        return _Metered(generator, self._readings, traced=traced)

    def spent(self, part: UUID, queued_s: float) -> Spent | None:
        """Return the tokens and seconds of this attempt, less the time it waited; None if no engine was called.

        A failed request counts its seconds only, since its tokens are unknown.
        """
        reading = self._readings.get(part)
        if reading is None:
            return None
        timings = Timings(queued=queued_s, engine=reading.seconds, first_token=reading.first_token_s)
        timings = _without_waiting(timings, reading.waited)
        return Spent(engine=reading.engine, usage=reading.usage, timings=timings)

    def settled(self, part: UUID, outcome: Outcome) -> Outcome:
        """Return a result with its requests' wait for capacity counted as waiting, other outcomes unchanged."""
        reading = self._readings.get(part)
        if reading is None or not isinstance(outcome, Done) or isinstance(outcome.content, Split):
            return outcome
        timings = _without_waiting(outcome.content.timings, reading.waited)
        return replace(outcome, content=outcome.content.model_copy(update={"timings": timings}))

    def forget(self, part: UUID) -> None:
        """Drop the record of a part: its attempt is over."""
        self._readings.pop(part, None)


def _without_waiting(timings: Timings, waited: float) -> Timings:
    """Return the timings with waiting moved out of the engine's time; several requests may have waited at once."""
    queued, engine = timings.queued + waited, max(0.0, timings.engine - waited)
    return timings.model_copy(update={"queued": queued, "engine": engine})


class _Metered:
    def __init__(self, generator: base.Generator, readings: dict[UUID, _Reading], *, traced: bool) -> None:
        self._ask = partial(generate_traced, generator) if traced else generator.generate
        self._readings = readings
        self.capabilities = generator.capabilities

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        if request.part is None:
            return await self._ask(request)
        reading = self._readings.setdefault(request.part, _Reading(self.capabilities.name))
        began = monotonic()
        try:
            generation = await self._ask(request)
        finally:
            seconds = monotonic() - began
            reading.seconds += seconds
        reading.engine = generation.engine or reading.engine
        generated(reading.engine, generation, seconds)
        reading.usage += generation.usage
        reading.waited += generation.waited_s
        reading.first_token_s = reading.first_token_s or generation.first_token_s
        return generation


def generated(engine: str, generation: base.Generation, seconds: float) -> None:
    """Count the use of one request; `seconds` includes its wait for capacity."""
    usage = generation.usage
    metrics.PROMPT_TOKENS.labels(engine).inc(usage.prompt)
    metrics.CACHED_TOKENS.labels(engine).inc(usage.cached)
    metrics.OUTPUT_TOKENS.labels(engine).inc(usage.output)
    metrics.ADMISSION_WAIT.observe(generation.waited_s)
    metrics.REQUEST_SECONDS.labels(engine).observe(max(0.0, seconds - generation.waited_s))
    if generation.first_token_s is not None:
        metrics.FIRST_TOKEN.labels(engine).observe(generation.first_token_s)
