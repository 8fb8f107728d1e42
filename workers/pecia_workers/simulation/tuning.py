"""Which sizes an engine reads most pages with: found by measuring it, in as few points as will do.

The pages a second rise with the sequences that run at a time, ever less, and fall again where prompts are computed
twice or pages crowd each other out; so doubling finds the hill and halving its top. One engine measures all of that: it
is admitted fewer pages than it could run. The tokens of a step are set when it starts, so each choice is a start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pecia_workers.batching.policies import Capacity, ContinuousPolicy, Start
from pecia_workers.engines.base import Engine, EngineDeadError, EngineError, EngineUnavailableError
from pecia_workers.engines.profiles import Speed
from pecia_workers.simulation.experiment import MeasuredRun, Seen, fitted_speed, measured
from pecia_workers.simulation.requests import Mix, all_at_once, drawn
from pecia_workers.simulation.scenarios import at_share

GAIN: Final = 1.02
"""Times the pages a second that is better, and no luck."""
_LEAST_GAP: Final = 1.3
"""Times the sequences between two points, below which no further one is measured between them."""
_ROUNDS: Final = 3
"""Pages of one point, by the sequences: the first fill the engine, the last empty it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one choice of sizes came to."""

    sequences: int
    batched_tokens: int
    """0: vLLM's own choice."""
    pages_per_s: float = 0.0
    """While pages waited; 0 where the engine did not start or read nothing."""
    p95_s: float = 0.0
    """Of a page in the engine."""
    preemptions: int = 0
    failed: str = ""
    """Why there is nothing to tell."""


Measure = Callable[[int], Awaitable[Point]]
"""Returns the point of so many sequences, or of so many tokens in a step."""
Told = Callable[[Point], None]
"""Hears of each point as soon as it is known."""
Open = Callable[[dict[str, int]], AbstractAsyncContextManager["Engine"]]
"""Starts an engine with these sizes, by the fleet's names, for as long as the block runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was found."""

    best: Point
    points: tuple[Point, ...]
    """As they were measured."""
    speed: Speed | None
    """None: the engine does not tell when it wrote its first token."""


async def tune(
    opened: Open, mix: Mix, told: Told, *, most: int, batched_tokens: int, steps: bool = True
) -> Tuned:
    """Measure sizes: up to `most` sequences, and other steps than those of `batched_tokens` unless not `steps`.

    Raises `EngineUnavailableError` and `EngineError` if the first engine does not start or reads nothing.
    """
    points: list[Point] = []

    def note(point: Point) -> None:
        points.append(point)
        told(point)

    async with opened({"max_num_seqs": most, "max_num_batched_tokens": batched_tokens}) as engine:
        bench = Bench(engine, mix, note, batched_tokens=batched_tokens)
        alone = await bench.alone()
        best = await best_sequences(bench, min(most, engine.budget.slots))
        speed = fitted_speed(alone, bench.runs)
    if not best.pages_per_s:
        raise EngineError(f"Nothing was read: {best.failed}")

    async def restarted(tokens: int) -> Point:
        try:
            sizes = {"max_num_seqs": best.sequences, "max_num_batched_tokens": tokens}
            async with opened(sizes) as engine:
                other = Bench(engine, mix, note, batched_tokens=tokens)
                await other.alone()
                return await other(best.sequences)
        except (EngineUnavailableError, EngineError) as error:
            note(point := Point(sequences=best.sequences, batched_tokens=tokens, failed=str(error)))
            return point

    if steps and batched_tokens:
        best = await best_step(restarted, best)
    return Tuned(best=best, points=tuple(points), speed=speed)


async def best_step(measure: Measure, best: Point) -> Point:
    """Return the best of the steps twice as large, while that gains, or else of those half as large."""
    for factor in (2.0, 0.5):
        start = best
        while (size := int(factor * best.batched_tokens)) >= best.sequences:
            point = await measure(size)
            if point.pages_per_s <= GAIN * best.pages_per_s:
                break
            best = point
        if best is not start:
            break
    return best


async def best_sequences(measure: Measure, most: int, *, first: int = 8) -> Point:
    """Return the point from which more sequences gain nothing, of those up to `most`.

    Doubles from `first` while that gains, then halves the gaps beside the best. Fewer sequences win where the pages a
    second are alike: each page is read sooner.
    """
    known: dict[int, Point] = {}

    async def at(sequences: int) -> Point:
        if sequences not in known:
            known[sequences] = await measure(sequences)
        return known[sequences]

    best, size = await at(min(first, most)), min(first, most)
    while size < most:
        size = min(2 * size, most)
        point = await at(size)
        if not _better(point, best):
            break
        best = point
    while (middle := _between(sorted(known), best.sequences)) is not None:
        point = await at(middle)
        best = point if _better(point, best) else best
    return best


def _between(sizes: Sequence[int], best: int) -> int | None:
    """Return the middle of the wider gap beside the best size; None where they are narrow."""
    gaps = [pair for pair in pairwise(sizes) if best in pair]
    low, high = max(gaps, key=lambda gap: gap[1] / gap[0], default=(1, 1))
    return round((low * high) ** 0.5) if high / low > _LEAST_GAP else None


def _better(point: Point, other: Point) -> bool:
    gain = GAIN if point.sequences > other.sequences else 1 / GAIN
    return point.pages_per_s > gain * other.pages_per_s


class _Narrow(ContinuousPolicy):
    """Admits as to an engine of fewer sequences."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots

    def start(self, now: float, room: Capacity) -> list[Start]:
        return super().start(now, replace(room, slots=min(self._slots, room.slots)))


class Bench:
    """Measures one started engine, with other pages each time."""

    def __init__(self, engine: Engine, mix: Mix, told: Told, *, batched_tokens: int) -> None:
        self._engine = engine
        self._mix = mix
        self._told = told
        self._batched_tokens = batched_tokens
        self._pages = 0
        self.runs: list[MeasuredRun] = []

    async def alone(self) -> MeasuredRun:
        """Return a run of pages one after the other, after one that has warmed the engine up."""
        await self._read(1, 1)
        return await self._read(1, _ROUNDS)

    async def __call__(self, sequences: int) -> Point:
        """Return what the engine does with so many at a time. Raises `EngineDeadError`."""
        before = self._engine.load().preemptions
        point = Point(sequences=sequences, batched_tokens=self._batched_tokens)
        try:
            run = await self._read(sequences, _ROUNDS * sequences)
        except EngineDeadError:
            raise
        except EngineError as error:
            point = replace(point, failed=str(error))
        else:
            self.runs.append(run)
            point = replace(
                point,
                pages_per_s=steady_rate(run.pages),
                p95_s=at_share(sorted(page.ran for page in run.pages), 0.95),
                preemptions=self._engine.load().preemptions - before,
            )
        self._told(point)
        return point

    async def _read(self, sequences: int, pages: int) -> MeasuredRun:
        first, self._pages = self._pages, self._pages + pages
        asked = drawn(all_at_once(pages), self._mix, first)
        return await measured(asked, self._engine, _Narrow(sequences), first=first)


def steady_rate(read: Sequence[Seen]) -> float:
    """Return the pages a second from the first that ended to the last that was admitted: the engine is full then."""
    ends = sorted(page.ended for page in read)
    first, last = ends[0], max(page.started for page in read)
    during = sum(first < end <= last for end in ends)
    if during < len(read) / 4:
        return len(read) / ends[-1]
    return during / (last - first)
