"""All benchmarks that can run on this machine, one after the other, or those that are named: `make bench`.

Prints each one's tables, keeps what was found in `results/` and writes docs/benchmarks.md anew.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.catalogue import CATALOGUE, HERE, Benchmark, Size, named
from harness.page import PAGE, page
from harness.report import Report
from harness.results import RESULTS, Results, entry_of

_say = Console(stderr=True, highlight=False).print


def main() -> None:
    """Run them; exits with 1 if one of them failed."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="*", help=", ".join(one.name for one in CATALOGUE))
    made.add_argument("--size", type=Size, choices=Size, default=Size.DEFAULT)
    made.add_argument("--results", type=Path, default=RESULTS, help="where to keep what was found")
    made.add_argument("--only-page", action="store_true", help="run nothing, write docs/benchmarks.md anew")
    arguments = made.parse_args()
    if not arguments.only_page:
        try:
            benchmarks = named(arguments.names)
        except LookupError as error:
            sys.exit(str(error))
        failed = _run_all(benchmarks, arguments.size, arguments.results)
    else:
        failed = []
    if arguments.results == RESULTS:
        PAGE.write_text(page())
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def _run_all(benchmarks: list[Benchmark], size: Size, directory: Path) -> list[str]:
    """Run them in order and return the names of those that failed; what was found is kept after each."""
    results, path = Results.of_today(directory)
    failed = []
    for number, benchmark in enumerate(benchmarks):
        _say(f"[bold]{number + 1} of {len(benchmarks)}: {benchmark.name}[/] {benchmark.heading}")
        if lack := benchmark.lacks if size in benchmark.sizes else f"not in the size {size}":
            _say(f"  left out: {lack}")
            continue
        began = time.perf_counter()
        told = _run(benchmark, size)
        if told is None:
            failed.append(benchmark.name)
            continue
        took = time.perf_counter() - began
        command = " ".join(["python", f"benchmarks/{benchmark.script}", *benchmark.sizes[size]])
        results.benchmarks[benchmark.name] = entry_of(size, command, told, took)
        results.write(path)
        Report.of(told).tell(as_json=False)
        _say(f"  {took:.0f} s")
    return failed


def _run(benchmark: Benchmark, size: Size) -> Mapping[str, Any] | None:
    """Return what the script printed, None if it failed."""
    command = [sys.executable, str(benchmark.path), "--json", *benchmark.sizes[size]]
    environment = os.environ | ({"BENCH_CARELESS": "1"} if size is Size.TINY else {})
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, cwd=HERE.parent, env=environment
    )
    if done.returncode:
        return None
    told: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()
