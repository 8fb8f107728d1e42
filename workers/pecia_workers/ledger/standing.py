"""State of the fleet: waiting times, late work, live workers, and needs that no worker serves.

For operators, metrics and the screen of `pecia up`. Takes a synchronous connection, since a command has no event loop;
async callers use `AsyncConnection.run_sync`.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia_schemas.messages import quarantine_name, queue_name
from pecia_schemas.moves import COUNTED, RELEASABLE, recount
from pecia_schemas.running import ON_DUTY, UNSERVED, UNSIGNED, Lack
from pecia_schemas.states import JobState, Lane, Stage
from pecia_workers.ledger.database import fetch

_MOST_OF_A_LIST = 100_000
"""Most parts of a list that are counted."""

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
        SELECT count(*) AS deliveries,
               CAST(coalesce(extract(epoch FROM now() - min(next_at)), 0) AS float) AS deliveries_s
        FROM (
            SELECT next_at FROM deliveries
            WHERE state = 'pending' AND NOT queued AND next_at <= now() AND receiver NOT IN (
                SELECT receiver FROM receivers WHERE paused_until IS NOT NULL)
            UNION ALL
            SELECT next_at FROM receivers JOIN deliveries USING (receiver)
            WHERE next_due <= now() AND paused_until IS NULL AND state = 'pending' AND queued
            UNION ALL
            SELECT at FROM notices
        ) AS due
    ) AS deliveries
    """
)

_UNSERVED = text(UNSERVED)
_ROLES = text(f"SELECT role, count(*) AS number FROM workers WHERE {ON_DUTY} GROUP BY role")  # noqa: S608  a constant

_ENGINES = text(
    f"""
    SELECT name, stages, engine, coalesce(capabilities, '{{}}') AS capabilities FROM workers
    WHERE {ON_DUTY} AND engine IS NOT NULL ORDER BY name
    """  # noqa: S608  a constant
)

_UNSIGNED = text(
    f"""
    SELECT {UNSIGNED} AND EXISTS (SELECT FROM deliveries WHERE state = 'pending' AND endpoint_id IS NULL)
    """  # noqa: S608  a constant
)

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

# By the index of what runs.
_RUNNING = text(
    "SELECT stage, lane, deaths > 0 AS suspect, count(*) AS parts FROM parts WHERE state = 'running' GROUP BY 1, 2, 3"
)

_REMOVALS = text(
    """
    SELECT count(*) AS number, coalesce(extract(epoch FROM now() - min(discarded_at)), 0) AS seconds
    FROM discarded_payloads WHERE discarded_at IS NOT NULL
    """
)

MOST_JOBS: Final = 10_000
"""Most jobs of a state that are counted."""
GLANCE_S: Final = 60

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


def oldest_waiting(connection: Connection) -> dict[str, float]:
    """Return for each lane with runnable parts how long the oldest has waited, in seconds."""
    return {lane: float(seconds) for lane, seconds in connection.execute(_OLDEST, {"lanes": list(Lane)})}


def count_running(connection: Connection) -> Counter[str]:
    """Return how many parts from each list run, by Postgres's record."""
    running: Counter[str] = Counter()
    for stage, lane, suspect, parts in connection.execute(_RUNNING):
        running[quarantine_name(stage) if suspect else queue_name(stage, lane)] += parts
    return running


def awaiting_removal(connection: Connection) -> tuple[int, float]:
    """Return how many documents wait for their removal from the store, and for how many seconds the oldest has."""
    number, seconds = connection.execute(_REMOVALS).one()
    return number, max(0.0, float(seconds))


def roles_on_duty(connection: Connection) -> dict[str, int]:
    """Return the number of live workers of each role."""
    return {row.role: row.number for row in connection.execute(_ROLES)}


def engines_on_duty(connection: Connection) -> Sequence[Row[Any]]:
    """Return name, stages, engine and capabilities (empty until its engine has started) of each live engine worker."""
    return connection.execute(_ENGINES).all()


def unserved(connection: Connection) -> list[Lack]:
    """Return the needs of queued parts that no live worker serves."""
    return [Lack(**row) for row in connection.execute(_UNSERVED, {"job_ids": None}).mappings()]


def wait_for_a_secret(connection: Connection) -> bool:
    """Return whether callbacks wait because no live webhook worker has the secret that signs them."""
    return bool(connection.execute(_UNSIGNED).scalar())


