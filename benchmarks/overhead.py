"""What a job costs beside its work: Pecia beside the libraries you would pick instead, on the same Postgres and Redis.

The work is nothing and one committed row a job. Each side is set up as its own pages advise for throughput; what was
chosen stands in its program in `rivals/`. Each round gives every side a fresh database and an empty Redis, in turn,
so that a busy machine hits all of them:

- worked off: jobs that wait already, jobs/s from the moment a tenth of the rows is there until all are;
- in all: as many jobs again while the worker waits for them, jobs/s from the first that is handed over to the last row;
- CPU: of the worker's processes, for a thousand jobs of the latter.

Every row is counted: a side that lost or doubled one ends the benchmark.

Caveats. Each job of Pecia is a job, a part, a result and three events in Postgres, and a document in the payload
store; the others write the one row and keep nothing of a job when it is over (but procrastinate, which keeps the
job). Client, worker and servers share the cores. celery-batches needs a Celery before 5.7 and runs on that.
"""

import argparse
import statistics
from dataclasses import asdict, dataclass
from functools import partial

from harness.report import Report, Table, parser, spread
from harness.rounds import measured_in_turn
from harness.servers import Servers
from harness.sides import (
    BATCHES,
    CELERY,
    DRAMATIQ,
    PECIA,
    PROCRASTINATE,
    TASKIQ,
    Conditions,
    Side,
    Trial,
    add_sides,
    cpu_seconds,
    that_run,
    trial,
)

SIDES = (PECIA, CELERY, BATCHES, DRAMATIQ, PROCRASTINATE, TASKIQ)
PATIENCE_S = 240
HEAD = 10
"""The clock starts when one of so many rows is there."""
SHORTEST_S = 0.001
"""A few jobs may all get their row in one transaction, at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of one side."""

    handed_over_per_s: float
    worked_off_per_s: float
    in_all_per_s: float
    cpu_ms: float
    """Of the worker, for a job."""


def main() -> None:
    """Run the rounds and print the medians."""
    made = parser(__doc__)
    add_sides(made, SIDES)
    made.add_argument("--jobs", type=int, default=3_000, help="that wait, and as many again")
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    sides, notes = that_run(SIDES, arguments.sides)
    found = measured_in_turn(sides, arguments.rounds, partial(_measure, jobs=arguments.jobs))
    _report(found, notes, arguments).tell(as_json=arguments.json)


def _measure(shared: Servers, side: Side, jobs: int) -> Measured:
    with trial(shared, side, Conditions()) as at:
        at.hand_over(jobs)
        worker = at.start_worker()
        waited = _times(at, jobs)
        before = cpu_seconds(worker.pid)
        handed = at.hand_over(jobs)
        came = _times(at, 2 * jobs)
        cpu = cpu_seconds(worker.pid) - before
    head = jobs // HEAD
    return Measured(
        handed_over_per_s=jobs / handed.seconds,
        worked_off_per_s=(jobs - head) / max(SHORTEST_S, waited[-1] - waited[head - 1]),
        in_all_per_s=jobs / (came[-1] - handed.began),
        cpu_ms=cpu / jobs * 1000,
    )


def _times(at: Trial, jobs: int) -> list[float]:
    """Return when each job got its row, in order; each must have exactly one."""
    rows = at.await_rows(jobs, PATIENCE_S)
    if len(rows) != jobs or len({job for job, _ in rows}) != jobs:
        message = f"{at.side.name}: {len(rows)} rows of {len({job for job, _ in rows})} jobs, not {jobs}"
        raise RuntimeError(message)
    return sorted(since for _, since in rows)


def _report(found: dict[str, list[Measured]], notes: list[str], arguments: argparse.Namespace) -> Report:
    ours = found[PECIA.name]
    ratios = {
        name: [mine.in_all_per_s / its.in_all_per_s for mine, its in zip(ours, rounds, strict=True)]
        for name, rounds in found.items()
    }
    rows = [
        [
            name,
            spread([one.handed_over_per_s for one in rounds]),
            spread([one.worked_off_per_s for one in rounds]),
            spread([one.in_all_per_s for one in rounds]),
            "" if name == PECIA.name else spread(ratios[name], ".2f"),
            spread([one.cpu_ms for one in rounds], ".2f"),
        ]
        for name, rounds in found.items()
    ]
    headings = (
        "",
        "handed over, jobs/s",
        "worked off, jobs/s",
        "in all, jobs/s",
        "Pecia / it, in all",
        "worker, CPU ms a job",
    )
    return Report(
        tables=[
            Table(headings=headings, rows=rows, title=f"{arguments.jobs:,} jobs, {arguments.rounds} rounds")
        ],
        notes=notes,
        figures={
            "ratio": {name: statistics.median(all_of) for name, all_of in ratios.items()},
            "rounds": {name: [asdict(one) for one in rounds] for name, rounds in found.items()},
        },
    )


if __name__ == "__main__":
    main()
