"""`python -m tests.soak`: break a fleet in every way there is and see whether it keeps its promises.

Exits with 0 only if all were kept. The same seed breaks the same things in the same order, as soon as as many pages
are read.
"""

import argparse
import json
import os
import secrets
import sys
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.soak.catalogue import FAULTS
from tests.soak.director import plan
from tests.soak.soak import soak


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
    errors.print("Starting a fleet of two engine workers behind proxies …")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as progress:
        report = soak(arguments, strikes, progress)
    if arguments.json:
        print(json.dumps(report.as_json()))  # noqa: T201  what was asked for
    else:
        report.print(Console(highlight=False))
    sys.exit(0 if report.kept else 1)


def _seconds(number: str) -> timedelta:
    return timedelta(seconds=float(number))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="what to play again")
    parser.add_argument(
        "--pages", type=int, default=2_000, help="at least so many are read (default: %(default)s)"
    )
    parser.add_argument("--strikes", type=int, default=40, help="faults in all (default: %(default)s)")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this kind; may be repeated")
    parser.add_argument(
        "--engine", choices=("simulated", "simulated:instant", "rapidocr"), default="simulated"
    )
    parser.add_argument(
        "--lease", type=_seconds, default="15", help="PECIA_LEASE in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--slack",
        type=_seconds,
        default="0",
        help="seconds beyond each limit, for a machine that is busy with others",
    )
    parser.add_argument("--logs", type=Path, help="copy the workers' logs to this directory in the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


if __name__ == "__main__":
    main()
