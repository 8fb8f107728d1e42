"""What the segments of a video were captioned with."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import Segment
from pecia_schemas.encryption import Keyring

_CAPTIONS = text(
    """
    SELECT results.part_id, results.content FROM results JOIN parts ON parts.id = results.part_id
    WHERE parts.job_id = :job_id AND parts.stage = 'caption' AND parts.state = 'done'
    ORDER BY parts.ordinal
    """
)


async def read_captions(database: AsyncEngine, job_id: UUID, keys: Keyring) -> list[Segment]:
    """Return the segments of a job that have a caption, in the order of time. Raises `DecryptionError`."""
    async with database.connect() as connection:
        rows = await connection.execute(_CAPTIONS, {"job_id": job_id})
        return [Segment.model_validate(keys.unseal(content, part_id)) for part_id, content in rows]
