"""The outbox: claims promised callbacks that are due and records what became of each try."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine


class DeliveryState(StrEnum):
    """Life of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A callback to try now."""

    id: UUID
    job_id: UUID
    url: str
    body: dict[str, Any]
    attempt: int
    """Counted from 1, at the claim; the fence of what is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """What became of a try."""

    state: DeliveryState
    status: int | None = None
    """HTTP status, if there was an answer."""
    error: str | None = None
    """A short code, never text of the receiver's."""
    retry_in: timedelta = timedelta()


# A claim is a promise to record within `visibility`. Whoever dies meanwhile leaves the row pending, and it comes again.
_CLAIM = text(
    """
    WITH due AS (
        SELECT id FROM deliveries
        WHERE state = 'pending' AND next_at <= now()
        ORDER BY next_at
        LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE deliveries
    SET attempts = attempts + 1, next_at = now() + :visibility
    FROM due
    WHERE deliveries.id = due.id
    RETURNING deliveries.id, job_id, url, body, attempts AS attempt
    """
)

_RECORD = text(
    """
    UPDATE deliveries
    SET state = :state, last_status = :status, last_error = :error, next_at = now() + :retry_in,
        finished_at = CASE WHEN :state = 'pending' THEN NULL ELSE now() END
    WHERE id = :id AND attempts = :attempt AND state = 'pending'
    """
)


async def claim_deliveries(
    database: AsyncEngine, *, limit: int, visibility: timedelta
) -> list[ClaimedDelivery]:
    """Return up to `limit` deliveries that are due, each to this caller alone until `visibility` has passed."""
    async with database.begin() as connection:
        rows = await connection.execute(_CLAIM, {"limit": limit, "visibility": visibility})
        return [ClaimedDelivery(**row) for row in rows.mappings()]


async def record_outcome(database: AsyncEngine, delivery: ClaimedDelivery, outcome: DeliveryOutcome) -> bool:
    """Write down what became of a try. Returns False if another worker has taken the delivery over meanwhile."""
    async with database.begin() as connection:
        result = await connection.execute(
            _RECORD,
            {
                "id": delivery.id,
                "attempt": delivery.attempt,
                "state": outcome.state,
                "status": outcome.status,
                "error": outcome.error,
                "retry_in": outcome.retry_in,
            },
        )
        return result.rowcount == 1
