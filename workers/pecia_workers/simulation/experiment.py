"""What sizes do to an engine: a batch's size and its wait for others, the sequences at a time, the tokens of a step.

An experiment sends the same pages through one policy, simulated or on a real engine. Tuning measures a real one, in as
few points as will do: the pages a second rise with the sequences that run at a time, ever less, and fall again where
prompts are computed twice or pages crowd each other out; so doubling finds the hill and halving its top. One engine
measures all of that: it is admitted fewer pages than it could run. The tokens of a step are set when it starts, so each
choice is a start.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.tasks import DocumentType
from pecia_workers.batching import policies
from pecia_workers.batching.admission import Capacity
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.engines.profiles import Speed
from pecia_workers.engines.simulated import IterationModel
from pecia_workers.media.images import to_rgb
from pecia_workers.media.samples import WRITERS, sample_document
from pecia_workers.protocol import base
from pecia_workers.reading.page import instruction_for
from pecia_workers.simulation.requests import Mix, Request, all_at_once, drawn
from pecia_workers.simulation.scenarios import SHARE, at_share
from pecia_workers.simulation.simulator import IterationMachine, Simulator

_LANGUAGE: Final = "en"
_ENOUGH_TOKENS: Final = 8
_SEVERAL: Final = 1.5
"""Pages at a time, on average, from which on a run tells more than that of one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one size and one window came to; times in seconds."""

    size: int
    window: float
    mean: float
    """From arrival to end."""
    p95: float
    waiting: float
    """Of it, before the engine, on average."""
    tokens_per_s: float
    """Written."""
    utilisation: float
    """Share of the engine's places that were taken, over the time."""
    failed: int = 0
    """Pages that the engine gave up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One page that an engine read; times in seconds."""

    waited: float
    """Before it was admitted, being made ready among it."""
    ran: float
    output: int
    prompt: int = 0
    first_token: float | None = None
    """Since it was admitted; None: not known."""
    ended: float = 0.0
    """Since the first arrival."""

    @property
    def started(self) -> float:
        """When it was admitted, since the first arrival."""
        return self.ended - self.ran


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What an engine has read at one go."""

    pages: tuple[Seen, ...]
    seconds: float
    """From the first arrival to the last end."""


def fitted_speed(alone: MeasuredRun, runs: Sequence[MeasuredRun]) -> Speed | None:
    """Return what iterations took, by pages that ran alone and by others; None if that is not known.

    Alone a page reads its prompt before its first token, then writes one in `base + d`. A run of t seconds with n pages
    at a time that read P and wrote O tokens was O/n iterations: t = base O/n + p P + d O.
    """
    page = max(alone.pages, key=lambda one: one.output)
    if page.first_token is None or page.output < _ENOUGH_TOKENS or not page.prompt:
        return None
    token = (page.ran - page.first_token) / (page.output - 1)
    prefill = max(0.0, page.first_token - token) / page.prompt
    bases = []
    for run in runs:
        written = sum(page.output for page in run.pages)
        at_a_time = sum(page.ran for page in run.pages) / run.seconds
        if at_a_time > _SEVERAL:
            writing = run.seconds - prefill * sum(page.prompt for page in run.pages)
            bases.append((token * written - writing) / (written * (1 - 1 / at_a_time)))
    base = min(token, max(token / 100, fmean(bases))) if bases else token
    return Speed(base_s=base, prefill_token_s=prefill, decode_sequence_s=token - base)


def limits_of(size: int, window: float, concurrent: int) -> policies.BatchLimits:
    """Return batches of this size at most, `concurrent` at a time, whose first waits `window` seconds at most."""
    return policies.BatchLimits(
        least=size, most=size, tokens=math.inf, concurrent=concurrent, window_s=window
    )


def simulated_cell(requests: Sequence[Request], model: IterationModel, limits: policies.BatchLimits) -> Cell:
    """Return what becomes of the requests on the simulated engine."""
    machine = IterationMachine(model)
    simulator = Simulator(policies.BatchPolicy(limits, similar=False), machine, LearnedLengths(SHARE))
    served = simulator.run(requests).served
    pages = [
        Seen(waited=one.started - one.request.arrived, ran=one.ended - one.started, output=one.request.output)
        for one in served
    ]
    total = max(one.ended for one in served) - min(one.request.arrived for one in served)
    return _cell(pages, limits, total=total, slots=model.max_num_seqs)


async def measured_cell(
    requests: Sequence[Request], engine: base.Engine, limits: policies.BatchLimits, *, first: int
) -> tuple[Cell, MeasuredRun]:
    """Return what becomes of the requests on a started engine, in real time. Otherwise as `measured`."""
    run = await measured(requests, engine, policies.BatchPolicy(limits, similar=False), first=first)
    failed = len(requests) - len(run.pages)
    return _cell(run.pages, limits, total=run.seconds, slots=engine.budget.slots, failed=failed), run


async def measured(
    requests: Sequence[Request], engine: base.Engine, policy: policies.Policy, *, first: int
) -> MeasuredRun:
    """Return what a started engine has read, admitted by a policy.

    `first`: the number of the first page; no two pages of one engine may share theirs, or a cache knows them. Raises
    `EngineError` if not one page was read.
    """
    clocked = _Clocked(engine)
    batcher = Batcher(cast("base.Engine", clocked), policy, LearnedLengths(SHARE), priced=lambda *_: None)
    engine_requests = [_request_of(request, first + number) for number, request in enumerate(requests)]
    clock = asyncio.get_running_loop().time
    began = clock()
    pages = await asyncio.gather(
        *(
            _page(batcher, clocked, page, began, request.arrived)
            for page, request in zip(engine_requests, requests, strict=True)
        )
    )
    read = [page for page in pages if page is not None]
    if not read:
        raise base.EngineError("The engine has read none of the pages.")
    return MeasuredRun(pages=tuple(read), seconds=clock() - began)


class _Clocked:
    """An engine, and when each request entered it: what made it ready before is a wait, not the engine's time."""

    def __init__(self, engine: base.Engine) -> None:
        self._engine = engine
        self.entered: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: base.EngineRequest) -> base.Generation:
        self.entered[request.id] = asyncio.get_running_loop().time()
        return await self._engine.generate(request)


