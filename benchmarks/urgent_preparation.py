"""What making a page ready for vLLM costs by the number of preparers, and what an urgent one waits behind bulk pages.

First without an engine behind: a page of A4 at 150 dpi, in sealed memory as decoders give it, is rendered, received and
dropped, as if an engine took no time; pages/s and CPU of this process and of the preparers, by number (0: this process
renders). Then vLLM on random weights made here: CPU of this process and of the engine's core for a page that is ready
and whose first tokens the prefix cache holds, one token each, so that next to nothing of it is the model's. Then small
bulk pages are handed to the batcher together with one more behind them: in the urgent lane each round, and once in
theirs. Run by `make bench-engine`, in vLLM's own environment.
"""

import asyncio
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import psutil

from harness.engines import CHECKPOINTS, started
from harness.report import Report, Table, parser, spread
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType
from pecia_workers.batching.batcher import Batcher
from pecia_workers.batching.learned import LearnedLengths
from pecia_workers.batching.policies import BatchLimits, PolicyName, policy_named
from pecia_workers.engines.requests import Prepared
from pecia_workers.media.frames import Memory, sealed
from pecia_workers.protocol.base import Engine, EngineRequest
from pecia_workers.reading.page import instruction_for

A4 = (1754, 1240)
"""Height and width in pixels."""
SMALL = (468, 331)
"""The same at 40 dpi, of which vLLM reads some ten a second on a core."""
LANES = {"urgent": Lane.URGENT, "bulk": Lane.BULK}
KNOWN = 4
"""Pages that are read over and over."""
MS = 1_000.0


@dataclass
class Measured:
    """Of one number of preparers, round by round."""

    rates: list[float] = field(default_factory=list)
    """Pages a second."""
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds a page, by who had them."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of the last page, by its lane."""
    before: dict[str, list[int]] = field(default_factory=dict)
    """Bulk pages that were in the engine before it, by its lane."""


