"""How a fleet stands, in figures that cost the same however many jobs there are. For the screen of `pecia up`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

MOST: Final = 10_000
"""Jobs of a state that are counted."""
WINDOW_S: Final = 60

_GLANCE = text(
    """
    SELECT (SELECT count(*) FROM (SELECT FROM jobs WHERE state = 'queued' LIMIT :most) AS first) AS queued,
           (SELECT count(*) FROM (SELECT FROM jobs WHERE state = 'running' LIMIT :most) AS first) AS running,
           ended.*, read.*
    FROM (SELECT count(*) FILTER (WHERE state = 'succeeded') AS done,
                 count(*) FILTER (WHERE state IN ('failed', 'partial')) AS failed
          FROM jobs WHERE finished_at > now() - make_interval(secs => :window)) AS ended,
         (SELECT count(*) AS parts FROM parts
          WHERE engine IS NOT NULL AND state = 'done' AND finished_at > now() - make_interval(secs => :window)) AS read
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Jobs that are open, and what came to its end in the last minute."""

    queued: int
    """Of the first `MOST`, as is `running`."""
    running: int
    done: int
    failed: int
    """Or partial."""
    parts: int
    """Pages and segments that were read."""


def glance(connection: Connection) -> Glance:
    """Return how the fleet stands."""
    row = connection.execute(_GLANCE, {"most": MOST, "window": WINDOW_S}).mappings().one()
    return Glance(**row)
