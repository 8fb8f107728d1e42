"""Parts per second from claim to committed row, beside stock Celery, on the same Redis and Postgres.

Caveats. The engine answers at once, so this is the cost of everything around it: with a real engine the difference
disappears behind the GPU and what counts is the CPU that is left for it. Both sides write the same rows: two updates
and a result for each part, its events, its job's counters. Both find their queue full when they start; the clock runs
from the first claimed row to the last committed one. Rounds are interleaved, so that a busy machine hits both.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from redis import Redis
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import Engine, MetaData, create_engine, insert, text

from harness.report import Report, Table, parser, spread
from harness.servers import servers
from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.media import PayloadRef
from pecia_schemas.messages import PartMessage, publish
from pecia_schemas.states import Lane, Stage, new_id
from pecia_schemas.tasks import ReadDocument, task_to_json

RIVALS = Path(__file__).parent / "rivals"
PARTS_PER_JOB = 100
COST = 100
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stores:
    """The servers both sides share."""

    database_url: str
    redis_url: str
    database: Engine
    redis: Redis


@dataclass(frozen=True)
class Measured:
    """One round of one side."""

    parts_per_s: float
    cpu_s_per_thousand: float


def main() -> None:
    """Run the rounds and print the medians and their ratio."""
    made = parser(__doc__)
    made.add_argument("--parts", type=int, default=20_000)
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    results: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with opened() as stores, Progress(console=Console(stderr=True)) as progress:
        rounds = progress.add_task("rounds", total=arguments.rounds * len(SIDES))
        for _ in range(arguments.rounds):
            for side, (program, enqueue) in SIDES.items():
                enqueue(stores, fill(stores, arguments.parts))
                results[side].append(measure(stores, program, arguments.parts))
                progress.advance(rounds)
    report(results, arguments).tell(as_json=arguments.json)


@contextmanager
def opened() -> Iterator[Stores]:
    """Start the servers; yield them, open."""
    with servers() as shared, Redis.from_url(shared.redis_url) as redis:
        database = create_engine(sqlalchemy_url(shared.database_url))
        try:
            yield Stores(shared.database_url, shared.redis_url, database, redis)
        finally:
            database.dispose()


def fill(stores: Stores, count: int) -> list[UUID]:
    """Empty the tables and Redis, then write `count` queued parts of jobs of a hundred; return the parts' ids."""
    task = ReadDocument(PayloadRef(sha256="0" * 64, size=1, media_type=None))
    jobs = [new_id() for _ in range(-(-count // PARTS_PER_JOB))]
    parts = [new_id() for _ in range(count)]
    stores.redis.flushdb()
    tables = MetaData()
    with stores.database.begin() as connection:
        tables.reflect(connection)
        connection.execute(text("TRUNCATE jobs, workers CASCADE"))
        connection.execute(
            insert(tables.tables["jobs"]),
            [
                {
                    "id": job,
                    "kind": task.kind,
                    "lane": Lane.NORMAL,
                    "task": task_to_json(task),
                    "task_digest": "",
                    "payload": "0" * 64,
                    "idempotency_key": str(job),
                    "client": "benchmark",
                    "total": min(PARTS_PER_JOB, count - index * PARTS_PER_JOB),
                }
                for index, job in enumerate(jobs)
            ],
        )
        connection.execute(
            insert(tables.tables["parts"]),
            [
                {
                    "id": part,
                    "job_id": jobs[index // PARTS_PER_JOB],
                    "stage": Stage.READ,
                    "ordinal": index % PARTS_PER_JOB,
                    "lane": Lane.NORMAL,
                    "cost": COST,
                }
                for index, part in enumerate(parts)
            ],
        )
        connection.execute(text("UPDATE parts SET published_at = now()"))
    with stores.database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE jobs, parts"))
        connection.execute(text("CHECKPOINT"))
    return parts


def enqueue_pecia(stores: Stores, parts: list[UUID]) -> None:
    """Put the parts where Pecia's producers put them."""
    publish(
        stores.redis,
        [PartMessage(part=part, stage=Stage.READ, lane=Lane.NORMAL, cost=COST, flow=part) for part in parts],
    )


def enqueue_stock(stores: Stores, parts: list[UUID]) -> None:
    """Put the parts where Celery's producers put them."""
    script = (
        "import sys; from stock_celery import read\n"
        "with read.app.producer_pool.acquire(block=True) as producer:\n"
        "    for line in sys.stdin: read.apply_async((line.strip(),), producer=producer)\n"
    )
    listed = "\n".join(map(str, parts))
    subprocess.run(
        [sys.executable, "-c", script],
        input=listed,
        text=True,
        check=True,
        cwd=RIVALS,
        env=_environment(stores),
    )


SIDES: dict[str, tuple[str, Callable[[Stores, list[UUID]], None]]] = {
    "Pecia": ("pecia_worker.py", enqueue_pecia),
    "stock Celery": ("stock_celery.py", enqueue_stock),
}


def measure(stores: Stores, program: str, count: int) -> Measured:
    """Run a worker until every part is done."""
    worker = subprocess.Popen(
        [sys.executable, RIVALS / program],
        cwd=RIVALS,
        env=_environment(stores),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(stores, worker, "SELECT EXISTS (SELECT 1 FROM parts WHERE state <> 'queued')")
        before = _cpu_seconds(worker.pid)
        _wait_for(stores, worker, "SELECT NOT EXISTS (SELECT 1 FROM parts WHERE state <> 'done')")
        cpu = _cpu_seconds(worker.pid) - before
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    with stores.database.connect() as connection:
        seconds, results, jobs = connection.execute(
            text(
                "SELECT extract(epoch FROM max(finished_at) - min(started_at)), (SELECT count(*) FROM results),"
                " (SELECT count(*) FROM jobs WHERE state <> 'succeeded') FROM parts"
            )
        ).one()
    if (results, jobs) != (count, 0):
        message = f"{program}: {results} results and {jobs} unfinished jobs"
        raise RuntimeError(message)
    return Measured(parts_per_s=count / float(seconds), cpu_s_per_thousand=cpu / count * 1000)


def _wait_for(stores: Stores, worker: subprocess.Popen[bytes], query: str) -> None:
    while worker.poll() is None:
        with stores.database.connect() as connection:
            if connection.execute(text(query)).scalar():
                return
        time.sleep(0.05)
    message = f"the worker ended with {worker.returncode}"
    raise RuntimeError(message)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _environment(stores: Stores) -> dict[str, str]:
    return {
        **os.environ,
        "PECIA_DATABASE_URL": stores.database_url,
        "PECIA_REDIS_URL": stores.redis_url,
        "PECIA_PAYLOAD_URL": tempfile.gettempdir(),
        "C_FORCE_ROOT": "1",
    }


def report(results: dict[str, list[Measured]], arguments: argparse.Namespace) -> Report:
    """Return the medians of both sides, and the median of the rounds' ratios."""
    ratios = [
        ours.parts_per_s / stock.parts_per_s
        for ours, stock in zip(results["Pecia"], results["stock Celery"], strict=True)
    ]
    rows = [
        [
            side,
            spread([one.parts_per_s for one in rounds]),
            spread([one.cpu_s_per_thousand for one in rounds], ".3f"),
        ]
        for side, rounds in results.items()
    ]
    return Report(
        tables=[
            Table(
                headings=("", "parts/s", "worker CPU s per 1,000 parts"),
                rows=rows,
                title=f"{arguments.parts:,} parts, {arguments.rounds} rounds",
            )
        ],
        notes=[f"Pecia / stock Celery, parts/s: {spread(ratios, '.2f')}"],
        figures={
            "ratio": statistics.median(ratios),
            "rounds": {side: [vars(one) for one in rounds] for side, rounds in results.items()},
        },
    )


if __name__ == "__main__":
    main()
