"""The columns that the client's statements name: as much of `pecia_schemas.tables` as they need, without the ORM."""

from __future__ import annotations

from sqlalchemy import DateTime, Integer, Text, Uuid, column, table
from sqlalchemy.dialects.postgresql import JSONB

JOBS = table(
    "jobs",
    column("id", Uuid),
    column("kind", Text),
    column("lane", Text),
    column("state", Text),
    column("task", JSONB),
    column("task_digest", Text),
    column("idempotency_key", Text),
    column("tenant", Text),
    column("metadata", JSONB),
    column("total", Integer),
    column("done", Integer),
    column("failed", Integer),
    column("cancelled", Integer),
    column("failure", JSONB),
    column("created_at", DateTime(timezone=True)),
    column("started_at", DateTime(timezone=True)),
    column("finished_at", DateTime(timezone=True)),
    column("payload_released_at", DateTime(timezone=True)),
    column("erased_at", DateTime(timezone=True)),
)
PARTS = table(
    "parts",
    column("id", Uuid),
    column("job_id", Uuid),
    column("stage", Text),
    column("ordinal", Integer),
    column("state", Text),
    column("strikes", Integer),
    column("deaths", Integer),
    column("verdict", Text),
    column("finished_at", DateTime(timezone=True)),
    column("published_at", DateTime(timezone=True)),
    column("failure", JSONB),
)
VIEW = [
    JOBS.c.id,
    JOBS.c.kind,
    JOBS.c.lane,
    JOBS.c.state,
    JOBS.c.metadata,
    JOBS.c.total,
    JOBS.c.done,
    JOBS.c.failed,
    JOBS.c.cancelled,
    JOBS.c.failure,
    JOBS.c.created_at,
    JOBS.c.started_at,
    JOBS.c.finished_at,
    JOBS.c.erased_at,
]
"""What of a row of `jobs` makes a view of it."""
RESULTS = table("results", column("part_id", Uuid), column("content", JSONB))
EVENTS = table(
    "job_events",
    column("sequence", Integer),
    column("job_id", Uuid),
    column("part_id", Uuid),
    column("state", Text),
    column("at", DateTime(timezone=True)),
    column("actor", Text),
    column("attempt", Integer),
    column("reason", Text),
)
