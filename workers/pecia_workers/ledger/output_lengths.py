"""What the fleet has learned of its workloads' output, merged by all workers in a row for each workload."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

_MERGE = text(
    """
    INSERT INTO output_lengths (workload, weights)
    VALUES (:workload, CAST(:weights AS double precision[]))
    ON CONFLICT (workload) DO UPDATE
    SET updated_at = now(), weights = (
        SELECT array_agg(old * 0.5 ^ (CAST(:seen AS double precision) / :half_life) + new ORDER BY step)
        FROM unnest(output_lengths.weights, excluded.weights) WITH ORDINALITY AS grid (old, new, step))
    """
)

_KNOWN = text("SELECT workload, weights FROM output_lengths")


async def share_output_lengths(
    database: AsyncEngine, seen: Mapping[str, list[float]], *, half_life: int
) -> dict[str, list[float]]:
    """Add what was seen to what is known, older observations fading with each; return all that is known.

    Workloads go one after the other in the order of their names, so that two workers never wait in a circle.
    """
    async with database.begin() as connection:
        for workload, weights in sorted(seen.items()):
            values = {"workload": workload, "weights": weights, "seen": sum(weights), "half_life": half_life}
            await connection.execute(_MERGE, values)
        return {row.workload: row.weights for row in await connection.execute(_KNOWN)}
