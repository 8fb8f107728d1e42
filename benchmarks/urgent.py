"""What an urgent job waits behind 10,000 bulk jobs: Pecia's lanes beside the priorities of others.

Every job takes 20 ms, every side works at eight at a time in one worker. Once 100 bulk jobs are done, an urgent one
is handed over about twice a second. Its wait: from the call that hands it over to its committed row, less its 20 ms.
How each side is told what is urgent, and what it fetches ahead, stands in its program in `rivals/`.

Caveats. taskiq and celery-batches know no priorities and are left out: what is urgent there waits for all that came
before it. Priorities of dramatiq order what a worker has fetched; the queue of its own is what makes it fast.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from harness.report import Report, Table, parser, spread
from harness.rounds import measured_in_turn
from harness.servers import Servers
from harness.sides import (
    CELERY,
    DRAMATIQ,
    PECIA,
    PROCRASTINATE,
    Conditions,
    Side,
    Trial,
    add_sides,
    that_run,
    trial,
)

SIDES = (PECIA, CELERY, DRAMATIQ, PROCRASTINATE)
CONDITIONS = Conditions(slots=8, work_s=0.02)
BEGUN = 100
PATIENCE_S = 120


def main() -> None:
    """Run the rounds and print the waits."""
    made = parser(__doc__)
    add_sides(made, SIDES)
    made.add_argument("--bulk", type=int, default=10_000, help="jobs that wait")
    made.add_argument("--urgent", type=int, default=15, help="jobs of one round whose wait is measured")
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    sides, notes = that_run(SIDES, arguments.sides)
    found = measured_in_turn(sides, arguments.rounds, partial(_measure, arguments=arguments))
    _report(found, notes, arguments).tell(as_json=arguments.json)


def _measure(shared: Servers, side: Side, arguments: argparse.Namespace) -> list[float]:
    """Return the seconds that each urgent job waited."""
    with trial(shared, side, CONDITIONS) as at:
        at.hand_over(arguments.bulk)
        at.start_worker()
        at.await_rows(min(BEGUN, arguments.bulk), PATIENCE_S)
        with at.urgent() as hand_over:
            began = dict(_now_and_then(hand_over, arguments.urgent))
        return _waits(at, began)


def _now_and_then(hand_over: Callable[[], tuple[str, float]], jobs: int) -> list[tuple[str, float]]:
    """Return each job, and when it was handed over: at random moments, so that none keeps step with the others."""
    dice = random.Random(0)  # noqa: S311  a workload, no secret
    told = []
    for _ in range(jobs):
        told.append(hand_over())
        time.sleep(dice.uniform(0.2, 0.6))
    return told


def _waits(at: Trial, began: dict[str, float]) -> list[float]:
    deadline = time.monotonic() + PATIENCE_S
    while not (ended := dict(at.finished())).keys() >= began.keys():
        if time.monotonic() > deadline:
            message = f"{at.side.name}: {len(began.keys() - ended.keys())} urgent jobs have no row"
            raise RuntimeError(message)
        time.sleep(0.2)
    return [max(0.0, ended[job] - since - CONDITIONS.work_s) for job, since in began.items()]


def _report(found: dict[str, list[list[float]]], notes: list[str], arguments: argparse.Namespace) -> Report:
    medians = {name: [statistics.median(waits) for waits in rounds] for name, rounds in found.items()}
    ratios = {
        name: [its / max(mine, 1e-6) for mine, its in zip(medians[PECIA.name], rounds, strict=True)]
        for name, rounds in medians.items()
    }
    rows = [
        [
            name,
            spread([1000 * one for one in medians[name]]),
            f"{1000 * max(wait for waits in rounds for wait in waits):,.0f}",
            "" if name == PECIA.name else spread(ratios[name], ".1f"),
        ]
        for name, rounds in found.items()
    ]
    table = Table(
        headings=("", "wait p50, ms", "most, ms", "it / Pecia, p50"),
        rows=rows,
        title=f"{arguments.urgent} urgent jobs behind {arguments.bulk:,}, {arguments.rounds} rounds",
    )
    return Report(tables=[table], notes=notes, figures={"waits_s": found})


if __name__ == "__main__":
    main()
