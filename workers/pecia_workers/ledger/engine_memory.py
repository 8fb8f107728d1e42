"""How much of its budget a worker's engine had memory for when it died, for the worker that starts in its place."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

_NOTE = text("UPDATE workers SET memory = :share WHERE name = :name")

_LEFT = text(
    """
    SELECT memory FROM workers
    WHERE host = :host AND engine = :engine AND memory IS NOT NULL AND seen_at > now() - interval '10 minutes'
    ORDER BY seen_at DESC LIMIT 1
    """
)


async def note_memory(database: AsyncEngine, worker: str, share: float) -> None:
    """Write down the share that a successor should begin with."""
    async with database.begin() as connection:
        await connection.execute(_NOTE, {"name": worker, "share": share})


async def memory_left(database: AsyncEngine, *, host: str, engine: str) -> float:
    """Return the share that the last engine of that name to die on that machine, lately, has left; 1 without any."""
    async with database.connect() as connection:
        left = (await connection.execute(_LEFT, {"host": host, "engine": engine})).scalar()
    return 1.0 if left is None else float(left)