def main() -> None:
    """Run the rounds and print what came of them."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=64, help="bulk pages that come first")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--preparers", type=int, nargs="+", default=[1, 2])
    arguments = made.parse_args()
    sides = {
        count: asyncio.run(_measured(count, arguments.pages, arguments.rounds))
        for count in arguments.preparers
    }
    _report(sides, arguments.pages, arguments.rounds).tell(as_json=arguments.json)


def _report(sides: dict[int, Measured], pages: int, rounds: int) -> Report:
    stages = list(next(iter(sides.values())).cpu)
    costs = Table(
        headings=("preparers", "pages/s", *(f"{stage}, CPU ms a page" for stage in stages)),
        rows=[
            [str(count), spread(of.rates, ".1f"), *(spread(of.cpu[stage], ".1f") for stage in stages)]
            for count, of in sides.items()
        ],
        title=f"{pages} pages, {rounds} rounds",
    )
    waits = Table(
        headings=("preparers", "the page behind them is", "seconds", "bulk pages that the engine had before"),
        rows=[
            [str(count), lane, spread(of.seconds[lane], ".2f"), spread(of.before[lane], ".0f")]
            for count, of in sides.items()
            for lane in LANES
        ],
        title=f"behind {pages} bulk pages, {rounds} rounds",
    )
    rates = {count: statistics.median(of.rates) for count, of in sides.items()}
    notes = [f"two preparers / one: {rates[2] / rates[1]:.2f}"] if {1, 2} <= rates.keys() else []
    return Report(tables=[costs, waits], notes=notes, figures={"pages a second": list(rates.values())})


async def _measured(preparers: int, pages: int, rounds: int) -> Measured:
    measured = Measured()
    sizes = {"max_model_len": 4096, "max_num_seqs": 8, "prepared_bytes": 2**30}
    async with started(CHECKPOINTS["tiny"], preparers=preparers, stages="read", **sizes) as engine:
        await asyncio.gather(*(_prepared_and_dropped(engine, page) for page in _pages("warm-up", 8)))
        known = _pages("known", KNOWN)
        for number in range(rounds):
            await _costs(engine, _pages(str(number), pages), known, measured)
            for name, lane in list(LANES.items())[: 2 if number == 0 else 1]:
                seconds, before = await _behind(engine, f"{number} {name}", lane, pages)
                measured.seconds.setdefault(name, []).append(seconds)
                measured.before.setdefault(name, []).append(before)
    return measured


async def _costs(
    engine: Engine, requests: list[EngineRequest], known: list[EngineRequest], measured: Measured
) -> None:
    """Add what it costs to prepare these pages, then to have known ones that are ready read one after another."""
    clocks: dict[str, Callable[[], float]] = {
        "this process": time.process_time,
        "preparers": lambda: _cpu(_preparers()),
    }
    began, before = time.monotonic(), {name: clock() for name, clock in clocks.items()}
    await asyncio.gather(*(_prepared_and_dropped(engine, request) for request in requests))
    measured.rates.append(len(requests) / (time.monotonic() - began))
    for name, clock in clocks.items():
        spent = (clock() - before[name]) / len(requests) * MS
        measured.cpu.setdefault(f"preparing: {name}", []).append(spent)

    await asyncio.gather(*(engine.generate(page) for page in known))
    some = [await engine.fit(replace(page, id=f"{page.id} {place}")) for page in known for place in range(8)]
    ours, cores = time.process_time(), _cpu(_cores())
    for request in some:
        await engine.generate(request)
    for name, spent in (
        ("this process", time.process_time() - ours),
        ("core", _cpu(_cores()) - cores),
    ):
        measured.cpu.setdefault(f"reading: {name}", []).append(spent / len(some) * MS)


async def _prepared_and_dropped(engine: Engine, request: EngineRequest) -> None:
    fitted = await engine.fit(request)
    cast("Prepared", fitted.prepared).take()


async def _behind(engine: Engine, name: str, lane: Lane, pages: int) -> tuple[float, int]:
    """Return the seconds of one page behind bulk pages, and how many of those the engine had when it came in."""
    entered: list[str] = []
    batcher = Batcher(
        cast("Engine", _Noting(engine, entered)),
        policy_named(PolicyName.CONTINUOUS, BatchLimits()),
        LearnedLengths(0.75),
        priced=lambda _part, _tokens: None,
    )
    bulk = [asyncio.ensure_future(batcher.generate(page)) for page in _pages(name, pages, size=SMALL)]
    await asyncio.sleep(0)
    began = time.monotonic()
    await batcher.generate(_page(name, lane, SMALL))
    seconds = time.monotonic() - began
    for reading in bulk:
        reading.cancel()
    await asyncio.gather(*bulk, return_exceptions=True)
    return seconds, entered.index(name)


class _Noting:
    """The same engine, and in which order requests came in."""

    def __init__(self, engine: Engine, entered: list[str]) -> None:
        self._engine, self._entered = engine, entered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: EngineRequest) -> Any:
        self._entered.append(request.id)
        return await self._engine.generate(request)


def _pages(name: str, count: int, size: tuple[int, int] = A4) -> list[EngineRequest]:
    return [_page(f"{name} {place}", Lane.BULK, size) for place in range(count)]


def _page(name: str, lane: Lane, size: tuple[int, int]) -> EngineRequest:
    height, width = size
    coarse = np.random.default_rng(zlib.crc32(name.encode())).integers(
        0, 255, (height // 14 + 1, width // 14 + 1, 3), dtype=np.uint8
    )
    pixels = np.ascontiguousarray(coarse.repeat(14, axis=0).repeat(14, axis=1)[:height, :width])
    memory = Memory.of(sealed([pixels.data]), 2 * pixels.nbytes)
    return EngineRequest(
        id=name,
        images=(np.frombuffer(memory, np.uint8, pixels.nbytes).reshape(pixels.shape),),
        workload=DocumentType.MIXED,
        instruction=instruction_for(DocumentType.MIXED, None),
        max_output_tokens=1,
        priority=lane.rank,
    )


def _cores() -> list[psutil.Process]:
    """Return the engine's processes: Python's spawned children, which soon give themselves a title."""
    children = psutil.Process().children(recursive=True)
    return [
        child
        for child in children
        if any("VLLM::" in word or "spawn_main" in word for word in child.cmdline())
    ]


def _preparers() -> list[psutil.Process]:
    cores = _cores()
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child not in cores]


def _cpu(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


if __name__ == "__main__":
    main()
