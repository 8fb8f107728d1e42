"""How far the fleet is behind with what somebody should have done by now. For operators and for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from pecia_schemas import Lane, Stage

_MOST = 100_000
"""Parts of a list that are counted."""

# One entry of an index for each part that is counted.
_LEFT = text(
    """
    SELECT stages.stage, lanes.lane, count(*) AS parts, extract(epoch FROM now() - min(due.run_at)) AS seconds,
           (SELECT count(*) FROM parts WHERE state = 'queued' AND published_at IS NOT NULL
            AND parts.stage = stages.stage AND parts.lane = lanes.lane) AS published
    FROM unnest(CAST(:stages AS text[])) AS stages (stage)
    CROSS JOIN unnest(CAST(:lanes AS text[])) AS lanes (lane)
    CROSS JOIN LATERAL ((
        SELECT run_at FROM parts
        WHERE state = 'queued' AND published_at IS NULL AND attempt = 0 AND NOT early
          AND parts.stage = stages.stage AND parts.lane = lanes.lane AND run_at <= now()
        LIMIT :most
    ) UNION ALL (
        SELECT run_at FROM parts
        WHERE state = 'queued' AND published_at IS NULL AND attempt > 0
          AND parts.stage = stages.stage AND parts.lane = lanes.lane AND run_at <= now()
        LIMIT :most
    )) AS due
    GROUP BY stages.stage, lanes.lane
    """
)

_LAG = text(
    """
    SELECT deliveries.*, (
        SELECT count(*) FROM receivers WHERE paused_until IS NOT NULL AND EXISTS (
            SELECT FROM deliveries WHERE state = 'pending' AND deliveries.receiver = receivers.receiver)
    ) AS paused FROM (
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
class Left:
    """Parts of one list that could run and wait in Postgres."""

    stage: Stage
    lane: Lane
    parts: int
    """Counted up to a hundred thousand."""
    seconds: float
    """How long the oldest of them has been due."""
    published: int
    """Parts of the list that wait in Redis, by what Postgres knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is due and not done."""

    unpublished: int
    """Parts that could run and are not in Redis although their list is not half full: the relay's work."""
    unpublished_s: float
    """How long the oldest of them has been due, in seconds; 0 without any."""
    deliveries: int
    """Callbacks that are not being tried, although their receiver is not paused: the webhook workers' work."""
    deliveries_s: float
    """How long the oldest of them has been due, in seconds; 0 without any."""
    paused: int
    """Receivers of callbacks that are paused, and for which some wait."""


def left_in_postgres(connection: Connection) -> list[Left]:
    """Return it for each list of which something waits in Postgres."""
    lists = {"stages": list(Stage), "lanes": list(Lane), "most": _MOST}
    return [
        Left(
            stage=Stage(row.stage),
            lane=Lane(row.lane),
            parts=row.parts,
            seconds=float(row.seconds),
            published=row.published,
        )
        for row in connection.execute(_LEFT, lists)
    ]


def lag(connection: Connection, left: Sequence[Left], *, window: int) -> Lag:
    """Return it, by the clock of Postgres. On an `AsyncConnection`, by its `run_sync`."""
    row = connection.execute(_LAG).mappings().one()
    unpublished = [one for one in left if one.published < window / 2]
    return Lag(
        unpublished=sum(one.parts for one in unpublished),
        unpublished_s=max((one.seconds for one in unpublished), default=0.0),
        deliveries=row["deliveries"],
        deliveries_s=float(row["deliveries_s"] or 0),
        paused=row["paused"],
    )
