"""How far the fleet is behind with what somebody should have done by now. For operators and for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

_LAG = text(
    """
    SELECT unpublished.*, deliveries.*, (
        SELECT count(*) FROM receivers WHERE paused_until IS NOT NULL AND EXISTS (
            SELECT FROM deliveries WHERE state = 'pending' AND deliveries.receiver = receivers.receiver)
    ) AS paused FROM (
        SELECT count(*) AS unpublished, extract(epoch FROM now() - min(run_at)) AS unpublished_s
        FROM parts WHERE state = 'queued' AND published_at IS NULL AND run_at <= now()
    ) AS unpublished, (
        SELECT count(*) AS deliveries, extract(epoch FROM now() - min(next_at)) AS deliveries_s
        FROM (
            SELECT next_at FROM deliveries
            WHERE state = 'pending' AND NOT queued AND next_at <= now() AND receiver NOT IN (
                SELECT receiver FROM receivers WHERE paused_until IS NOT NULL)
            UNION ALL
            SELECT next_at FROM receivers JOIN deliveries USING (receiver)
            WHERE next_due <= now() AND paused_until IS NULL AND state = 'pending' AND queued
        ) AS due
    ) AS deliveries
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is due and not done."""

    unpublished: int
    """Parts that could run and are not in Redis: the relay's work."""
    unpublished_s: float
    """How long the oldest of them has been due, in seconds; 0 without any."""
    deliveries: int
    """Callbacks that nobody is trying, although their receiver is not paused: the webhook workers' work."""
    deliveries_s: float
    """How long the oldest of them has been due, in seconds; 0 without any."""
    paused: int
    """Receivers of callbacks that are paused, and for which some wait."""


def lag(connection: Connection) -> Lag:
    """Return it, by the clock of Postgres; two short index scans. On an `AsyncConnection`, by its `run_sync`."""
    row = connection.execute(_LAG).mappings().one()
    return Lag(
        unpublished=row["unpublished"],
        unpublished_s=float(row["unpublished_s"] or 0),
        deliveries=row["deliveries"],
        deliveries_s=float(row["deliveries_s"] or 0),
        paused=row["paused"],
    )
