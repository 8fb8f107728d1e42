"""What a part reads of its job: the document, also one that was fetched after the job was accepted, and captions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import PayloadRef, Segment, discards
from pecia_schemas.encryption import Keyring
from pecia_schemas.payloads import PayloadMissingError
from pecia_workers.ledger.claim import ClaimedPart

# A claim that had to wait for the document to be taken in has read the task as it was before.
_DOCUMENT = text(
    """
    SELECT jobs.task->'source' FROM parts JOIN jobs ON jobs.id = parts.job_id
    WHERE parts.id = :id AND parts.attempt = :attempt AND parts.state = 'running' AND parts.worker = :worker
    """
)

_LOCK_JOB = text("SELECT task->'source' FROM jobs WHERE id = :job_id FOR NO KEY UPDATE")

# The fence: only the attempt that runs now may give its job a document.
_LOCK_PART = text(
    """
    SELECT id FROM parts WHERE id = :id AND attempt = :attempt AND state = 'running' AND worker = :worker
    FOR NO KEY UPDATE
    """
)

_TAKE_IN = text(
    """
    UPDATE jobs SET payload = :payload, task = jsonb_set(task, '{source}', CAST(:source AS jsonb))
    WHERE id = :job_id
    """
)

_CAPTIONS = text(
    """
    SELECT results.part_id, results.content FROM results JOIN parts ON parts.id = results.part_id
    WHERE parts.job_id = :job_id AND parts.stage = 'caption' AND parts.state = 'done'
    ORDER BY parts.ordinal
    """
)


class PartLostError(Exception):
    """The part was cancelled or taken over meanwhile."""


async def document_of(database: AsyncEngine, worker: str, part: ClaimedPart) -> PayloadRef | None:
    """Return the document that the part's job has by now, None if it has none. Raises `PartLostError`."""
    async with database.connect() as connection:
        row = (await connection.execute(_DOCUMENT, _fence(worker, part))).one_or_none()
    if row is None:
        raise PartLostError
    return row[0] and PayloadRef.model_validate(row[0])


async def take_in(
    database: AsyncEngine,
    worker: str,
    part: ClaimedPart,
    reference: PayloadRef,
    holds: Callable[[PayloadRef], Awaitable[bool]],
) -> PayloadRef | None:
    """Give the part's job its document, which is in the store; None if the part is not this worker's any more.

    Returns the one that the job has then: of two the first, whether this call gave it or another. The document is let
    go of if the job has no use for it. `holds` tells whether the store has it, if it was removed lately. Raises
    `PayloadMissingError` if it has not: then nothing has changed.
    """
    payloads = {"payloads": [reference.sha256]}
    async with database.begin() as connection:
        released = (await connection.execute(discards.HOLD, payloads)).first()
        if released and not await holds(reference):
            raise PayloadMissingError(reference.sha256)
        former = (await connection.execute(_LOCK_JOB, {"job_id": part.job_id})).scalar()
        ours = (await connection.execute(_LOCK_PART, _fence(worker, part))).scalar() is not None
        if ours and former is None:
            given = {"payload": reference.sha256, "source": reference.model_dump_json()}
            await connection.execute(_TAKE_IN, {"job_id": part.job_id, **given})
            return reference
        kept = PayloadRef.model_validate(former) if ours else None
        if kept != reference:
            await connection.execute(discards.DISCARD, payloads)
        return kept


def _fence(worker: str, part: ClaimedPart) -> dict[str, object]:
    return {"id": part.id, "attempt": part.attempt, "worker": worker}


async def read_captions(database: AsyncEngine, job_id: UUID, keys: Keyring) -> list[Segment]:
    """Return the segments of a job that have a caption, in the order of time. Raises `DecryptionError`."""
    async with database.connect() as connection:
        rows = await connection.execute(_CAPTIONS, {"job_id": job_id})
        return [Segment.model_validate(keys.unseal(content, part_id)) for part_id, content in rows]