async def _page(
    batcher: Batcher, engine: _Clocked, request: base.EngineRequest, began: float, moment: float
) -> Seen | None:
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(max(0.0, began + moment - clock()))
    arrived = clock()
    try:
        generation = await batcher.generate(request)
    except base.EngineError:
        return None
    now, entered, usage = clock(), engine.entered[request.id], generation.usage
    return Seen(
        waited=entered - arrived,
        ran=now - entered,
        output=usage.output,
        prompt=usage.prompt,
        first_token=generation.first_token_s,
        ended=now - began,
    )


def _request_of(request: Request, number: int) -> base.EngineRequest:
    """Return a sample page of the request's type, a few rows lower than any before it."""
    pages = _pages(request.workload)
    return base.EngineRequest(
        id=f"experiment-{number}",
        images=(np.roll(pages[number % len(pages)], number, axis=0),),
        workload=request.workload,
        language=_LANGUAGE,
        instruction=instruction_for(request.workload, _LANGUAGE),
    )


@cache
def _pages(document_type: DocumentType) -> list[NDArray[np.uint8]]:
    kinds = WRITERS if document_type is DocumentType.MIXED else [document_type]
    return [to_rgb(page.image) for kind in kinds for page in sample_document(kind).pages]


def _cell(
    pages: Sequence[Seen], limits: policies.BatchLimits, *, total: float, slots: int, failed: int = 0
) -> Cell:
    times = sorted(page.waited + page.ran for page in pages)
    return Cell(
        size=limits.most,
        window=limits.window_s,
        mean=fmean(times),
        p95=at_share(times, 0.95),
        waiting=fmean(page.waited for page in pages),
        tokens_per_s=sum(page.output for page in pages) / total,
        utilisation=sum(page.ran for page in pages) / (slots * total),
        failed=failed,
    )


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
    """Why there is no result."""


