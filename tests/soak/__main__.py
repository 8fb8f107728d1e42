"""`python -m tests.soak`: break a fleet in every way there is and see whether it keeps its promises.

Exits with 0 only if all were kept. The same seed breaks the same things in the same order, as soon as as many pages
are read.
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.soak.catalogue import FAULTS
from tests.soak.plan import plan
from tests.soak.soak import Task, Watcher, soak

_PAGES = 2_000
_STRIKES = 40
_LEASE_S = 15.0


def main() -> None:
    """Run one soak and tell what came of it."""
    arguments = _arguments()
    errors = Console(stderr=True, highlight=False)
    errors.print(f"Seed {arguments.seed} (make soak SEED={arguments.seed} plays it again)")
    for name in [name for name in os.environ if name.startswith("PECIA_")]:
        del os.environ[name]
    strikes = plan(
        arguments.seed, pages=arguments.pages, faults=arguments.fault or list(FAULTS), count=arguments.strikes
    )
    task = Task(
        seed=arguments.seed,
        pages=arguments.pages,
        plan=strikes,
        engine=arguments.engine,
        lease=timedelta(seconds=arguments.lease),
        slack=timedelta(seconds=arguments.slack),
        logs=arguments.logs,
    )
    with _watched(errors, arguments.pages) as watcher:
        report = soak(task, watcher)
    if arguments.json:
        print(json.dumps(report.as_json()))  # noqa: T201  what was asked for
    else:
        report.print(Console(highlight=False))
    sys.exit(0 if report.kept else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="what to play again")
    parser.add_argument(
        "--pages", type=int, default=_PAGES, help="at least so many are read (default: %(default)s)"
    )
    parser.add_argument("--strikes", type=int, default=_STRIKES, help="faults in all (default: %(default)s)")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this kind; may be repeated")
    parser.add_argument(
        "--engine", choices=("simulated", "simulated:instant", "rapidocr"), default="simulated"
    )
    parser.add_argument(
        "--lease", type=float, default=_LEASE_S, help="PECIA_LEASE in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--slack",
        type=float,
        default=0.0,
        help="seconds beyond each limit, for a machine that is busy with others",
    )
    parser.add_argument("--logs", type=Path, help="copy the workers' logs to this directory in the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


@contextmanager
def _watched(console: Console, pages: int) -> Iterator[Watcher]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console.print("Starting a fleet of two engine workers behind proxies …")
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("pages over", total=pages, start=False)
        yield Watcher(
            began=lambda: progress.start_task(bar),
            moved=lambda over: progress.update(bar, completed=over, total=max(pages, over)),
            told=progress.console.print,
        )


if __name__ == "__main__":
    main()
