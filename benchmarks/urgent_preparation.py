"""How long an urgent page takes behind bulk pages that the engine has admitted, beside a page without precedence.

vLLM prepares pictures on one thread. Bulk pages of A4 at 150 dpi are handed to the engine together, then one page more:
once in the urgent lane, once in theirs, as it would fare if pictures were prepared as they come. On vLLM in this
process, with random weights made here and one token a page, so that preparing is what takes the time. Run by
`make bench-engine`, in vLLM's own environment.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from engine_throughput import CHECKPOINTS, checkpoint
from harness.report import Report, Table, parser, spread
from pecia_schemas import DocumentType, Lane
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import Engine, EngineRequest, create_engine
from pecia_workers.reading.instructions import instruction_for

A4 = (1754, 1240)
"""Height and width in pixels."""
SIDES = {"urgent": Lane.URGENT, "bulk": Lane.BULK}


def main() -> None:
    """Run the rounds and print what came of them."""
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=24, help="bulk pages that come first")
    made.add_argument("--rounds", type=int, default=5)
    arguments = made.parse_args()
    shape = CHECKPOINTS["tiny"]
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        settings = WorkerSettings(
            engine="vllm",
            model=str(checkpoint(shape, Path(scratch) / "tiny")),
            kv_cache_bytes=4 * shape.kv_cache_bytes,
            max_model_len=4096,
            max_num_seqs=64,
            engine_options={"enforce_eager": True},
            log_level="warning",
        )
        seconds = asyncio.run(_measured(settings, arguments.pages, arguments.rounds))
    ratios = [bulk / urgent for urgent, bulk in zip(*seconds.values(), strict=True)]
    table = Table(
        headings=("the page behind them is", "seconds"),
        rows=[[side, spread(of, ".2f")] for side, of in seconds.items()],
        title=f"{arguments.pages} bulk pages before it, {arguments.rounds} rounds",
    )
    note = f"bulk / urgent: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    Report(tables=[table], notes=[note], figures={"ratios": ratios}).tell(as_json=arguments.json)


async def _measured(settings: WorkerSettings, pages: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds until the last page is answered, for each lane of it, round by round."""
    engine = create_engine(settings)
    await engine.start()
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        await _seconds(engine, pages, "warm-up", Lane.BULK)
        for number in range(rounds):
            for side, lane in SIDES.items():
                seconds[side].append(await _seconds(engine, pages, f"{number} {side}", lane))
    finally:
        await engine.stop()
    return seconds


async def _seconds(engine: Engine, pages: int, name: str, lane: Lane) -> float:
    last = _page(name, lane)
    first = [
        asyncio.ensure_future(engine.generate(_page(f"{name} {number}", Lane.BULK)))
        for number in range(pages)
    ]
    await asyncio.sleep(0)
    began = time.monotonic()
    await engine.generate(last)
    seconds = time.monotonic() - began
    await asyncio.gather(*first)
    return seconds


def _page(name: str, lane: Lane) -> EngineRequest:
    picture = np.random.default_rng(len(name)).integers(0, 255, (*A4, 3), dtype=np.uint8)
    return EngineRequest(
        id=name,
        images=(picture,),
        workload=DocumentType.MIXED,
        instruction=instruction_for(DocumentType.MIXED, None),
        max_output_tokens=1,
        priority=lane.rank,
    )


if __name__ == "__main__":
    main()