Measure = Callable[[int], Awaitable[Point]]
"""Returns the point of so many sequences, or of so many tokens in a step."""
Progress = Callable[[Point], None]
"""Hears of each point as soon as it is known."""
Open = Callable[[dict[str, int]], AbstractAsyncContextManager[base.Engine]]
"""Starts an engine with these sizes, by the fleet's names, for as long as the block runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was found."""

    best: Point
    points: tuple[Point, ...]
    """As they were measured."""
    speed: Speed | None
    """None: the engine does not report when it wrote its first token."""


async def tune(
    opened: Open, mix: Mix, progress: Progress, *, most: int, batched_tokens: int, steps: bool = True
) -> Tuned:
    """Measure sizes: up to `most` sequences, and other steps than those of `batched_tokens` unless not `steps`.

    Raises `EngineUnavailableError` and `EngineError` if the first engine does not start or reads nothing.
    """
    points: list[Point] = []

    def note(point: Point) -> None:
        points.append(point)
        progress(point)

    async with opened({"max_num_seqs": most, "max_num_batched_tokens": batched_tokens}) as engine:
        bench = Bench(engine, mix, note, batched_tokens=batched_tokens)
        alone = await bench.alone()
        best = await best_sequences(bench, min(most, engine.budget.slots))
        speed = fitted_speed(alone, bench.runs)
    if not best.pages_per_s:
        raise base.EngineError(f"Nothing was read: {best.failed}")

    async def restarted(tokens: int) -> Point:
        try:
            sizes = {"max_num_seqs": best.sequences, "max_num_batched_tokens": tokens}
            async with opened(sizes) as engine:
                other = Bench(engine, mix, note, batched_tokens=tokens)
                await other.alone()
                return await other(best.sequences)
        except (base.EngineUnavailableError, base.EngineError) as error:
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
    while True:
        gaps = [pair for pair in pairwise(sorted(known)) if best.sequences in pair]
        low, high = max(gaps, key=lambda gap: gap[1] / gap[0], default=(1, 1))
        if high / low <= _LEAST_GAP:
            return best
        point = await at(round((low * high) ** 0.5))
        best = point if _better(point, best) else best


def _better(point: Point, other: Point) -> bool:
    gain = GAIN if point.sequences > other.sequences else 1 / GAIN
    return point.pages_per_s > gain * other.pages_per_s


class _Narrow(policies.ContinuousPolicy):
    """Admits as to an engine of fewer sequences."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots

    def start(self, now: float, capacity: Capacity) -> list[policies.Start]:
        return super().start(now, replace(capacity, slots=min(self._slots, capacity.slots)))


class Bench:
    """Measures one started engine, with other pages each time."""

    def __init__(self, engine: base.Engine, mix: Mix, progress: Progress, *, batched_tokens: int) -> None:
        self._engine = engine
        self._mix = mix
        self._progress = progress
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
        except base.EngineDeadError:
            raise
        except base.EngineError as error:
            point = replace(point, failed=str(error))
        else:
            self.runs.append(run)
            point = replace(
                point,
                pages_per_s=steady_rate(run.pages),
                p95_s=at_share(sorted(page.ran for page in run.pages), 0.95),
                preemptions=self._engine.load().preemptions - before,
            )
        self._progress(point)
        return point

    async def _read(self, sequences: int, pages: int) -> MeasuredRun:
        first, self._pages = self._pages, self._pages + pages
        engine_requests = drawn(all_at_once(pages), self._mix, first)
        return await measured(engine_requests, self._engine, _Narrow(sequences), first=first)


def steady_rate(read: Sequence[Seen]) -> float:
    """Return the pages a second from the first that ended to the last that was admitted: the engine is full then."""
    ends = sorted(page.ended for page in read)
    first, last = ends[0], max(page.started for page in read)
    during = sum(first < end <= last for end in ends)
    if during < len(read) / 4:
        return len(read) / ends[-1]
    return during / (last - first)
