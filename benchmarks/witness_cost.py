"""What a witness costs: pages per second of a fleet whose language model is a server that takes its time, and CPU.

The server stands for a GPU: it writes the true text of the page in so many seconds, so many pages at a time, and takes
no CPU to speak of. `model pages/s` is what it was given, from when it had as much as it takes until its last page;
`pages/s` has the wait of the last pages for their witness in it too. All pages are the same drawn laboratory report.
`missed` pages went without their witness, because the CPU did not keep up. Each side has a fleet of its own, round by
round in turn.
"""

import argparse
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.report import Report, Table, parser, spread
from harness.servers import READY_S, fleet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pecia import Prefer, ReadDocument
from pecia_schemas.settings import WorkerSettings
from tests.shared.chat_server import Behaviour, ChatServerDouble, serving
from tests.shared.witnessed_pages import Drawn, drawn_page

SIDES = ("none", "layer", "ocr")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run."""

    model_per_s: float
    """Pages that the model began, from when it had as many as it takes until its last."""
    pages_per_s: float
    cpu_s_per_page: float
    """Of the fleet's processes that have ended since, all of them."""
    missed: float
    """Share of pages."""
    witness_s: float
    """Median of what a page waited for its witness once the model had read it, and of the comparison."""


def main() -> None:
    """Run the rounds and print what came of them."""
    arguments = _arguments()
    drawn = drawn_page("lab_result", 0)
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with serving(Behaviour(text=drawn.markdown(), takes_s=arguments.seconds)) as server:
        for _ in range(arguments.rounds):
            for side, of in found.items():
                of.append(_measured(side, drawn, server, arguments))
    ratios = {
        side: [one.model_per_s / bare.model_per_s for one, bare in zip(of, found["none"], strict=True)]
        for side, of in found.items()
    }
    rows = [
        [
            side,
            spread([one.model_per_s for one in of], ".2f"),
            spread(ratios[side], ".3f"),
            spread([one.pages_per_s for one in of], ".2f"),
            spread([one.cpu_s_per_page for one in of], ".2f"),
            f"{statistics.mean(one.missed for one in of):.0%}",
            spread([one.witness_s for one in of], ".2f"),
        ]
        for side, of in found.items()
    ]
    table = Table(
        headings=(
            "witness",
            "model pages/s",
            "to none",
            "pages/s",
            "CPU s/page",
            "missed",
            "s behind the model",
        ),
        rows=rows,
        title=f"{arguments.pages} pages, {arguments.connections} at a time of {arguments.seconds:g} s,"
        f" {arguments.processes} witness processes, {arguments.rounds} rounds",
    )
    Report(tables=[table], figures={"ratios": ratios}).tell(as_json=arguments.json)


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=64)
    made.add_argument("--rounds", type=int, default=2)
    made.add_argument("--seconds", type=float, default=8.0, help="of the model for a page")
    made.add_argument("--connections", type=int, default=8, help="pages of the model at a time")
    made.add_argument("--processes", type=int, default=1, help="of the CPU engine as a witness")
    return made.parse_args()


def _measured(side: str, drawn: Drawn, server: ChatServerDouble, arguments: argparse.Namespace) -> Measured:
    chosen: Any = side
    settings = WorkerSettings(
        engine="openai",
        engine_url=server.url,
        engine_connections=arguments.connections,
        cache=False,
        decode_processes=1,
        flower_port=0,
        witness=chosen,
        witness_processes=arguments.processes,
        log_level="warning",
    )
    before = _cpu_s()
    with fleet(settings) as (_, client, _):
        task = ReadDocument(drawn.pdf, prefer=Prefer.PIXELS, cache=False)
        client.submit(task).result(timeout=READY_S)  # everything is warm
        began = time.monotonic()
        jobs = client.submit_many([task] * arguments.pages)
        begins: list[float] = []
        warm = len(server.pages)
        while len(begins) < arguments.pages:
            begins += [time.monotonic()] * (len(server.pages) - warm - len(begins))
            time.sleep(0.02)
        jobs.wait(timeout=3600)
        seconds = time.monotonic() - began
        pages = [page for job in jobs for page in job.result(timeout=0).pages]
    heard = [page.witness.seconds for page in pages if page.witness]
    return Measured(
        model_per_s=(len(begins) - arguments.connections) / (begins[-1] - begins[arguments.connections - 1]),
        pages_per_s=len(pages) / seconds,
        cpu_s_per_page=(_cpu_s() - before) / len(pages),
        missed=0.0 if side == "none" else 1 - len(heard) / len(pages),
        witness_s=statistics.median(heard) if heard else 0.0,
    )


def _cpu_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


if __name__ == "__main__":
    main()
