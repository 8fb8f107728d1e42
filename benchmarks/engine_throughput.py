"""Pages per second of a whole fleet beside vLLM alone, on the same pages, model, engine arguments and cores.

Three ways, interleaved, each round in fresh processes with the model loaded and a few pages read before the clock runs:

- offline `LLM.chat`: all requests known beforehand, from files to texts in memory, nothing is kept;
- `vllm run-batch`: from a file of requests to a file of responses;
- Pecia: from the first submit to the last committed row, through payload store, Postgres and Redis.

All three have the engine's arguments and environment that the fleet's worker would choose.

Caveats. On the CPU the engine computes on one core and everything else shares the other; on a GPU host the fleet's
work would run beside the GPU. The checkpoints are random weights, what they write has no meaning but takes the same
time; `reader` is the small model that reads, on slips (BENCH_FONTS: the fonts' directory). CPU is that of a side's
processes that live from the first page to the last, with the spinning of an engine that waits.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import Progress

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "rivals"))

from harness.engines import CHECKPOINTS, READER, checkpoint, drawn_slips, run_side  # noqa: E402
from harness.report import Report, Table, parser, spread  # noqa: E402
from pecia_schemas.tasks import DocumentType  # noqa: E402
from pecia_workers.reading.page import instruction_for  # noqa: E402
from vllm_job import Answer, Job  # noqa: E402  programs of that directory import it by the same name

SIDES = {"LLM.chat": "offline_chat.py", "run-batch": "run_batch.py", "Pecia": "pecia_fleet.py"}


WARM_UP = 16
SLIPS = 20261129
"""Seed of the slips, which no other benchmark draws."""


def main() -> None:
    """Run the rounds and print what came of them."""
    made = parser(__doc__)
    made.add_argument(
        "--checkpoint",
        choices=(*CHECKPOINTS, "reader"),
        default="tiny",
        help="random weights, made here; or the small model that reads, on slips",
    )
    made.add_argument("--model", type=Path, help="a checkpoint's directory instead")
    made.add_argument("--load-format", default="auto", help="dummy: weights made up by vLLM, for --model")
    made.add_argument("--kv-cache-bytes", type=int, help="for --model")
    made.add_argument("--log-probabilities", action="store_true", help="of every token, on all sides")
    made.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="Pecia is one always")
    made.add_argument("--pages", type=int, default=256)
    made.add_argument("--rounds", type=int, default=5)
    arguments = made.parse_args()
    arguments.sides = [side for side in SIDES if side in arguments.sides or side == "Pecia"]
    with tempfile.TemporaryDirectory(prefix="pecia-bench-") as scratch:
        directory = Path(scratch)
        job = _job(arguments, directory)
        answers = _measure(job, arguments, directory)
    _report(answers, arguments).tell(as_json=arguments.json)


def _job(arguments: argparse.Namespace, directory: Path) -> Job:
    reads = arguments.checkpoint == "reader"
    made = CHECKPOINTS["115M" if reads else arguments.checkpoint]
    count = arguments.pages + WARM_UP
    if reads:
        drawn = drawn_slips(SLIPS, count)
        pages = [_saved(slip.pixels, directory / f"{number}.png") for number, slip in enumerate(drawn)]
    else:
        pages = [_draw(directory / f"{number}.png", number) for number in range(count)]
    here = arguments.model or (READER if reads else checkpoint(made, directory / arguments.checkpoint))
    return Job(
        pages=pages[WARM_UP:],
        warm_up=pages[:WARM_UP],
        instruction=instruction_for(DocumentType.PRESCRIPTION, None),
        most_tokens=400 if reads else 32,
        log_probabilities=arguments.log_probabilities,
        worker={
            "model": str(here),
            "max_model_len": 2048,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 2048,
            "kv_cache_bytes": arguments.kv_cache_bytes or made.kv_cache_bytes,
            "enforce_eager": True,
            "engine_options": {"load_format": arguments.load_format},
        },
    )


def _draw(path: Path, number: int) -> str:
    """Draw coarse noise, no two pages alike."""
    coarse = np.random.default_rng(number).integers(0, 255, (10, 14, 3), dtype=np.uint8)
    return _saved(coarse.repeat(16, axis=0).repeat(16, axis=1), path)


def _saved(pixels: NDArray[np.uint8], path: Path) -> str:
    Image.fromarray(pixels).save(path)
    return str(path)


def _measure(job: Job, arguments: argparse.Namespace, directory: Path) -> dict[str, list[Answer]]:
    answers: dict[str, list[Answer]] = {side: [] for side in arguments.sides}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=arguments.rounds * len(answers))
        for number in range(arguments.rounds):
            # The first of a round is the last of the next: what else the machine does hits both.
            for side in sorted(answers, key=arguments.sides.index, reverse=number % 2 > 0):
                progress.update(task, description=f"round {number + 1}: {side}")
                answers[side].append(run_side(SIDES[side], job, directory))
                progress.advance(task)
    return answers


def _report(answers: dict[str, list[Answer]], arguments: argparse.Namespace) -> Report:
    ours = answers["Pecia"]
    told: dict[str, Any] = {
        "pages": arguments.pages,
        "rounds": arguments.rounds,
        "pages_per_s": {
            side: [round(arguments.pages / one.seconds, 2) for one in of] for side, of in answers.items()
        },
        "output_tokens": {side: [sum(one.output_tokens) for one in of] for side, of in answers.items()},
        "ratios": {
            rival: [
                round(theirs.seconds / one.seconds, 3)
                for one, theirs in zip(ours, answers[rival], strict=True)
            ]
            for rival in answers
            if rival != "Pecia"
        },
        "cpu_s": {side: [round(one.cpu_seconds, 1) for one in of] for side, of in answers.items()},
        "prompts_alike": all(
            one.prompt_tokens == ours[0].prompt_tokens for of in answers.values() for one in of
        ),
        "drifted": sum(one.drifted or 0 for one in ours),
        "packing": [one.packing for one in ours],
        "preemptions": [one.preemptions for one in ours],
    }
    return Report(tables=[_table(answers, arguments)], notes=_facts(told), figures=told)


def _table(answers: dict[str, list[Answer]], arguments: argparse.Namespace) -> Table:
    rows = []
    for side, of in answers.items():
        rates = [arguments.pages / one.seconds for one in of]
        tokens = statistics.median(sum(one.output_tokens) for one in of)
        cores = [one.cpu_seconds / arguments.pages * 1000 for one in of]
        rows.append([side, spread(rates, ",.2f"), spread(cores, ",.0f"), f"{tokens:,.0f}"])
    return Table(
        headings=("", "pages/s", "CPU ms a page", "output tokens"),
        rows=rows,
        title=f"{arguments.pages} pages, {arguments.rounds} rounds",
    )


def _facts(told: dict[str, Any]) -> list[str]:
    lines = [
        f"Pecia / {rival}: {statistics.median(of):.3f} (median of rounds; {min(of):.3f} to {max(of):.3f})"
        for rival, of in told["ratios"].items()
    ]
    alike = "the same for all" if told["prompts_alike"] else "NOT the same for all"
    lines.append(f"Prompt tokens of every page: {alike}; predicted wrongly by the fleet: {told['drifted']}")
    lines.append(f"KV cache in use while pages waited: {told['packing']}; put back: {told['preemptions']}")
    return lines


if __name__ == "__main__":
    main()
