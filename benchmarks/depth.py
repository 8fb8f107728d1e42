"""What a job costs when 1,000, 50,000 and 1,000,000 others wait: from `submit_many` to its committed row.

For each depth the queue is filled in Postgres and Redis. Then, in rounds, jobs are handed over while no worker runs,
and a worker with an engine that answers at once works off as many from the head of the queue, so that the depth stays
behind them. Told are microseconds a job for either, and their sum beside that of the least depth: 1.1 is allowed.
Redis holds a window of 20,000 parts: its memory with the queue less its memory without, beside that of 50,000 waiting;
1.2 times that is allowed. Then rounds of the relay with room for a hundred parts, and urgent jobs, submitted while a
worker is at the queue, from submit to row.

Caveats. The queue is filled by statements that copy one job, which stands for jobs that came through the client; each
is a document of one page and takes turns by itself, which is what takes most room in Redis. Upkeep does not run.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from uuid import UUID

from redis import Redis
from rich.console import Console
from rich.progress import Progress

from harness.report import Report, Table, parser, spread
from harness.servers import servers
from harness.sides import PECIA, Conditions, Trial, trial
from pecia_schemas.messages import PartMessage, publish, queue_name
from pecia_schemas.states import Lane, Stage, new_id
from pecia_workers.ledger.database import open_database
from pecia_workers.queue.bus import Bus
from pecia_workers.queue.lists import connect
from pecia_workers.upkeep.loop import relay_due

DEPTHS = (1_000, 50_000, 1_000_000)
ALLOWED_RATIO = 1.1
HEAD = 10
ROOM, ROUNDS_OF_RELAY = 100, 20
URGENT, PAUSE_S = 20, 0.2
PATIENCE_S = 300
COST = 100
AT_A_TIME = 20_000

_LIKE_ONE = (
    """
    INSERT INTO jobs (id, kind, lane, task, task_digest, payload, idempotency_key, client, metadata, total)
    SELECT fresh.job, kind, lane, task, task_digest, payload, fresh.job::text, client, metadata, total
    FROM fresh, (SELECT * FROM jobs LIMIT 1) AS one
    """,
    """
    INSERT INTO parts (id, job_id, stage, ordinal, lane, cost, width, height, published_at)
    SELECT fresh.part, fresh.job, stage, ordinal, lane, cost, width, height, CASE WHEN fresh.published THEN now() END
    FROM fresh, (SELECT * FROM parts LIMIT 1) AS one
    """,
    "INSERT INTO job_events (job_id, state, actor) SELECT job, 'queued', 'client:benchmark' FROM fresh",
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found with so many behind; microseconds a job of each round."""

    depth: int
    redis_bytes: int
    relay_s: list[float] = field(default_factory=list)
    urgent_s: list[float] = field(default_factory=list)
    handed_over_us: list[float] = field(default_factory=list)
    worked_off_us: list[float] = field(default_factory=list)

    @property
    def both_us(self) -> list[float]:
        """All that a job costs."""
        return [sum(two) for two in zip(self.handed_over_us, self.worked_off_us, strict=True)]


