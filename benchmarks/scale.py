"""What Postgres reads for each step of a part's way, with much that waits and much that is over, beside little of both.

The tables are filled twice: with the figures given, and with a small part of them. Then each step runs once, by the
product's own functions, and every statement of it is explained (ANALYZE, BUFFERS) right before it runs, in a savepoint
that is rolled back. Pages are the 8 kB buffers that its statements touch: unlike seconds they do not depend on the
machine. A step whose pages grow with what waits or is over, and not with what it changes, would show here.

Caveats. Jobs have one page each; rows are copies but for ids and times. What is over ended evenly over thirty days, so
that retention by age finds its share; it erases a batch of those. A table that is scanned from end to end is named; if
it has a few pages, Postgres should. The plans are in the report's figures.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from redis import Redis
from rich.console import Console
from sqlalchemy import Connection, create_engine, event, text

from harness.report import Report, Table, parser
from harness.servers import Servers, servers
from pecia import Client
from pecia_schemas.blocks import plain_blocks
from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.results import Page, Verdict
from pecia_schemas.states import Stage
from pecia_workers.ledger import retention
from pecia_workers.ledger.database import LONG_STATEMENT_TIMEOUT, open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.publication import expected_in_redis, find_missing
from pecia_workers.ledger.recovery import expire_jobs, find_orphaned
from pecia_workers.protocol.parts import ClaimedPart, Done, Finished
from pecia_workers.queue.bus import Bus
from pecia_workers.upkeep.loop import Measurement, relay_due

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncEngine

BATCH = 64
ROOM = 1_000
PAGE = Page(
    verdict=Verdict.OK, number=1, width=1_654, height=2_339, engine="bench", blocks=plain_blocks("text")
)

_SETTINGS = ("SET synchronous_commit = off", "SET maintenance_work_mem = '1GB'", "SET work_mem = '1GB'")
_TABLES = ("jobs", "parts", "results", "job_events")

# Oldest first and with ids that sort by time, as a fleet would have written them.
_FILL = (
    """
    INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, total, done,
                      created_at, finished_at)
    SELECT CAST(lpad(to_hex(CAST(extract(epoch FROM at) * 1000 AS bigint)), 12, '0') || '7' || right(key, 19) AS uuid),
           'document.read', 'bulk', CASE WHEN nth > :waiting THEN 'succeeded' ELSE 'queued' END,
           '{}', '', key, CAST(nth AS text), 'bench', 1, CAST(nth > :waiting AS int), at,
           CASE WHEN nth > :waiting THEN at + interval '1 day' * nth / :all END
    FROM generate_series(CAST(:all AS int), 1, -1) AS nth,
         LATERAL (SELECT now() - interval '31 days' * nth / :all AS at, md5(CAST(nth AS text)) AS key) AS made
    """,
    """
    INSERT INTO parts (id, job_id, stage, ordinal, lane, cost, state, attempt, engine, run_at, finished_at,
                       published_at)
    SELECT CAST(left(CAST(id AS text), 24) || right(payload, 12) AS uuid), id, 'read', 0, 'bulk', 1,
           CASE WHEN done = 1 THEN 'done' ELSE 'queued' END, done, CASE WHEN done = 1 THEN 'bench' END, created_at,
           finished_at, CASE WHEN done = 1 OR CAST(idempotency_key AS int) <= 20000 THEN created_at END
    FROM jobs
    """,
    """
    INSERT INTO results (part_id, job_id, ordinal, attempt, content)
    SELECT id, job_id, 0, 1, CAST(:page AS jsonb) FROM parts WHERE state = 'done'
    """,
    """
    INSERT INTO job_events (job_id, state, actor, at)
    SELECT id, state, 'bench', coalesce(finished_at, now()) FROM jobs
    """,
)

# What would be looked up or grown for each row while the tables are filled, and is made at once afterwards.
_FOREIGN_KEYS = text(
    """
    SELECT CAST(conrelid AS regclass) AS on_table, conname AS name, pg_get_constraintdef(oid) AS definition
    FROM pg_constraint WHERE contype = 'f' AND CAST(CAST(confrelid AS regclass) AS text) = ANY(:tables)
    """
)
_INDEXES = text(
    """
    SELECT CAST(indrelid AS regclass) AS on_table, conname AS constrained, CAST(indexrelid AS regclass) AS name,
           coalesce(pg_get_constraintdef(pg_constraint.oid), pg_get_indexdef(indexrelid)) AS definition
    FROM pg_index LEFT JOIN pg_constraint ON conindid = indexrelid AND contype IN ('p', 'u')
    WHERE CAST(CAST(indrelid AS regclass) AS text) = ANY(:tables)
    """
)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """The statements of one step, together."""

    statements: int
    pages: int
    milliseconds: float
    scanned: list[str]
    """Tables that were read from end to end."""
    plans: list[list[str]] = field(repr=False)
    """A line for each node of each statement's plan."""


