"""Jobs handed over per second: `submit_many` beside one `submit` each, in one run, and what it holds in memory.

Two kinds of tasks: documents that are in the payload store (no bytes travel), and distinct pictures of 2 KB (each is
hashed, written and measured). Postgres is durable, Redis keeps its log, nothing works the jobs off. Memory is the peak
of the client's process over a generator of so many tasks, less what it was before; what is left of it per job is the
handle in the returned group.

Caveats. Client, Postgres, Redis and payload directory share one machine and its cores, so the client waits for servers
that would run elsewhere. `submit` is called by one thread.
"""

import argparse
import io
import itertools
import os
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, process_time

from PIL import Image
from rich.console import Console
from rich.progress import track

from harness.report import Report, Table, parser, spread
from harness.servers import servers
from pecia import Client, ReadDocument
from pecia_schemas.payloads import PayloadStore

MEMORY_AT = (10, 1)
"""The peak is taken for a tenth of the tasks, and for all."""

Tasks = Callable[[int], Iterator[ReadDocument]]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one kind of tasks went."""

    one_by_one: float
    """Jobs per second by `submit`."""
    many: float
    """Jobs per second by `submit_many`."""
    single_us: float
    """Processor time of the client for one job, in microseconds."""
    client_us: float
    """The same for a job of many."""

    @property
    def ratio(self) -> float:
        """How much faster many are."""
        return self.many / self.one_by_one


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What so many tasks of one call took."""

    tasks: int
    peak_mib: float
    """Most memory above what it was before."""
    after_mib: float
    """Memory above what it was before, while the group is held."""


def main() -> None:
    """Measure the memory, then run the rounds, on servers of their own, and print what came of it."""
    made = parser(__doc__)
    made.add_argument("--jobs", type=int, default=20_000, help="of each kind by submit_many")
    made.add_argument("--single", type=int, default=500, help="of each kind by submit")
    made.add_argument("--memory", type=int, default=100_000, help="tasks of the generator")
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    with (
        servers() as shared,
        Client(shared.database_url, shared.redis_url, shared.payload_url) as client,
    ):
        stored = PayloadStore.open(shared.payload_url).put(b"%PDF-1.7")
        kinds: dict[str, Tasks] = {
            "stored": lambda count: (ReadDocument(stored) for _ in range(count)),
            "pictures": _pictures,
        }
        client.submit_many(kinds["stored"](3_000))
        peaks = [_peak(client, kinds["stored"], arguments.memory // part) for part in MEMORY_AT]
        rounds = [
            {kind: _speed(client, tasks, arguments) for kind, tasks in kinds.items()}
            for _ in track(range(arguments.rounds), console=Console(stderr=True))
        ]
    _report(rounds, peaks, arguments).tell(as_json=arguments.json)


def _pictures(count: int) -> Iterator[ReadDocument]:
    """Yield pictures of about 2 KB, no two alike."""
    file = io.BytesIO()
    noise = random.Random(5).randbytes(40 * 50)  # noqa: S311  a picture
    Image.frombytes("L", (40, 50), noise).save(file, "PNG")
    start = next(_numbers) * 10**9
    return (ReadDocument(file.getvalue() + b"%d" % (start + number)) for number in range(count))


_numbers = itertools.count()


def _speed(client: Client, tasks: Tasks, arguments: argparse.Namespace) -> Speed:
    single, many = list(tasks(arguments.single)), list(tasks(arguments.jobs))
    began, busy = perf_counter(), process_time()
    for task in single:
        client.submit(task)
    one_by_one, single_busy = perf_counter() - began, process_time() - busy
    began, busy = perf_counter(), process_time()
    client.submit_many(many)
    seconds, busy = perf_counter() - began, process_time() - busy
    return Speed(
        one_by_one=arguments.single / one_by_one,
        many=arguments.jobs / seconds,
        single_us=single_busy / arguments.single * 1e6,
        client_us=busy / arguments.jobs * 1e6,
    )


def _peak(client: Client, tasks: Tasks, count: int) -> Peak:
    before = _resident_mib()
    with _most() as most:
        group = client.submit_many(tasks(count))
    after = _resident_mib()
    return Peak(tasks=len(group), peak_mib=most[0] - before, after_mib=after - before)


@contextmanager
def _most() -> Iterator[list[float]]:
    """Note the most memory this process holds until the block ends."""
    most, over = [_resident_mib()], Event()

    def watch() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], _resident_mib())

    watching = Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        over.set()
        watching.join()


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _report(rounds: list[dict[str, Speed]], peaks: list[Peak], arguments: argparse.Namespace) -> Report:
    medians = {
        kind: Speed(
            **{
                name: statistics.median(getattr(one[kind], name) for one in rounds)
                for name in Speed.__dataclass_fields__
            }
        )
        for kind in rounds[0]
    }
    ratios = {kind: statistics.median(one[kind].ratio for one in rounds) for kind in medians}
    rows = [
        [
            kind,
            spread([one[kind].one_by_one for one in rounds]),
            spread([one[kind].many for one in rounds]),
            f"{ratios[kind]:,.0f}",
            f"{speed.single_us:,.0f}",
            f"{speed.client_us:,.0f}",
        ]
        for kind, speed in medians.items()
    ]
    headings = (
        "tasks",
        "submit, jobs/s",
        "submit_many, jobs/s",
        "ratio",
        "client, µs one",
        "client, µs of many",
    )
    notes = [
        f"{peak.tasks:,} tasks of a generator: {peak.peak_mib:.1f} MiB at the peak, {peak.after_mib:.1f} MiB "
        f"with the group, {peak.after_mib * 2**20 / peak.tasks:,.0f} bytes a job"
        for peak in peaks
    ]
    told = {kind: {**asdict(speed), "ratio": ratios[kind]} for kind, speed in medians.items()}
    return Report(
        tables=[
            Table(headings=headings, rows=rows, title=f"{arguments.jobs:,} jobs, {arguments.rounds} rounds")
        ],
        notes=notes,
        figures={**told, "memory": [asdict(peak) for peak in peaks]},
    )


if __name__ == "__main__":
    main()
