"""What workers learned of their engines and leave to others: lengths of output, and the memory that an engine had."""

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

_NOTE = text("UPDATE workers SET memory = :share WHERE name = :name")

_LEFT = text(
    """
    SELECT memory FROM workers
    WHERE host = :host AND engine = :engine AND memory IS NOT NULL AND seen_at > now() - interval '10 minutes'
    ORDER BY seen_at DESC LIMIT 1
    """
)


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


async def note_memory(database: AsyncEngine, worker: str, share: float) -> None:
    """Write down the share that a successor should begin with."""
    async with database.begin() as connection:
        await connection.execute(_NOTE, {"name": worker, "share": share})


async def memory_left(database: AsyncEngine, *, host: str, engine: str) -> float:
    """Return the share that the last engine of that name to die on that machine, lately, has left; 1 without any."""
    async with database.connect() as connection:
        left = (await connection.execute(_LEFT, {"host": host, "engine": engine})).scalar()
    return 1.0 if left is None else float(left)