class Explaining:
    """Explains every statement of an engine while it is asked to."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._plans: list[Any] | None = None
        event.listen(engine.sync_engine, "before_cursor_execute", self._explain)

    def _explain(
        self, connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> None:
        if self._plans is None or not statement.lstrip().startswith(
            ("SELECT", "WITH", "UPDATE", "DELETE", "INSERT")
        ):
            return
        cursor = connection.connection.cursor()
        cursor.execute("SAVEPOINT explained")
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
        found = cursor.fetchone()
        assert found is not None  # noqa: S101  EXPLAIN has one row
        self._plans.append(found[0][0])
        cursor.execute("ROLLBACK TO SAVEPOINT explained")
        cursor.close()

    async def of(self, step: Callable[[], Awaitable[object]]) -> Explained:
        """Return what a step's statements read."""
        self._plans = []
        await step()
        plans, self._plans = self._plans, None
        return Explained(
            statements=len(plans),
            pages=sum(_pages(plan["Plan"]) for plan in plans),
            milliseconds=sum(plan["Execution Time"] for plan in plans),
            scanned=sorted({table for plan in plans for table in _scanned(plan["Plan"])}),
            plans=[list(_lines(plan["Plan"])) for plan in plans],
        )


def _pages(plan: Mapping[str, Any]) -> int:
    return int(plan.get("Shared Hit Blocks", 0)) + int(plan.get("Shared Read Blocks", 0))


