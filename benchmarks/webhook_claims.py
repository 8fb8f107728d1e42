"""What one claim of callbacks takes behind backlogs: milliseconds, by deliveries that wait and receivers they wait for.

Caveats. Nothing is posted: receivers decide how long that takes. Each claim is taken back before the next, so that
every one finds the same backlog; that leaves dead rows, as a busy outbox has them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from harness.report import Report, Table, parser
from harness.servers import servers
from pecia_workers.ledger.database import open_database
from pecia_workers.ledger.outbox import Room, claim_deliveries

RECEIVERS = (1, 100, 2_000)
"""That the long backlog is for; the short one is for one."""
SHORT = 100
ROOM = Room(deliveries=64, each=4, busy={}, signs=True)

_FILL = text(
    """
    INSERT INTO deliveries (type, url, body, next_at)
    SELECT 'job.succeeded', 'https://example.org/' || number % :receivers, '{}', now() - interval '1 hour'
    FROM generate_series(1, :deliveries) AS number
    """
)
_TAKE_BACK = text(
    "UPDATE deliveries SET next_at = now() - interval '1 hour' WHERE id = ANY(CAST(:ids AS uuid[]))"
)


async def claims(database: AsyncEngine, deliveries: int, receivers: int, rounds: int) -> list[float]:
    """Return the seconds of each claim behind such a backlog."""
    async with database.begin() as connection:
        await connection.execute(text("TRUNCATE deliveries CASCADE"))
        await connection.execute(_FILL, {"deliveries": deliveries, "receivers": receivers})
        await connection.execute(text("ANALYZE deliveries"))
    took: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        claimed = await claim_deliveries(database, ROOM, visibility=timedelta(minutes=1))
        took.append(time.perf_counter() - begun)
        async with database.begin() as connection:
            await connection.execute(_TAKE_BACK, {"ids": [one.id for one in claimed]})
    return took


async def measure(database_url: str, long: int, rounds: int) -> list[dict[str, float]]:
    """Return the figures of every backlog."""
    backlogs = [(SHORT, 1), *((long, receivers) for receivers in RECEIVERS)]
    database = open_database(database_url, patience=timedelta(minutes=2))
    try:
        return [
            {
                "deliveries": deliveries,
                "receivers": receivers,
                "p50_ms": statistics.median(took) * 1000,
                "p95_ms": statistics.quantiles(took, n=20)[-1] * 1000,
            }
            for deliveries, receivers in backlogs
            for took in [await claims(database, deliveries, receivers, rounds)]
        ]
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
            f"{one['p50_ms']:.1f}",
            f"{one['p95_ms']:.1f}",
        ]
        for one in figures
    ]
    table = Table(headings=("callbacks that wait for receivers", "claim p50, ms", "p95, ms"), rows=rows)
    Report(tables=[table], figures={"backlogs": figures}).tell(as_json=asked.json)


if __name__ == "__main__":
    main()
