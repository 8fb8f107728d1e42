"""A job's document, fetched after the job was accepted: whose it is from now on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas import PayloadRef, discards
from pecia_schemas.payloads import PayloadMissingError
from pecia_workers.ledger.claim import ClaimedPart

_LOCK_JOB = text("SELECT id FROM jobs WHERE id = :job_id FOR NO KEY UPDATE")

# The fence: only the attempt that runs now may give its job a document.
_LOCK_PART = text(
    """
    SELECT id FROM parts WHERE id = :id AND attempt = :attempt AND state = 'running' AND worker = :worker
    FOR NO KEY UPDATE
    """
)

# A job that has this very document already has it from this call, whose answer was lost.
_TAKE_IN = text(
    """
    UPDATE jobs SET payload = :payload, task = jsonb_set(task, '{source}', CAST(:source AS jsonb))
    WHERE id = :job_id AND coalesce(payload, :payload) = :payload
    RETURNING id
    """
)


class PartLostError(Exception):
    """The part was cancelled or taken over meanwhile."""


async def take_in(
    database: AsyncEngine,
    worker: str,
    part: ClaimedPart,
    reference: PayloadRef,
    holds: Callable[[PayloadRef], Awaitable[bool]],
) -> bool:
    """Give the part's job its document, which is in the store; False if the part is not this worker's any more.

    Then the document is let go of, as is every one that a job has no use for. `holds` tells whether the store has it,
    if it was removed lately. Raises `PayloadMissingError` if it has not: then nothing has changed.
    """
    payloads = {"payloads": [reference.sha256]}
    async with database.begin() as connection:
        await connection.execute(discards.SHARE_LOCKS, payloads)
        removed = (await connection.execute(discards.REMOVED_LATELY, payloads)).scalars().all()
        if removed and not await holds(reference):
            raise PayloadMissingError(reference.sha256)
        await connection.execute(_LOCK_JOB, {"job_id": part.job_id})
        fence = {"id": part.id, "attempt": part.attempt, "worker": worker}
        ours = (await connection.execute(_LOCK_PART, fence)).scalar() is not None
        given = {
            "job_id": part.job_id,
            "payload": reference.sha256,
            "source": reference.model_dump_json(),
        }
        if ours and (await connection.execute(_TAKE_IN, given)).scalar() is not None:
            return True
        await connection.execute(discards.DISCARD, payloads)
        return False