@dataclass(frozen=True, slots=True)
class Left:
    """Runnable parts of one list that wait in Postgres."""

    stage: Stage
    lane: Lane
    parts: int
    """Counted up to a hundred thousand."""
    seconds: float
    """How long the oldest of them has been due."""
    published: int
    """Parts of the list that wait in Redis, by Postgres's record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The backlog of relay and webhook workers."""

    unpublished: int
    """Runnable parts that are not in Redis although their list is less than half full: the relay's backlog."""
    unpublished_s: float
    """How long the oldest of them has been due, in seconds; 0 without any."""
    deliveries: int
    """Due callbacks of receivers that are not paused, and notices without deliveries: the webhook workers' backlog."""
    deliveries_s: float
    """How long the oldest of them has been due, in seconds; 0 without any."""
    paused: int
    """Paused receivers for which callbacks wait."""


def left_in_postgres(connection: Connection) -> list[Left]:
    """Count the parts that wait in Postgres, for each list that has some."""
    lists = {"stages": list(Stage), "lanes": list(Lane), "most": _MOST_OF_A_LIST}
    return [
        Left(Stage(stage), Lane(lane), parts, float(seconds), published)
        for stage, lane, parts, seconds, published in connection.execute(_LEFT, lists)
    ]


def lag(connection: Connection, left: Sequence[Left], *, window: int) -> Lag:
    """Return the backlog, by the clock of Postgres."""
    unpublished = [one for one in left if one.published < window / 2]
    return Lag(
        unpublished=sum(one.parts for one in unpublished),
        unpublished_s=max((one.seconds for one in unpublished), default=0.0),
        **connection.execute(_LAG).mappings().one(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Open jobs, and the work that ended in the last minute."""

    queued: int
    """Counted up to `MOST_JOBS`, as is `running`."""
    running: int
    done: int
    failed: int
    """Failed or partial jobs."""
    parts: int
    """Pages and segments that were read."""


def glance(connection: Connection) -> Glance:
    """Return the present figures."""
    return Glance(**connection.execute(_GLANCE, {"most": MOST_JOBS, "window": GLANCE_S}).mappings().one())


_IDS_PER_QUERY = 5_000

_KNOWN = text("SELECT id FROM parts WHERE id = ANY(CAST(:ids AS uuid[]))")

# One statement sees jobs and parts as of one moment: a commit in flight is not a difference.
_LATELY = "jobs.state IN ('queued', 'running') OR jobs.finished_at > now() - interval '1 day'"

# Jobs, open or over for less than a day, whose counters are not those of their parts.
MISCOUNTED = text(
    f"""
    WITH counted AS ({COUNTED.format(which=_LATELY)})
    SELECT id FROM counted JOIN jobs USING (id)
    WHERE (jobs.done, jobs.failed, jobs.cancelled) <> (counted.done, counted.failed, counted.cancelled)
       OR pieces > 0 AND jobs.total IS DISTINCT FROM pieces
    """  # noqa: S608  constants of this module
)

# Jobs that go on although all their parts are over. A batch of requests has none: the gateway ends it.
UNENDED = text(
    f"""
    WITH counted AS ({COUNTED.format(which="jobs.state IN ('queued', 'running') AND kind <> 'openai.batch'")})
    SELECT id FROM counted WHERE open = 0
    """  # noqa: S608  constants of this module
)

# Jobs of parts that wait for others which are over.
STUCK_SUMMARIES = text(
    f"SELECT held.job_id FROM parts AS held WHERE {RELEASABLE}"  # noqa: S608  a constant
)

# The names of the documents that open jobs need, and whose they are.
OPEN_PAYLOADS = text(
    """
    SELECT payload, array_agg(id) AS job_ids FROM jobs
    WHERE state IN ('queued', 'running') AND payload <> '' GROUP BY payload
    """
)

_LOCK = text("SELECT id FROM jobs WHERE id = ANY(CAST(:job_ids AS uuid[])) ORDER BY id FOR NO KEY UPDATE")


async def known_parts(database: AsyncEngine, parts: Collection[str]) -> set[str]:
    """Return the parts that exist."""
    ids = list(parts)
    steps = [ids[start : start + _IDS_PER_QUERY] for start in range(0, len(ids), _IDS_PER_QUERY)]
    return {str(row.id) for step in steps for row in await fetch(database, _KNOWN, ids=step)}


async def mend_jobs(database: AsyncEngine, job_ids: Collection[UUID], *, actor: str) -> dict[UUID, JobState]:
    """Recount the jobs' parts, release held parts that wait for nothing, end finished jobs and return these."""
    async with database.begin() as connection:
        await connection.execute(_LOCK, {"job_ids": list(job_ids)})
        return await connection.run_sync(recount, job_ids, actor=actor)
