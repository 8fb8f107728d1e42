"""How fast upkeep erases what is past its time: jobs of one page a second, alone and beside workers that commit.

Each job has a document of 20 kB in a directory, a result and five events; all of that goes, and the job's row stays.
Caveats. The workers beside it have no engine: they claim and commit as fast as Postgres lets them, all in one process.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from harness.report import Report, Table, parser
from harness.servers import Servers, servers
from pecia_schemas.blocks import plain_blocks
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import new_id
from pecia_workers.ledger.database import LONG_STATEMENT_TIMEOUT, open_database
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.ledger.retention import retention_steps
from pecia_workers.protocol.parts import Done, Finished

DOCUMENT = b"x" * 20_000
PAGE = Page(
    verdict=Verdict.OK,
    number=1,
    width=1_654,
    height=2_339,
    engine="bench",
    blocks=plain_blocks("Amoxicillin " * 200),
)
WORKERS, AT_A_TIME = 4, 8
A_DAY_AGO = "now() - interval '1 day'"

_ROWS = (
    f"""
    INSERT INTO jobs (id, kind, lane, state, task, task_digest, payload, idempotency_key, client, total, done,
                      finished_at)
    SELECT gen_random_uuid(), 'document.read', 'bulk', 'succeeded', '{{}}', '',
           encode(sha256(CAST(CAST(number AS text) AS bytea)), 'hex'), CAST(number AS text), 'bench', 1, 1, {A_DAY_AGO}
    FROM generate_series(1, CAST(:jobs AS int)) AS number
    """,  # noqa: S608  a constant
    """
    INSERT INTO parts (id, job_id, stage, ordinal, lane, cost, state, finished_at)
    SELECT gen_random_uuid(), id, 'read', 0, 'bulk', 1, 'done', finished_at FROM jobs
    """,
    """
    INSERT INTO results (part_id, job_id, ordinal, attempt, content)
    SELECT id, job_id, 0, 1, CAST(:page AS jsonb) FROM parts
    """,
    """
    INSERT INTO job_events (job_id, state, actor, at)
    SELECT id, 'x', 'x', finished_at FROM jobs, generate_series(1, 5)
    """,
    "ANALYZE jobs, parts, results, job_events",
)
_LEFT = text(
    f"""
    SELECT (SELECT count(*) FROM results JOIN jobs ON jobs.id = job_id WHERE finished_at <= {A_DAY_AGO})
         + (SELECT count(*) FROM job_events WHERE at <= {A_DAY_AGO})
         + (SELECT count(*) FROM discarded_payloads WHERE discarded_at IS NOT NULL)
    """  # noqa: S608  a constant
)
_SUBMIT = (
    """
    INSERT INTO jobs (id, kind, lane, task, task_digest, payload, idempotency_key, client, total)
    SELECT id, 'document.read', 'bulk', '{}', '', '', CAST(id AS text), 'bench', 1
    FROM unnest(CAST(:jobs AS uuid[])) AS id
    """,
    """
    INSERT INTO parts (id, job_id, stage, ordinal, lane, cost)
    SELECT part, job, 'read', 0, 'bulk', 1
    FROM unnest(CAST(:parts AS uuid[]), CAST(:jobs AS uuid[])) AS submitted (part, job)
    """,
)


async def fill(database: AsyncEngine, payloads: Path, jobs: int) -> None:
    """Write jobs that ended a day ago, with their documents."""
    async with database.begin() as connection:
        await connection.execute(text("TRUNCATE jobs, erasures, discarded_payloads CASCADE"))
        for statement in _ROWS:
            await connection.execute(text(statement), {"jobs": jobs, "page": PAGE.model_dump_json()})
        names = (await connection.execute(text("SELECT payload FROM jobs"))).scalars().all()
    for name in names:
        path = payloads / "sha256" / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DOCUMENT)


async def erase(database: AsyncEngine, settings: WorkerSettings) -> float:
    """Run rounds of retention until nothing is left; return the seconds."""
    steps = retention_steps(settings)
    steps.pop("strays")
    begun = time.perf_counter()
    while any([await step(database) for step in steps.values()]):
        pass
    took = time.perf_counter() - begun
    async with database.connect() as connection:
        if left := (await connection.execute(_LEFT)).scalar():
            message = f"{left} rows are left"
            raise RuntimeError(message)
    return took


@asynccontextmanager
async def working(database_url: str) -> AsyncIterator[list[int]]:
    """Keep workers committing; yields how many parts that were, in the first place."""
    database, committed = open_database(database_url, connections=WORKERS), [0]
    stopping = asyncio.Event()

    async def announce(_jobs: object) -> None:
        """No client listens."""

    async def work(name: str) -> None:
        ledger = Ledger(database, name, announce=announce)
        while not stopping.is_set():
            parts = await submit(database)
            claimed = [await ledger.claim(part) for part in parts]
            await asyncio.gather(
                *[ledger.commit(Finished(part=part, outcome=Done(PAGE))) for part in claimed if part]
            )
            committed[0] += len(parts)

    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(work(f"worker-{number}"))
            yield committed
            # Not cancelled: a ledger's group goes on without those who asked, on a connection that is then lost.
            stopping.set()
    finally:
        await database.dispose()


async def submit(database: AsyncEngine) -> list[UUID]:
    """Write a few jobs of one page; return their parts."""
    ids = {name: [new_id() for _ in range(AT_A_TIME)] for name in ("jobs", "parts")}
    async with database.begin() as connection:
        for statement in _SUBMIT:
            await connection.execute(text(statement), ids)
    return ids["parts"]


async def measure(shared: Servers, jobs: int, seconds: float) -> dict[str, float]:
    """Return the rates: of erasing, alone and beside workers; and of those, alone and beside it."""
    kept = dict.fromkeys(("keep_payloads", "keep_results", "keep_events"), timedelta(hours=1))
    settings = WorkerSettings.model_validate({"payload_url": shared.payload_url, **kept})
    database = open_database(shared.database_url, connections=4, timeout=LONG_STATEMENT_TIMEOUT)
    try:
        await fill(database, Path(shared.payload_url), jobs)
        alone = await erase(database, settings)
        await fill(database, Path(shared.payload_url), jobs)
        async with working(shared.database_url) as committed:
            await asyncio.sleep(seconds)
            undisturbed = committed[0] / seconds
            before = committed[0]
            beside = await erase(database, settings)
            disturbed = (committed[0] - before) / beside
    finally:
        await database.dispose()
    return {
        "alone_jobs_per_s": jobs / alone,
        "beside_jobs_per_s": jobs / beside,
        "parts_per_s_alone": undisturbed,
        "parts_per_s_beside": disturbed,
    }


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--jobs", type=int, default=10_000, help="that are past their time")
    made.add_argument("--seconds", type=float, default=5, help="that the workers commit undisturbed")
    arguments = made.parse_args()
    with servers() as shared:
        found = asyncio.run(measure(shared, arguments.jobs, arguments.seconds))
    rows = [
        ["retention alone", f"{found['alone_jobs_per_s']:,.0f}", ""],
        ["workers alone", "", f"{found['parts_per_s_alone']:,.0f}"],
        ["both", f"{found['beside_jobs_per_s']:,.0f}", f"{found['parts_per_s_beside']:,.0f}"],
    ]
    table = Table(headings=("at work", "jobs erased/s", "parts committed/s"), rows=rows)
    Report(tables=[table], figures=found).tell(as_json=arguments.json)


if __name__ == "__main__":
    main()
