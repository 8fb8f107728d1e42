"""What one claim of callbacks takes behind backlogs: milliseconds, by deliveries that wait and receivers they wait for.

Caveats. Nothing is posted: receivers decide how long that takes. The first claims also queue what has become due, a
thousand callbacks each; the others find the whole backlog queued. Each is taken back before the next, so that every
one finds the same; that leaves dead rows, as a busy outbox has them.
"""

import asyncio
import statistics
import time
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from harness.report import Report, Table, parser
from harness.servers import servers
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.outbox import claim_deliveries
from pecia_workers.outgoing.places import Places

SHORT = 100
RECEIVERS = (1, 2_000)
"""That the long backlog is for. Both are also for as many as there are callbacks, so that a claim is full."""
MOST = 64
"""Deliveries of one claim."""

_FILL = text(
    """
    INSERT INTO deliveries (type, url, body, next_at)
    SELECT 'job.succeeded', format('https://%s.example.org/%s', number % :receivers, number), '{}',
           now() - interval '1 hour'
    FROM generate_series(1, :deliveries) AS number
    """
)
_QUEUED = text(
    """
    SELECT count(*) <= :limit FROM (
        SELECT FROM deliveries WHERE state = 'pending' AND NOT queued LIMIT :limit + 1
    ) AS unqueued
    """
)
_TAKE_BACK = text(
    "UPDATE deliveries SET next_at = now() - interval '1 hour' WHERE id = ANY(CAST(:ids AS uuid[]))"
)


async def backlog(database: AsyncEngine, deliveries: int, receivers: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of claims behind such a backlog, while it is queued and afterwards."""
    async with database.begin() as connection:
        await connection.execute(text("TRUNCATE deliveries, receivers CASCADE"))
        await connection.execute(_FILL, {"deliveries": deliveries, "receivers": receivers})
        await connection.execute(text("ANALYZE deliveries"))
    queueing = [await claim(database)]
    while not await is_queued(database):
        queueing.append(await claim(database))
    took = [await claim(database) for _ in range(rounds)]
    return {
        "deliveries": deliveries,
        "receivers": receivers,
        "queueing_p50_ms": statistics.median(queueing) * 1000,
        "p50_ms": statistics.median(took) * 1000,
        "p95_ms": statistics.quantiles(took, n=20)[-1] * 1000,
    }


async def claim(database: AsyncEngine) -> float:
    """Return the seconds that one claim takes; what it brought is taken back."""
    begun = time.perf_counter()
    claimed = await claim_deliveries(
        database, Places(512, each=4), most=MOST, signs=True, visibility=timedelta(minutes=1)
    )
    took = time.perf_counter() - begun
    async with database.begin() as connection:
        await connection.execute(_TAKE_BACK, {"ids": [one.id for one in claimed]})
    return took


async def is_queued(database: AsyncEngine) -> bool:
    """Return whether the whole backlog is, but for what the last claim brought."""
    async with database.connect() as connection:
        return bool((await connection.execute(_QUEUED, {"limit": MOST})).scalar())


async def measure(database_url: str, long: int, rounds: int) -> list[dict[str, float]]:
    """Return the figures of every backlog."""
    backlogs = [(SHORT, 1), (SHORT, SHORT), *((long, receivers) for receivers in (*RECEIVERS, long))]
    database = open_database(database_url, timeout=timedelta(minutes=2))
    try:
        return [await backlog(database, *one, rounds) for one in backlogs]
    finally:
        await database.dispose()


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--deliveries", type=int, default=100_000, help="that wait")
    made.add_argument("--rounds", type=int, default=50)
    asked = made.parse_args()
    with servers() as shared:
        figures = asyncio.run(measure(shared.database_url, asked.deliveries, asked.rounds))
    rows = [
        [
            f"{one['deliveries']:,} for {one['receivers']:,}",
            f"{one['queueing_p50_ms']:.1f}",
            f"{one['p50_ms']:.1f}",
            f"{one['p95_ms']:.1f}",
        ]
        for one in figures
    ]
    headings = (
        "callbacks that wait for receivers",
        "claim p50 while they are queued, ms",
        "p50, ms",
        "p95, ms",
    )
    table = Table(headings=headings, rows=rows)
    Report(tables=[table], figures={"backlogs": figures}).tell(as_json=asked.json)


if __name__ == "__main__":
    main()
