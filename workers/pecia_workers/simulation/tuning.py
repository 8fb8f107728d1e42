"""Measures a started engine in minutes: its speed, and how many concurrent pages are worth their wait.

Single pages and runs with several concurrent pages give the time of its steps, from which `engines.speed` computes the
knee; one more run measures the engine there. Fewer pages are admitted than the engine could run, so it is started once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from statistics import fmean, linear_regression
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.speed import KNEE, PageLoad, Speed, knee
from pecia_workers.media.images import to_rgb
from pecia_workers.media.samples import WRITERS, sample_document
from pecia_workers.protocol import base
from pecia_workers.reading.page import instruction_for
from pecia_workers.simulation.requests import Mix, Request, drawn
from pecia_workers.simulation.scenarios import at_share

_LANGUAGE: Final = "en"
_ENOUGH_TOKENS: Final = 8
_SEVERAL: Final = 1.5
"""Mean concurrent pages from which a run says more than a single page."""
_SIZES: Final = (8, 32, 128)
"""Concurrent pages by which the speed is measured."""
_ROUNDS: Final = 3
"""Pages of one point, in multiples of the concurrent ones: the first fill the engine, the last drain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One page that an engine read; times in seconds."""

    ran: float
    """Since it was admitted."""
    output: int
    prompt: int = 0
    first_token: float | None = None
    """Since it was admitted; None: not known."""
    ended: float = 0.0
    """Since the run began."""

    @property
    def started(self) -> float:
        """When it was admitted, since the run began."""
        return self.ended - self.ran


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run of an engine."""

    pages: tuple[Seen, ...]
    seconds: float


def fitted_speed(alone: MeasuredRun, runs: Sequence[MeasuredRun]) -> Speed | None:
    """Return the time of steps, fitted to single pages and to concurrent ones; None if unknown.

    Alone a page reads its prompt before its first token, then writes one in `base + d`. A run of t seconds with n pages
    at a time that read P and wrote O tokens was O/n steps: t/O = base/n + p P/O + d, a line over 1/n.
    """
    page = max(alone.pages, key=lambda page: page.output)
    if page.first_token is None or page.output < _ENOUGH_TOKENS or not page.prompt:
        return None
    token = (page.ran - page.first_token) / (page.output - 1)
    prefill = max(0.0, page.first_token - token) / page.prompt
    shares, seconds, prompts = [1.0], [], []
    for run in (alone, *runs):
        written, ran = (sum(getattr(page, name) for page in run.pages) for name in ("output", "ran"))
        if run is not alone:
            if ran < _SEVERAL * run.seconds:
                continue
            shares.append(run.seconds / ran)
        seconds.append((ran if run is alone else run.seconds) / written)
        prompts.append(sum(page.prompt for page in run.pages) / written)
    if len(shares) == 1:
        return Speed(base_s=token, prefill_token_s=prefill, decode_sequence_s=0)
    line = linear_regression(
        shares, [took - prefill * read for took, read in zip(seconds, prompts, strict=True)]
    )
    base = min(token, max(token / 100, line.slope))
    return Speed(base_s=base, prefill_token_s=prefill, decode_sequence_s=max(0.0, line.intercept))


async def measured(engine: base.Engine, requests: Sequence[base.EngineRequest], together: int) -> MeasuredRun:
    """Run a started engine with that many concurrent pages. Raises `EngineError` if it reads none."""
    clock, places = asyncio.get_running_loop().time, asyncio.Semaphore(together)
    began = clock()

    async def read(request: base.EngineRequest) -> Seen | None:
        try:
            ready = await engine.fit(request)
            async with places:
                started = clock()
                generation = await engine.generate(ready)
        except base.EngineDeadError:
            raise
        except base.EngineError:
            return None
        return Seen(
            ran=clock() - started,
            output=generation.usage.output,
            prompt=generation.usage.prompt,
            first_token=generation.first_token_s,
            ended=clock() - began,
        )

    pages = await asyncio.gather(*map(read, requests))
    if not any(pages):
        raise base.EngineError("The engine has read none of the pages.")
    return MeasuredRun(pages=tuple(filter(None, pages)), seconds=clock() - began)