def main() -> None:
    """Measure each depth, the least first."""
    made = parser(__doc__)
    made.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS))
    made.add_argument("--jobs", type=int, default=3_000, help="handed over and worked off in a round")
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    found = []
    with (
        servers(redis_memory="2gb") as shared,
        Redis.from_url(shared.redis_url) as redis,
        Progress(console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("", total=len(arguments.depths) * arguments.rounds)
        for depth in sorted(arguments.depths):
            progress.update(task, description=f"{depth:,} waiting")
            with trial(shared, PECIA, Conditions()) as at:
                at.hand_over(1)
                found.append(_measure(at, redis, depth, arguments, partial(progress.advance, task)))
    _report(found, arguments).tell(as_json=arguments.json)


def _measure(
    at: Trial, redis: Redis, depth: int, arguments: argparse.Namespace, advance: Callable[[], None]
) -> Measured:
    empty = _memory(redis)
    fill(at, redis, depth)
    measured = Measured(depth=depth, redis_bytes=_memory(redis) - empty)
    for _ in range(arguments.rounds):
        handed = at.hand_over(arguments.jobs)
        measured.handed_over_us.append(handed.seconds / arguments.jobs * 1e6)
        measured.worked_off_us.append(_work_off(at, arguments.jobs))
        fill(at, redis, depth - _waiting(at))
        advance()
    measured.urgent_s.extend(_urgent(at))
    fill(at, redis, depth - _waiting(at))
    measured.relay_s.extend(asyncio.run(_relay(at)))
    return measured


def fill(at: Trial, redis: Redis, jobs: int) -> None:
    """Put so many jobs like the first into the queue, in Postgres and Redis."""
    for start in range(0, jobs, AT_A_TIME):
        messages = [
            PartMessage(part=new_id(), stage=Stage.READ, lane=Lane.BULK, cost=COST, flow=new_id())
            for _ in range(min(AT_A_TIME, jobs - start))
        ]
        left = {message.part for message in publish(redis, messages)}
        _write(at, [(message.flow, message.part, message.part not in left) for message in messages])
    at.database.execute("VACUUM ANALYZE jobs, parts")
    at.database.execute("CHECKPOINT")


def _write(at: Trial, rows: list[tuple[UUID, UUID, bool]]) -> None:
    with at.database.transaction(), at.database.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE fresh (job uuid, part uuid, published bool) ON COMMIT DROP")
        with cursor.copy("COPY fresh FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        for statement in _LIKE_ONE:
            cursor.execute(statement)


async def _relay(at: Trial) -> list[float]:
    """Return seconds of rounds of the relay in each of which there is room for a hundred parts."""
    database, bus, seconds = open_database(at.database_url), Bus(at.redis_url), []
    with connect(at.redis_url) as redis:
        for _ in range(ROUNDS_OF_RELAY):
            redis.rpop(queue_name(Stage.READ, Lane.BULK), ROOM)
            began = time.perf_counter()
            await relay_due(database, bus, limit=1_000)
            seconds.append(time.perf_counter() - began)
    await bus.close()
    await database.dispose()
    return seconds


def _urgent(at: Trial) -> list[float]:
    """Return seconds from the submit of urgent jobs to their rows, while a worker is at what waits."""
    began = {}
    with at.urgent() as submit:
        worker = at.start_worker()
        at.await_rows(len(at.finished()) + 1, PATIENCE_S)
        for _ in range(URGENT):
            job, at_once = submit()
            began[job] = at_once
            time.sleep(PAUSE_S)
        rows = at.await_rows(0, 0)
        worker.stop(60)
    return [since - began[job] for job, since in rows if job in began]


def _memory(redis: Redis) -> int:
    used: int = redis.info("memory")["used_memory"]
    return used


def _waiting(at: Trial) -> int:
    row = at.database.execute("SELECT count(*) FROM parts WHERE state = 'queued'").fetchone()
    assert row is not None  # noqa: S101
    waiting: int = row[0]
    return waiting


def _work_off(at: Trial, jobs: int) -> float:
    """Return microseconds a job, from the moment a tenth of them has a row."""
    before = len(at.finished())
    worker = at.start_worker()
    ended = sorted(since for _, since in at.await_rows(before + jobs, PATIENCE_S))[before : before + jobs]
    worker.stop(60)
    if len(ended) < jobs:
        message = f"{len(ended)} of {jobs} jobs were worked off"
        raise RuntimeError(message)
    head = jobs // HEAD
    return (ended[-1] - ended[head - 1]) / (jobs - head) * 1e6


def _report(found: list[Measured], arguments: argparse.Namespace) -> Report:
    least = statistics.median(found[0].both_us)
    rows = [
        [
            f"{one.depth:,}",
            spread(one.handed_over_us),
            spread(one.worked_off_us),
            spread(one.both_us),
            f"{statistics.median(one.both_us) / least:.2f}",
            f"{one.redis_bytes / 1e6:.1f}",
            spread([seconds * 1e3 for seconds in one.relay_s]),
            spread([seconds * 1e3 for seconds in one.urgent_s]),
        ]
        for one in found
    ]
    table = Table(
        headings=(
            "waiting",
            "handed over, µs",
            "worked off, µs",
            "both, µs",
            f"ratio (allowed: {ALLOWED_RATIO})",
            "Redis, MB",
            "relay of 100, ms",
            "urgent, ms",
        ),
        rows=rows,
        title=f"one job of {arguments.jobs:,}, {arguments.rounds} rounds",
    )
    return Report(tables=[table], figures={"depths": [asdict(one) for one in found]})


if __name__ == "__main__":
    main()