def _scanned(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for below in plan.get("Plans", ()):
        yield from _scanned(below)


def _lines(plan: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    on = plan.get("Index Name") or plan.get("Relation Name") or plan.get("CTE Name") or ""
    rows = f"{plan['Actual Rows']:g} rows, {plan['Actual Loops']} times"
    yield f"{'  ' * depth}{plan['Node Type']} {on}: {rows}, {_pages(plan):,} pages"
    for below in plan.get("Plans", ()):
        yield from _lines(below, depth + 1)


def fill(database_url: str, *, waiting: int, over: int) -> int:
    """Write so many jobs that wait and that are over; return the bytes that they take."""
    values = {"waiting": waiting, "all": waiting + over, "page": PAGE.model_dump_json()}
    engine = create_engine(sqlalchemy_url(database_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("TRUNCATE jobs, workers, discarded_payloads CASCADE"))
        for setting in _SETTINGS:
            connection.execute(text(setting))
        with _bare(connection):
            for statement in _FILL:
                connection.execute(text(statement), values)
        for statement in ("VACUUM ANALYZE", "CHECKPOINT"):
            connection.execute(text(statement))
        size: int = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
    engine.dispose()
    return size


@contextmanager
def _bare(connection: Connection) -> Iterator[None]:
    """Take indexes and foreign keys off the large tables, and put them on again."""
    keys = connection.execute(_FOREIGN_KEYS, {"tables": list(_TABLES)}).all()
    indexes = connection.execute(_INDEXES, {"tables": list(_TABLES)}).all()
    for one in keys:
        connection.execute(text(f"ALTER TABLE {one.on_table} DROP CONSTRAINT {one.name}"))
    for one in indexes:
        name = one.constrained
        drop = f"ALTER TABLE {one.on_table} DROP CONSTRAINT {name}" if name else f"DROP INDEX {one.name}"
        connection.execute(text(drop))
    yield
    for one in (*(index for index in indexes if index.constrained), *keys):
        name = getattr(one, "constrained", one.name)
        connection.execute(text(f"ALTER TABLE {one.on_table} ADD CONSTRAINT {name} {one.definition}"))
    for one in indexes:
        if not one.constrained:
            connection.exec_driver_sql(one.definition)


async def explain(shared: Servers) -> dict[str, Explained]:
    """Run each step once."""
    database = open_database(shared.database_url, timeout=LONG_STATEMENT_TIMEOUT)
    bus, explaining = Bus(shared.redis_url), Explaining(database)
    ledger = Ledger(database, "bench", announce=_announce)
    found: dict[str, Explained] = {}
    async with database.connect() as connection:
        published = text(
            "SELECT id FROM parts WHERE state = 'queued' AND published_at IS NOT NULL LIMIT :most"
        )
        ids = (await connection.execute(published, {"most": BATCH})).scalars().all()

    async def claim() -> list[ClaimedPart | None]:
        return await asyncio.gather(*map(ledger.claim, ids))

    async def commit() -> None:
        claims = await claim()
        await asyncio.gather(
            *(ledger.commit(Finished(part=part, outcome=Done(PAGE))) for part in claims if part)
        )

    async def stand() -> None:
        async with database.connect() as connection:
            await connection.run_sync(Measurement(window=20_000).show_postgres)

    async def reconcile() -> None:
        expected = await expected_in_redis(database, grace=timedelta(), lately=timedelta())
        await find_missing(database, {str(part) for part in ids}, expected.before)

    forget = partial(retention.forget, database, age=timedelta(days=29))
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        f"claim {BATCH} parts": claim,
        f"claim and commit {BATCH} parts": commit,
        f"claim {BATCH} without Redis": lambda: ledger.claim_waiting([Stage.READ], BATCH),
        f"relay {ROOM} parts": lambda: relay_due(database, bus, limit=ROOM),
        "look for orphans": lambda: find_orphaned(database, limit=1_000),
        "expire jobs": lambda: expire_jobs(database, limit=1_000, notify=_announce),
        "compare with Redis": reconcile,
        "measure": stand,
        "retention: 500 documents": lambda: forget([retention.PAYLOADS], limit=500),
        "retention: 500 results": lambda: forget([retention.RESULTS], limit=500),
        "retention: 5,000 events": lambda: forget([retention.EVENTS], limit=5_000),
        "retention: 500 jobs": lambda: forget([retention.JOBS], limit=500),
    }
    for name, step in steps.items():
        found[name] = await explaining.of(step)
    await bus.close()
    await database.dispose()
    return found


async def _announce(_jobs: object) -> None:
    """No client listens."""


@contextmanager
def timed(console: Console, what: str) -> Iterator[None]:
    """Say how long something took."""
    began = time.perf_counter()
    yield
    console.print(f"{what}: {time.perf_counter() - began:.0f} s")


def list_newest(shared: Servers) -> float:
    """Return the seconds in which a client lists the newest hundred jobs, and the newest failed ones."""
    with (
        tempfile.TemporaryDirectory() as payloads,
        Client(shared.database_url, shared.redis_url, payloads) as client,
    ):
        list(client.jobs(limit=1))
        began = time.perf_counter()
        list(client.jobs(limit=100))
        list(client.jobs(limit=100, state="failed"))
        return time.perf_counter() - began


def main() -> None:
    """Explain at both sizes."""
    made = parser(__doc__)
    made.add_argument("--waiting", type=int, default=10_000_000, help="parts that wait")
    made.add_argument("--over", type=int, default=30_000_000, help="parts that are over")
    made.add_argument("--less", type=int, default=100, help="times less of both in the tables compared with")
    arguments = made.parse_args()
    console, found, listed, size = Console(stderr=True), [], [], 0
    with servers() as shared, Redis.from_url(shared.redis_url) as redis:
        for part in (arguments.less, 1):
            waiting, over = arguments.waiting // part, arguments.over // part
            with timed(console, f"{waiting:,} waiting and {over:,} over written"):
                size = fill(shared.database_url, waiting=waiting, over=over)
            redis.flushall()
            with timed(console, "explained"):
                found.append(asyncio.run(explain(shared)))
                listed.append(list_newest(shared))
    little, much = found
    rows = [
        [
            name,
            f"{little[name].statements}",
            f"{little[name].pages:,}",
            f"{much[name].pages:,}",
            f"{much[name].pages / max(1, little[name].pages):.2f}",
            f"{little[name].milliseconds:.1f}",
            f"{much[name].milliseconds:.1f}",
            ", ".join(much[name].scanned),
        ]
        for name in little
    ]
    table = Table(
        headings=(
            "step",
            "statements",
            "pages, little",
            "pages, much",
            "ratio",
            "ms, little",
            "ms, much",
            "scanned",
        ),
        rows=rows,
        title=f"{arguments.waiting:,} waiting and {arguments.over:,} over, beside {arguments.less} times less",
    )
    lists = f"`client.jobs`, 100 newest and 100 newest failed: {listed[0] * 1e3:.1f} ms, {listed[1] * 1e3:.1f} ms."
    stored = f"Postgres holds {size / 1e9:.1f} GB."
    figures = {
        "little": {n: asdict(e) for n, e in little.items()},
        "much": {n: asdict(e) for n, e in much.items()},
    }
    Report(tables=[table], notes=[lists, stored], figures=figures).tell(as_json=arguments.json)


if __name__ == "__main__":
    main()
