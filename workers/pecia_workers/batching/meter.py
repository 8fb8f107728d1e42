"""What each part has taken of an engine so far: kept for the parts that fail, whose results cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from uuid import UUID

from pecia_schemas.results import Timings, TokenUsage
from pecia_workers.engines.base import Capabilities, EngineRequest, Generation, Generator
from pecia_workers.ledger import Done, Outcome
from pecia_workers.ledger.commit import Spent
from pecia_workers.metrics import recording


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
        told = _without_waiting(timings, reading.waited)
        return Spent(engine=reading.engine, usage=reading.usage, timings=told)

    def settled(self, part: UUID, outcome: Outcome) -> Outcome:
        """Return a result with the time in which its requests waited for room told as waiting; others as they are."""
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
        recording.generated(reading.engine, generation, seconds)
        reading.usage += generation.usage
        reading.waited += generation.waited_s
        reading.first_token_s = reading.first_token_s or generation.first_token_s
        return generation
