"""How receivers of callbacks are: who fails is paused, who is gone is told nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Tries that were under way when the pause began make it no longer.
_FAILED = text(
    """
    INSERT INTO receivers AS known (receiver, failures, failing_since, failed_at, paused_until)
    VALUES (:receiver, 1, now(), now(), CASE WHEN CAST(:after AS int) <= 1 THEN now() + CAST(:first AS interval) END)
    ON CONFLICT (receiver) DO UPDATE
    SET failures = known.failures + 1, failing_since = coalesce(known.failing_since, now()), failed_at = now(),
        (paused_until, next_due) = (
            SELECT until, CASE WHEN known.next_due IS NOT NULL THEN coalesce(until, known.next_due) END
            FROM (SELECT CASE WHEN known.failures + 1 >= :after THEN now() + least(
                CAST(:first AS interval) * power(2, least(known.failures + 1 - :after, 30)),
                CAST(:longest AS interval)) END AS until) AS pause)
    WHERE coalesce(known.paused_until <= now(), true)
    """
)

_RECOVERED = text(
    """
    UPDATE receivers
    SET failures = 0, failing_since = NULL, failed_at = NULL, paused_until = NULL,
        next_due = CASE WHEN next_due IS NOT NULL THEN now() END
    WHERE receiver = :receiver AND failures > 0
    """
)

_IDLE = text("DELETE FROM receivers WHERE receiver = :receiver AND failures = 0 AND next_due IS NULL")

_FORGET = text(
    "DELETE FROM receivers WHERE failed_at < now() - :age AND next_due IS NULL AND receiver LIKE 'http%'"
)

# A try that began before the endpoint said that it is gone is no news.
_ENABLE = text("UPDATE endpoints SET disabled_at = NULL WHERE id = :endpoint AND disabled_at < now() - :took")

_DISABLE = text("UPDATE endpoints SET disabled_at = now() WHERE id = :endpoint AND disabled_at IS NULL")

# What somebody else holds finds out for itself.
_END = text(
    """
    UPDATE deliveries SET state = 'dead', last_error = 'endpoint_gone', finished_at = now()
    WHERE id IN (
        SELECT id FROM deliveries WHERE state = 'pending' AND receiver = :receiver AND url = :url
        FOR NO KEY UPDATE SKIP LOCKED
    )
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePolicy:
    """When a receiver is paused, and for how long."""

    after: int
    """Tries that fail, one after the other."""
    first: timedelta
    """Length of the first pause; each further one is twice as long."""
    longest: timedelta = timedelta(hours=1)


async def note_failure(connection: AsyncConnection, receiver: str, pause: PausePolicy) -> None:
    """Count a failure; after enough of them pause the receiver."""
    asked = {"receiver": receiver, "after": pause.after, "first": pause.first, "longest": pause.longest}
    await connection.execute(_FAILED, asked)


async def note_success(
    connection: AsyncConnection, receiver: str, endpoint: UUID | None, *, took: timedelta
) -> None:
    """Forget failures, and that the endpoint was gone before this try, which took so long."""
    await _recover(connection, receiver)
    if endpoint is not None:
        await connection.execute(_ENABLE, {"endpoint": endpoint, "took": took})


async def note_gone(connection: AsyncConnection, receiver: str, endpoint: UUID | None, *, url: str) -> int:
    """Disable the endpoint, and end what waits for that URL; return how many deliveries that were."""
    await _recover(connection, receiver)
    if endpoint is not None:
        await connection.execute(_DISABLE, {"endpoint": endpoint})
    return (await connection.execute(_END, {"receiver": receiver, "url": url})).rowcount


async def forget_hosts(connection: AsyncConnection, age: timedelta) -> None:
    """Forget hosts for which nothing is queued and that failed that long ago for the last time."""
    await connection.execute(_FORGET, {"age": age})


async def _recover(connection: AsyncConnection, receiver: str) -> None:
    """Forget its failures; its row goes if nothing is queued."""
    if (await connection.execute(_RECOVERED, {"receiver": receiver})).rowcount:
        await connection.execute(_IDLE, {"receiver": receiver})
