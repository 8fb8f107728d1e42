"""What a bundle costs beside reading its pages alone: CPU seconds of a whole fleet, and memory of the split.

The same PDF is read as `ReadDocument` and as `ReadBundle` in turn, on one fleet, from the text that it brings
(`layer`: the cheapest reading there is, so the split weighs most) and from its pixels by the CPU engine (`pixels`).
CPU is that of all processes of the fleet, servers included, from the call until the result is there. The ratio is of
rounds side by side. The pages are those of drawn bundles.

Memory is the most that splitting pages takes beyond them, in a process of its own (`tracemalloc`), for the bundle and
for one ten times as long: what is kept of a page is all that grows.
"""

import argparse
import os
import statistics
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.report import Report, Table, parser, spread
from harness.servers import fleet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pecia import Client, Prefer, ReadBundle, ReadDocument
from pecia_schemas.results import Page
from pecia_schemas.settings import WorkerSettings
from pecia_workers.bundles.splitting import split
from tests.shared.bundle_files import pdf_of
from tests.shared.drawn_bundles import drawn_bundle

TICKS = os.sysconf("SC_CLK_TCK")
SESSION, USER, SYSTEM = 3, 11, 12  # of /proc/PID/stat, counted from 0 behind the program's name


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    say = Console(stderr=True).print
    sides = {"layer": (Prefer.LAYER, arguments.pages), "pixels": (Prefer.PIXELS, arguments.pixels)}
    found: dict[str, list[tuple[float, float]]] = {}
    settings = WorkerSettings(engine="cpu", cache=False, flower_port=0, log_format="json", witness="none")
    with fleet(settings) as (at_work, client, _):
        sessions = {pid for service in at_work.services() if (pid := service.pid) is not None}
        for name, (prefer, count) in sides.items():
            content = pdf_of([*sheets(count)])
            if count:  # loads what is loaded once
                _read(client, ReadBundle(pdf_of([*sheets(4)]), prefer=prefer))
            for number in range(arguments.rounds if count else 0):
                tasks = (ReadDocument(content, prefer=prefer), ReadBundle(content, prefer=prefer))
                alone, bundled = (_cpu_of(client, task, sessions) for task in tasks)
                found.setdefault(name, []).append((alone / count, bundled / count))
                say(f"{name}, round {number + 1}: {alone:.1f} s, as a bundle {bundled:.1f} s")
    memory = {count: peak_bytes(count) for count in (arguments.pages, 10 * arguments.pages)}
    _report(found, memory).tell(as_json=arguments.json)


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--pages", type=int, default=200, help="that bring their text")
    made.add_argument("--pixels", type=int, default=20, help="that the CPU engine reads")
    made.add_argument("--rounds", type=int, default=3)
    return made.parse_args()


def sheets(count: int) -> Iterator[list[str]]:
    """Yield the lines of so many pages of drawn bundles that a PDF's standard fonts can print."""
    seed = 0
    while count:
        for page in drawn_bundle(seed).pages:
            if count and page.text and page.text.isascii():
                count -= 1
                yield page.text.splitlines()
        seed += 1


def _read(client: Client, task: Any) -> None:
    client.submit(task).result(timeout=3600)


def _cpu_of(client: Client, task: Any, sessions: set[int]) -> float:
    """Return the CPU seconds that the fleet and this process spend on a task."""
    before = _spent(sessions)
    _read(client, task)
    return _spent(sessions) - before


def _spent(sessions: set[int]) -> float:
    ticks = 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if process.name.isdigit():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += (int(fields[SESSION]) in sessions) * (int(fields[USER]) + int(fields[SYSTEM]))
    return ticks / TICKS


def peak_bytes(count: int) -> int:
    """Return the most memory that splitting so many pages takes beyond a page at a time."""

    def pages() -> Iterator[Page]:
        number = seed = 0
        while number < count:
            for page in drawn_bundle(seed % 50).pages:
                number += 1
                yield page.model_copy(update={"number": number})
            seed += 1

    tracemalloc.start()
    split(pages())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def _report(found: dict[str, list[tuple[float, float]]], memory: dict[int, int]) -> Report:
    rows: list[Sequence[str]] = []
    figures: dict[str, Any] = {"memory": memory}
    for name, rounds in found.items():
        ratios = [bundled / alone for alone, bundled in rounds]
        figures[name] = {"rounds": rounds, "ratio": statistics.median(ratios)}
        cells = ([alone for alone, _ in rounds], [bundled for _, bundled in rounds])
        rows.append(
            [name, *(spread([1000 * one for one in cell], ".0f") for cell in cells), spread(ratios, ".3f")]
        )
    headings = ("read from", "CPU ms a page, alone", "as a bundle", "ratio")
    held = Table(
        headings=("pages", "peak of the split, MB", "kB a page"),
        rows=[
            [f"{count:,}", f"{size / 1e6:.1f}", f"{size / count / 1e3:.1f}"] for count, size in memory.items()
        ],
    )
    return Report(tables=[Table(headings=headings, rows=rows), held], figures=figures)


if __name__ == "__main__":
    main()
