"""A worker is killed with `kill -9` in the midst of its work, and another started at once: when everything is done.

Every job takes half a second, every side works at eight at a time. When 16 rows are there, the worker and all its
processes are killed, and a new one starts on the same machine. From then on one more job is handed over each second,
as in a fleet that is in use: some libraries look for the dead only while they are busy. Told are the seconds from the
kill to the last row of the jobs that waited, less what a worker that was not killed would have taken for what was
left (its jobs by eight, half a second each), and how many jobs have no row, or more than one, when a minute is over.

Everybody's lease (visibility time-out, heartbeat, idle time) is 15 s, which is Pecia's own; by default Celery's is an
hour, dramatiq's a minute, procrastinate's half a minute plus a recipe that the application adds, taskiq's ten
minutes.

Caveats. With Celery a job that takes longer than that time-out runs twice, which is why its own is an hour. Starting
the new worker's interpreter is in the seconds of all.
"""

import argparse
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial

from harness.report import Report, Table, parser, spread
from harness.rounds import measured_in_turn
from harness.servers import Servers
from harness.sides import (
    CELERY,
    DRAMATIQ,
    PECIA,
    PROCRASTINATE,
    TASKIQ,
    Conditions,
    Side,
    Trial,
    add_sides,
    that_run,
    trial,
)

SIDES = (PECIA, CELERY, DRAMATIQ, PROCRASTINATE, TASKIQ)
SLOTS, WORK_S = 8, 0.5
BEGUN = 16
PATIENCE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of the jobs of one round."""

    late_s: float
    """Later than without the kill, until the last row that came."""
    lost: int
    """Jobs without a row."""
    doubled: int
    """Rows too many."""


def main() -> None:
    """Run the rounds and print what came of them."""
    made = parser(__doc__)
    add_sides(made, SIDES)
    made.add_argument("--jobs", type=int, default=80, help="that wait when the worker starts")
    made.add_argument("--patience", type=float, default=60, help="seconds after which a job is lost")
    made.add_argument("--rounds", type=int, default=1)
    arguments = made.parse_args()
    sides, notes = that_run(SIDES, arguments.sides)
    found = measured_in_turn(sides, arguments.rounds, partial(_measure, arguments=arguments))
    _report(found, notes, arguments).tell(as_json=arguments.json)


def _measure(shared: Servers, side: Side, arguments: argparse.Namespace) -> Recovered:
    conditions = Conditions(slots=SLOTS, work_s=WORK_S, lease_s=15)
    with trial(shared, side, conditions) as at:
        at.hand_over(arguments.jobs)
        worker = at.start_worker()
        done = {job for job, _ in at.await_rows(min(BEGUN, arguments.jobs // 2), PATIENCE_S)}
        worker.kill()
        killed = time.time()
        at.start_worker()
        with _one_each_second(at) as later:
            rows = _await_waiting(at, arguments.jobs, later, arguments.patience)
    times: Counter[str] = Counter(job for job, _ in rows if job not in later)
    last = max([since for job, since in rows if job not in later and job not in done], default=killed)
    left = (arguments.jobs - len(done)) / SLOTS * WORK_S
    return Recovered(
        late_s=max(0.0, last - killed - left),
        lost=arguments.jobs - len(times),
        doubled=times.total() - len(times),
    )


@contextmanager
def _one_each_second(at: Trial) -> Iterator[set[str]]:
    """Hand over a job each second while the block runs; it is given their names."""
    names: set[str] = set()
    over = threading.Event()
    with at.urgent() as hand_over:

        def now_and_then() -> None:
            with suppress(BrokenPipeError, ValueError):  # the block has ended
                while not over.wait(1):
                    names.add(hand_over()[0])

        thread = threading.Thread(target=now_and_then)
        thread.start()
        try:
            yield names
        finally:
            over.set()
            thread.join()


def _await_waiting(at: Trial, jobs: int, later: set[str], timeout_s: float) -> list[tuple[str, float]]:
    """Return all rows once every job that waited has one, or once the timeout has passed."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        rows = at.finished()
        time.sleep(0.1)  # what was handed over later is known by its name by then
        if len({job for job, _ in rows} - later) >= jobs:
            break
    return at.finished()


def _report(found: dict[str, list[Recovered]], notes: list[str], arguments: argparse.Namespace) -> Report:
    rows = [
        [
            name,
            spread([one.late_s for one in rounds], ".1f")
            + (" (not all)" if any(one.lost for one in rounds) else ""),
            spread([one.lost for one in rounds]),
            spread([one.doubled for one in rounds]),
        ]
        for name, rounds in found.items()
    ]
    table = Table(
        headings=("", "all done, s later", f"without a row after {arguments.patience:g} s", "rows too many"),
        rows=rows,
        title=f"kill -9 with {SLOTS} of {arguments.jobs} jobs running, {arguments.rounds} rounds",
    )
    return Report(
        tables=[table],
        notes=notes,
        figures={"rounds": {name: [asdict(one) for one in rounds] for name, rounds in found.items()}},
    )


if __name__ == "__main__":
    main()
