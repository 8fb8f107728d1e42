"""What each part has taken of an engine so far, for its row and for the metrics."""

from dataclasses import dataclass, replace
from time import monotonic
from uuid import UUID

from pecia_schemas.results import Page, Timings, TokenUsage
from pecia_workers import metrics
from pecia_workers.engines.base import Capabilities, EngineRequest, Generation, Generator, Load
from pecia_workers.ledger.commit import ClaimedPart, Done, Failed, Outcome, Spent


def begun(part: ClaimedPart) -> None:
    """Count an attempt, and how long the part had waited."""
    metrics.ATTEMPTS.labels(part.stage, part.lane).inc()
    metrics.QUEUED.labels(part.stage, part.lane).observe(part.queued_s)


def ended(part: ClaimedPart, outcome: Outcome, seconds: float, *, committed: bool) -> None:
    """Count what became of an attempt."""
    metrics.PART_SECONDS.labels(part.stage).observe(seconds)
    name = "done" if committed else "lost"
    if isinstance(outcome, Failed) and committed:
        name = "failed" if outcome.retry_in is None else "retried"
    metrics.PARTS.labels(part.stage, name).inc()
    if not committed:
        return
    match outcome:
        case Failed(failure=failure, spent=spent):
            metrics.FAILURES.labels(part.stage, failure.code).inc()
            if spent:
                metrics.WASTED_TOKENS.labels(spent.engine).inc(spent.all_wasted.usage.wasted)
        case Done(content=content):
            metrics.WASTED_TOKENS.labels(content.engine).inc(content.usage.wasted)
            if isinstance(content, Page):
                metrics.PAGES.labels(content.engine, content.verdict).inc()


def generated(engine: str, generation: Generation, seconds: float) -> None:
    """Count what one request took; `seconds` with its wait for room."""
    usage = generation.usage
    metrics.PROMPT_TOKENS.labels(engine).inc(usage.prompt)
    metrics.CACHED_TOKENS.labels(engine).inc(usage.cached)
    metrics.OUTPUT_TOKENS.labels(engine).inc(usage.output)
    metrics.ADMISSION_WAIT.observe(generation.waited_s)
    metrics.REQUEST_SECONDS.labels(engine).observe(max(0.0, seconds - generation.waited_s))
    if generation.first_token_s is not None:
        metrics.FIRST_TOKEN.labels(engine).observe(generation.first_token_s)


class EngineWatch:
    """Shows what an engine says of itself, of which some figures are sums since its start."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._last = Load(running=0, waiting=0)

    @property
    def kv_used(self) -> float | None:
        """Share of the KV cache's blocks in use at the last look, 0 to 1; None if the engine does not report it."""
        return self._last.kv_used

    def saw(self, load: Load, share: float) -> None:
        """Take over one look at the engine, and the share of its budget that may be used."""
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
    """Adds up, part by part, what its generators' answers took. For one loop."""

    def __init__(self) -> None:
        self._readings: dict[UUID, _Reading] = {}

    def on(self, generator: Generator) -> Generator:
        """Return the same generator, metered."""
        return _Metered(generator, self._readings)

    def spent(self, part: UUID, queued_s: float) -> Spent | None:
        """Return what this attempt, which waited for so long, has taken so far; None if no engine was asked.

        A request that failed counts with its seconds: what it wrote until then is unknown.
        """
        reading = self._readings.get(part)
        if reading is None:
            return None
        timings = Timings(queued=queued_s, engine=reading.seconds, first_token=reading.first_token_s)
        timings = _without_waiting(timings, reading.waited)
        return Spent(engine=reading.engine, usage=reading.usage, timings=timings)

    def settled(self, part: UUID, outcome: Outcome) -> Outcome:
        """Return a result with the time its requests waited for capacity counted as waiting; others as they are."""
        reading = self._readings.get(part)
        if reading is None or not isinstance(outcome, Done):
            return outcome
        timings = _without_waiting(outcome.content.timings, reading.waited)
        return replace(outcome, content=outcome.content.model_copy(update={"timings": timings}))

    def forget(self, part: UUID) -> None:
        """Drop what was kept of a part: its attempt is over."""
        self._readings.pop(part, None)


def _without_waiting(timings: Timings, waited: float) -> Timings:
    """Return the timings with what was waited taken from the engine's; several requests may have waited at once."""
    queued, engine = timings.queued + waited, max(0.0, timings.engine - waited)
    return timings.model_copy(update={"queued": queued, "engine": engine})


class _Metered:
    def __init__(self, generator: Generator, readings: dict[UUID, _Reading]) -> None:
        self._generator = generator
        self._readings = readings

    @property
    def capabilities(self) -> Capabilities:
        return self._generator.capabilities

    async def generate(self, request: EngineRequest) -> Generation:
        if request.part is None:
            return await self._generator.generate(request)
        reading = self._readings.setdefault(request.part, _Reading(self.capabilities.name))
        began = monotonic()
        try:
            generation = await self._generator.generate(request)
        finally:
            seconds = monotonic() - began
            reading.seconds += seconds
        reading.engine = generation.engine or reading.engine
        generated(reading.engine, generation, seconds)
        reading.usage += generation.usage
        reading.waited += generation.waited_s
        reading.first_token_s = reading.first_token_s or generation.first_token_s
        return generation
