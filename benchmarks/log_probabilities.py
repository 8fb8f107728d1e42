"""What the log-probabilities of every token cost: tokens per second of the engine with and without them.

The same pages, checkpoint and engine, round by round in turn, on vLLM in this process. The weights are random and made
here; a token costs what its size makes it cost. Run by `make bench-engine`, in vLLM's own environment.
"""

import asyncio
import statistics
import time
from dataclasses import replace

import numpy as np

from harness.engines import CHECKPOINTS, Made, started
from harness.report import Report, Table, parser, spread
from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import Engine, EngineRequest
from pecia_workers.reading.page import instruction_for

MOST_TOKENS = 128


def main() -> None:
    """Run the rounds and print what came of them."""
    made = parser(__doc__)
    made.add_argument("--checkpoint", choices=CHECKPOINTS, default="tiny")
    made.add_argument("--pages", type=int, default=64)
    made.add_argument("--rounds", type=int, default=5)
    arguments = made.parse_args()
    rates = asyncio.run(_measured(CHECKPOINTS[arguments.checkpoint], arguments.pages, arguments.rounds))
    ratios = [with_them / without for without, with_them in zip(*rates.values(), strict=True)]
    table = Table(
        headings=("", "tokens/s"),
        rows=[[side, spread(of, ",.0f")] for side, of in rates.items()],
        title=f"{arguments.pages} pages, {arguments.rounds} rounds, checkpoint {arguments.checkpoint}",
    )
    note = f"with / without: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    Report(tables=[table], notes=[note], figures={"ratios": ratios}).tell(as_json=arguments.json)


async def _measured(made: Made, pages: int, rounds: int) -> dict[str, list[float]]:
    """Return tokens per second without and with log-probabilities, round by round."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    async with started(made, max_model_len=2048, max_num_seqs=32) as engine:
        await _rate(engine, pages, -1, wanted=True)
        for number in range(rounds):
            for side, of in rates.items():
                of.append(await _rate(engine, pages, number, wanted=side == "with"))
    return rates


async def _rate(engine: Engine, pages: int, number: int, *, wanted: bool) -> float:
    requests = [
        replace(_request(place), id=f"{number}-{wanted}-{place}", log_probabilities=wanted)
        for place in range(pages)
    ]
    began = time.monotonic()
    answers = await asyncio.gather(*map(engine.generate, requests))
    return sum(answer.usage.output for answer in answers) / (time.monotonic() - began)


def _request(number: int) -> EngineRequest:
    coarse = np.random.default_rng(number).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    return EngineRequest(
        id=str(number),
        images=(coarse.repeat(28, axis=0).repeat(28, axis=1),),
        workload=DocumentType.PRESCRIPTION,
        instruction=instruction_for(DocumentType.PRESCRIPTION, None),
        max_output_tokens=MOST_TOKENS,
    )


if __name__ == "__main__":
    main()
