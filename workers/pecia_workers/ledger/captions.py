"""What the segments of a video were captioned with."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import Segment

_CAPTIONS = text(
    """
    SELECT results.content FROM results JOIN parts ON parts.id = results.part_id
    WHERE parts.job_id = :job_id AND parts.stage = 'caption' AND parts.state = 'done'
    ORDER BY parts.ordinal
    """
)


async def read_captions(database: AsyncEngine, job_id: UUID) -> list[Segment]:
    """Return the segments of a job that have a caption, in the order of time."""
    async with database.connect() as connection:
        rows = await connection.execute(_CAPTIONS, {"job_id": job_id})
        return [Segment.model_validate(content) for content in rows.scalars()]