def _request_of(request: Request, number: int) -> base.EngineRequest:
    """Return a sample page of the request's type, a few rows lower than any before it."""
    pages = _pages(request.workload)
    return base.EngineRequest(
        id=f"tune-{number}",
        images=(np.roll(pages[number % len(pages)], number, axis=0),),
        workload=request.workload,
        language=_LANGUAGE,
        instruction=instruction_for(request.workload, _LANGUAGE),
    )


@cache
def _pages(document_type: DocumentType) -> list[NDArray[np.uint8]]:
    kinds = WRITERS if document_type is DocumentType.MIXED else [document_type]
    return [to_rgb(page.image) for kind in kinds for page in sample_document(kind).pages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An engine's figures at a number of concurrent pages."""

    sequences: int
    pages_per_s: float = 0.0
    """Pages a second while others waited; 0 if it read none."""
    p95_s: float = 0.0
    """95th percentile of a page's time in the engine, in seconds."""
    preemptions: int = 0
    failed: str = ""
    """Reason for a missing result."""


Progress = Callable[[Point], None]
"""Called with each point as soon as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Measured figures of an engine."""

    best: Point
    points: tuple[Point, ...]
    """The measured points, in order."""
    load: PageLoad
    """Tokens of the pages that it read."""
    speed: Speed | None
    """None: the engine does not report when it wrote its first token."""


async def tune(
    engine: base.Engine, mix: Mix, progress: Progress, *, most: int, page_seconds: float = 0
) -> Tuned:
    """Measure a started engine with up to `most` concurrent pages. Raises `EngineError` if it reads none."""
    numbers, points, runs = count(), list[Point](), list[MeasuredRun]()

    async def read(together: int, pages: int) -> MeasuredRun:
        """Return a run of pages that are not like any before."""
        requests = [_request_of(page, next(numbers)) for page in drawn([0.0] * pages, mix, next(numbers))]
        return await measured(engine, requests, together)

    async def bench(sequences: int) -> None:
        before = engine.load().preemptions
        point = Point(sequences=sequences)
        try:
            run = await read(sequences, _ROUNDS * sequences)
        except base.EngineDeadError:
            raise
        except base.EngineError as error:
            point = replace(point, failed=str(error))
        else:
            runs.append(run)
            p95 = at_share(sorted(page.ran for page in run.pages), 0.95)
            preempted = engine.load().preemptions - before
            point = replace(point, pages_per_s=steady_rate(run.pages), p95_s=p95, preemptions=preempted)
        points.append(point)
        progress(point)

    await read(1, 1)  # warms it up
    alone, most = await read(1, _ROUNDS), min(most, engine.budget.slots)
    for sequences in sorted({min(size, most) for size in _SIZES}):
        await bench(sequences)
    speed, load = fitted_speed(alone, runs), load_of_pages([alone, *runs])
    if speed:
        enough = knee(speed, load, most, page_seconds)
        if enough not in {point.sequences for point in points}:
            await bench(enough)
    else:
        fastest = max(point.pages_per_s for point in points)
        enough = min(point.sequences for point in points if point.pages_per_s >= KNEE * fastest)
    few = [point for point in points if point.sequences <= enough and point.pages_per_s]
    best = max(few or points, key=lambda point: (point.pages_per_s, -point.sequences))
    if not best.pages_per_s:
        raise base.EngineError(f"Nothing was read: {best.failed}")
    return Tuned(best=best, points=tuple(points), load=load, speed=speed)


def load_of_pages(runs: Sequence[MeasuredRun]) -> PageLoad:
    """Return the tokens of the pages that were read."""
    pages = [page for run in runs for page in run.pages]
    prompt, output = fmean(page.prompt for page in pages), fmean(page.output for page in pages)
    return PageLoad(prompt=prompt, output=output, held=prompt + output / 2)


def steady_rate(read: Sequence[Seen]) -> float:
    """Return the pages a second between the first end and the last admission, while the engine is full."""
    ends = sorted(page.ended for page in read)
    first, last = ends[0], max(page.started for page in read)
    during = sum(first < end <= last for end in ends)
    if during < len(read) / 4:
        return len(read) / ends[-1]
    return during / (last - first)
