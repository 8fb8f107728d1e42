"""What a batch's size and its wait for others do: the same pages through one policy, simulated or on a real engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.lengths import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, BatchPolicy
from pecia_workers.engines.base import EngineError, EngineRequest
from pecia_workers.local.sample_documents import sample_document
from pecia_workers.media.images import to_rgb
from pecia_workers.reading.instructions import instruction_for
from pecia_workers.simulation.figures import at_share
from pecia_workers.simulation.machines import IterationMachine
from pecia_workers.simulation.scenarios import SHARE
from pecia_workers.simulation.simulator import Simulator

if TYPE_CHECKING:
    from pecia_schemas.tasks import DocumentType
    from pecia_workers.engines.base import Engine
    from pecia_workers.engines.iteration import IterationModel
    from pecia_workers.simulation.requests import Request

_LANGUAGE: Final = "en"


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
class _Page:
    waited: float
    ran: float
    output: int


def limits_of(size: int, window: float, concurrent: int) -> BatchLimits:
    """Return batches of this size at most, `concurrent` at a time, whose first waits `window` seconds at most."""
    return BatchLimits(least=size, most=size, tokens=math.inf, concurrent=concurrent, window_s=window)


def simulated_cell(requests: Sequence[Request], model: IterationModel, limits: BatchLimits) -> Cell:
    """Return what becomes of the requests on the simulated engine."""
    machine = IterationMachine(model)
    simulator = Simulator(BatchPolicy(limits, similar=False), machine, LearnedLengths(SHARE))
    served = simulator.run(requests).served
    pages = [
        _Page(
            waited=one.started - one.request.arrived,
            ran=one.ended - one.started,
            output=one.request.output,
        )
        for one in served
    ]
    total = max(one.ended for one in served) - min(one.request.arrived for one in served)
    return _cell(pages, limits, total=total, slots=model.max_num_seqs)


async def measured_cell(
    requests: Sequence[Request], engine: Engine, limits: BatchLimits, *, turn: int
) -> Cell:
    """Return what becomes of the requests on a started engine, in real time.

    `turn`: another one for each call, so that no page was seen before and no cache knows it. Raises `EngineError` if
    not one page was read.
    """
    policy = BatchPolicy(limits, similar=False)
    batcher = Batcher(engine, policy, LearnedLengths(SHARE), priced=lambda *_: None)
    asked = [_asked(request, turn * len(requests) + number) for number, request in enumerate(requests)]
    clock = asyncio.get_running_loop().time
    began = clock()
    pages = await asyncio.gather(
        *(
            _page(batcher, page, began + request.arrived)
            for page, request in zip(asked, requests, strict=True)
        )
    )
    read = [page for page in pages if page is not None]
    if not read:
        raise EngineError("The engine has read none of the pages.")
    total = clock() - began
    return _cell(read, limits, total=total, slots=engine.budget.slots, failed=len(pages) - len(read))


async def _page(batcher: Batcher, request: EngineRequest, moment: float) -> _Page | None:
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(max(0.0, moment - clock()))
    arrived = clock()
    try:
        generation = await batcher.generate(request)
    except EngineError:
        return None
    waited = generation.waited_s
    return _Page(waited=waited, ran=clock() - arrived - waited, output=generation.usage.output)


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
    return [to_rgb(page.image) for page in sample_document(document_type).pages]


def _cell(pages: Sequence[_Page], limits: BatchLimits, *, total: float, slots: int, failed: int = 0) -> Cell:
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
