"""What a batch's size and its wait for others do: the same pages through one policy, simulated or on a real engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, BatchPolicy, Policy
from pecia_workers.engines.base import Engine, EngineError, EngineRequest, Generation
from pecia_workers.engines.iteration import IterationModel
from pecia_workers.engines.profiles import Speed
from pecia_workers.local.samples import WRITERS, sample_document
from pecia_workers.media.images import to_rgb
from pecia_workers.reading.page import instruction_for
from pecia_workers.simulation.requests import Request
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
    """Since it was admitted; None: not told."""
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
    """Return what iterations took, by pages that ran alone and by others; None if that cannot be told.

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


def limits_of(size: int, window: float, concurrent: int) -> BatchLimits:
    """Return batches of this size at most, `concurrent` at a time, whose first waits `window` seconds at most."""
    return BatchLimits(least=size, most=size, tokens=math.inf, concurrent=concurrent, window_s=window)


def simulated_cell(requests: Sequence[Request], model: IterationModel, limits: BatchLimits) -> Cell:
    """Return what becomes of the requests on the simulated engine."""
    machine = IterationMachine(model)
    simulator = Simulator(BatchPolicy(limits, similar=False), machine, LearnedLengths(SHARE))
    served = simulator.run(requests).served
    pages = [
        Seen(waited=one.started - one.request.arrived, ran=one.ended - one.started, output=one.request.output)
        for one in served
    ]
    total = max(one.ended for one in served) - min(one.request.arrived for one in served)
    return _cell(pages, limits, total=total, slots=model.max_num_seqs)


async def measured_cell(
    requests: Sequence[Request], engine: Engine, limits: BatchLimits, *, first: int
) -> tuple[Cell, MeasuredRun]:
    """Return what becomes of the requests on a started engine, in real time. Otherwise as `measured`."""
    run = await measured(requests, engine, BatchPolicy(limits, similar=False), first=first)
    failed = len(requests) - len(run.pages)
    return _cell(run.pages, limits, total=run.seconds, slots=engine.budget.slots, failed=failed), run


async def measured(requests: Sequence[Request], engine: Engine, policy: Policy, *, first: int) -> MeasuredRun:
    """Return what a started engine has read, admitted by a policy.

    `first`: the number of the first page; no two pages of one engine may share theirs, or a cache knows them. Raises
    `EngineError` if not one page was read.
    """
    clocked = _Clocked(engine)
    batcher = Batcher(cast("Engine", clocked), policy, LearnedLengths(SHARE), priced=lambda *_: None)
    asked = [_asked(request, first + number) for number, request in enumerate(requests)]
    clock = asyncio.get_running_loop().time
    began = clock()
    pages = await asyncio.gather(
        *(
            _page(batcher, clocked, page, began, request.arrived)
            for page, request in zip(asked, requests, strict=True)
        )
    )
    read = [page for page in pages if page is not None]
    if not read:
        raise EngineError("The engine has read none of the pages.")
    return MeasuredRun(pages=tuple(read), seconds=clock() - began)


class _Clocked:
    """An engine, and when each request entered it: what made it ready before is a wait, not the engine's time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.entered: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: EngineRequest) -> Generation:
        self.entered[request.id] = asyncio.get_running_loop().time()
        return await self._engine.generate(request)


async def _page(
    batcher: Batcher, engine: _Clocked, request: EngineRequest, began: float, moment: float
) -> Seen | None:
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(max(0.0, began + moment - clock()))
    arrived = clock()
    try:
        generation = await batcher.generate(request)
    except EngineError:
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


def _asked(request: Request, number: int) -> EngineRequest:
    """Return a sample page of the request's type, a few rows lower than any before it."""
    pages = _pages(request.workload)
    return EngineRequest(
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


def _cell(pages: Sequence[Seen], limits: BatchLimits, *, total: float, slots: int, failed: int = 0) -> Cell:
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
