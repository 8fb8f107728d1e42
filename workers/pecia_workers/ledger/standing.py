"""How the fleet stands, for metrics: what waits for how long, what is behind, who is on duty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from pecia_schemas import Lane
from pecia_workers.ledger.lag import Lag, Left, lag, left_in_postgres
from pecia_workers.ledger.roster import roles_on_duty

# The first entry of an index for each lane, however many parts wait.
_OLDEST = text(
    """
    SELECT lanes.lane, extract(epoch FROM now() - oldest.run_at) AS seconds
    FROM unnest(CAST(:lanes AS text[])) AS lanes (lane), LATERAL (
        SELECT run_at FROM parts
        WHERE state = 'queued' AND parts.lane = lanes.lane AND run_at <= now()
        ORDER BY run_at LIMIT 1
    ) AS oldest
    """
)

_REMOVALS = text(
    """
    SELECT count(*) AS number, coalesce(extract(epoch FROM now() - min(discarded_at)), 0) AS seconds
    FROM discarded_payloads WHERE discarded_at IS NOT NULL
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One look, by the clock of Postgres."""

    oldest_s: Mapping[str, float]
    """For each lane in which something waits that could run: since when, in seconds."""
    removals: int
    """Documents that every job has let go of and the store still has."""
    removals_s: float
    """How long the oldest of them has waited, in seconds; 0 without any."""
    roles: Mapping[str, int]
    """Processes on duty of each role."""
    left: Sequence[Left]
    lag: Lag


def standing(connection: Connection, *, window: int) -> Standing:
    """Return it; six short look-ups. On an `AsyncConnection`, by its `run_sync`."""
    oldest = connection.execute(_OLDEST, {"lanes": [lane.value for lane in Lane]})
    removals = connection.execute(_REMOVALS).one()
    left = left_in_postgres(connection)
    return Standing(
        oldest_s={row.lane: float(row.seconds) for row in oldest},
        removals=removals.number,
        removals_s=max(0.0, float(removals.seconds)),
        roles=roles_on_duty(connection),
        left=left,
        lag=lag(connection, left, window=window),
    )
