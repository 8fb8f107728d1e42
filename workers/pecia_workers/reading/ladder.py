"""Reading again what was no good the first time: the retry ladder, over any engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from pecia_schemas.results import Change, ReadingAttempt
from pecia_workers.engines.base import EngineDeadError, EngineError, EngineRequest, Generation, Generator
from pecia_workers.reading.rungs import RUNGS, changed, next_change, was_cut_as_asked
from pecia_workers.reading.verdicts import judged, rank

log = structlog.get_logger(__name__)

Judge = Callable[["Generation"], "Generation"]
"""Returns an answer with its final verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One answer to a request, judged."""

    engine: str
    change: Change | None
    """What was different from the first."""
    generation: Generation
    seen: tuple[int, int]
    """Width and height, in pixels, at which the engine saw the picture."""

    def attempt(self, *, fields: bool = False) -> ReadingAttempt:
        """Return what is told of it if it is thrown away."""
        return ReadingAttempt(
            engine=self.engine,
            verdict=self.generation.verdict,
            change=self.change,
            fields=fields,
            usage=self.generation.usage,
        )


def best(readings: Iterable[Reading]) -> Reading:
    """Return the one with the best verdict, of several the one with the most text, of several the first."""
    return max(
        readings, key=lambda reading: (rank(reading.generation.verdict), len(reading.generation.text.strip()))
    )


class Ladder:
    """Asks an engine again, each time with one thing changed, and at last another engine."""

    def __init__(self, engine: Generator, fallback: Generator | None = None, *, most: int) -> None:
        """`most`: readings by `engine`, the first among them."""
        self._engine = engine
        self._fallback = fallback
        self._most = most

    async def climb(self, request: EngineRequest, deadline: float, *, judge: Judge = judged) -> list[Reading]:
        """Return the answers in order, at least one; none is asked for after `deadline`, by the loop's clock.

        Raises `EngineError` only if the first fails, but `EngineDeadError` whichever it was.
        """
        readings = [await self._read(self._engine, request, judge)]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._read_again(request, judge, readings)
        return readings

    async def _read_again(self, request: EngineRequest, judge: Judge, readings: list[Reading]) -> None:
        tried: set[Change] = set()
        while len(readings) < self._most and (change := self._next_change(request, readings[-1], tried)):
            tried.add(change)
            again = await asyncio.to_thread(changed, request, change, readings[0].seen)
            if again:
                await self._try(self._engine, again, change, judge, readings)
        again = changed(request, Change.FALLBACK, readings[0].seen)
        if again and self._fallback and self._may_fall_back(self._fallback, request, readings):
            await self._try(self._fallback, again, Change.FALLBACK, judge, readings)

    def _next_change(self, request: EngineRequest, last: Reading, tried: set[Change]) -> Change | None:
        if not self._engine.capabilities.samples or was_cut_as_asked(request, last.generation):
            return None
        return next_change(last.generation.verdict, tried)

    def _may_fall_back(self, other: Generator, request: EngineRequest, readings: list[Reading]) -> bool:
        """Return whether the other engine may do better; it makes up words of a script that it does not know."""
        so_far = best(readings).generation
        known = other.capabilities.languages
        return (
            so_far.verdict in RUNGS
            and not was_cut_as_asked(request, so_far)
            and (known is None or request.language in known)
        )

    async def _try(
        self, engine: Generator, request: EngineRequest, change: Change, judge: Judge, readings: list[Reading]
    ) -> None:
        """Add one more answer. An error is no reason to lose those that are there, unless the engine is gone."""
        log.info("read_again", request=request.id, verdict=readings[-1].generation.verdict)
        try:
            readings.append(await self._read(engine, request, judge, change))
        except EngineDeadError:
            raise
        except EngineError as error:
            log.warning("not_read_again", request=request.id, error=type(error).__name__)

    async def _read(
        self, engine: Generator, request: EngineRequest, judge: Judge, change: Change | None = None
    ) -> Reading:
        generation = await engine.generate(request)
        seen = generation.shrunk_to or request.size
        return Reading(
            engine=generation.engine or engine.capabilities.name,
            change=change,
            generation=judge(replace(generation, shrunk_to=seen)),
            seen=seen,
        )
