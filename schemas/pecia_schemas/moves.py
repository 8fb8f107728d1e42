"""State changes of parts and jobs: state, times, event, counters, summary and callbacks change together.

Callbacks are queued under the job's lock when its events are written; the newest event determines the order of a
notice among those of the job.

Only this module, and the client that creates a job, write `parts.state`, `jobs.state`, the counters of jobs or new
`job_events`. Callers lock jobs before parts, each in the order of ids, always FOR NO KEY UPDATE, so that transactions
cannot deadlock.
"""

import json
from collections.abc import Collection, Iterable
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import TextClause, text

from pecia_schemas.bundles import Split
from pecia_schemas.events import utc
from pecia_schemas.results import NEEDS_REVIEW
from pecia_schemas.states import AWAITED, JobState, PartState

_DATA = f"""
    'job_id', job.id, 'kind', kind, 'state', state, 'lane', lane,
    'progress', jsonb_build_object('total', total, 'done', done, 'failed', failed, 'cancelled', cancelled),
    'failure', failure->'code', 'metadata', metadata, 'needs_review', needs_review,
    'created_at', {utc("created_at")}, 'finished_at', {utc("finished_at")}
"""


def id_from(*expressions: str) -> str:
    """Return SQL for an id that is determined by these expressions: a UUID of version 8, by SHA-256."""
    name = " || ' ' || ".join(f"CAST({each} AS text)" for each in expressions)
    digest = f"encode(substring(sha256(convert_to({name}, 'UTF8')) FOR 16), 'hex')"
    return f"CAST(overlay(overlay({digest} PLACING '8' FROM 13) PLACING 'a' FROM 17) AS uuid)"


def _subscribed(job: str, event: str) -> str:
    """Return SQL for whether an endpoint subscribes to an event of a job, with two index lookups."""
    live = f"disabled_at IS NULL AND {event} = ANY(events)"
    return f"""(
        EXISTS (SELECT FROM endpoints WHERE tenant = {job}.tenant AND {live})
        OR EXISTS (SELECT FROM endpoints WHERE tenant IS NULL AND {live})
    )"""  # noqa: S608  constants of this module


_PART_DONE = "'part.done'"
NOTIFIES_PARTS = f"(coalesce(webhook->'events' ? {_PART_DONE}, false) OR {_subscribed('jobs', _PART_DONE)})"
"""SQL expression over a row of `jobs`: whether a receiver subscribes to the job's parts."""


def _promising(
    jobs: str, event: str, *, part: str = "", at: str, sequence: str, number: str, more: str = ""
) -> TextClause:
    """Return the statement that queues notices of an event; its writes do not grow with the number of endpoints.

    The job's own webhook gets a delivery. All endpoints together get a notice, from which the webhook worker makes
    their deliveries. Without a subscriber nothing is written. An id is determined by job, event, part and `number`:
    after a failover that has lost the commit, the same event gets the same id.
    """
    name = id_from("job.id", "noticed.type", "part.id" if part else "''", number)
    return text(
        f"""
    WITH job AS MATERIALIZED (
        SELECT jobs.*, (SELECT count(*) FROM parts WHERE parts.job_id = jobs.id AND {NEEDS_REVIEW}) AS needs_review
        FROM jobs WHERE {jobs}
    ), promised AS MATERIALIZED (
        SELECT {name} AS id, job.id AS job_id, coalesce(tenant, '') AS tenant, type, own, subscribed,
               webhook->>'url' AS url, jsonb_build_object('type', type, 'timestamp', {utc(at)}, 'data',
                   jsonb_build_object({_DATA}, 'sequence', coalesce(({sequence}), 0){more})) AS body
        FROM job {part}
        CROSS JOIN LATERAL (SELECT {event} AS type) AS noticed
        CROSS JOIN LATERAL (
            SELECT coalesce(webhook->'events' ? type, false) AS own, {_subscribed("job", "type")} AS subscribed
        ) AS wanted
        WHERE own OR subscribed
    ), published AS (
        INSERT INTO notices (id, job_id, tenant, type, body)
        SELECT id, job_id, tenant, type, body FROM promised WHERE subscribed ON CONFLICT (id) DO NOTHING
    )
    INSERT INTO deliveries (id, job_id, type, url, body)
    SELECT id, job_id, type, url, body FROM promised WHERE own ON CONFLICT (id) DO NOTHING
    """  # noqa: S608  constants of this module
    )


PROMISE_CALLBACKS = _promising(
    "id = ANY(:job_ids)",
    "'job.' || state",
    at="finished_at",
    sequence="SELECT max(sequence) FROM job_events WHERE job_events.job_id = job.id",
    number="endings",
)
"""Takes `job_ids`; queues a notice of the end of each of these jobs. The body is a `JobNotice`."""


def _promising_parts(event: str, *, at: str, number: str, more: str = "", of_each: str = "") -> TextClause:
    """Return the statement that queues notices of an event of `part_ids`; `of_each` makes several notices of a part."""
    return _promising(
        "id IN (SELECT job_id FROM parts WHERE id = ANY(:part_ids))",
        f"'{event}'",
        part=f"""JOIN (
            SELECT id, job_id, stage, ordinal, attempt, finished_at AS done_at FROM parts
            WHERE id = ANY(:part_ids) AND stage <> 'ingest'
        ) AS part ON part.job_id = job.id {of_each}""",  # noqa: S608  constants of this module
        at=at,
        sequence="""
            SELECT sequence FROM job_events WHERE job_events.job_id = job.id AND job_events.part_id = part.id
            ORDER BY sequence DESC LIMIT 1""",
        number=number,
        more=f""", {more}'part', jsonb_build_object(
            'id', part.id, 'stage', part.stage, 'number', part.ordinal + 1, 'attempt', part.attempt)""",
    )


PROMISE_PARTS = _promising_parts("part.done", at="part.done_at", number="endings")
"""Takes `part_ids` of parts that are done; queues a notice of each."""

_REVISION = "'revision', (SELECT max(number) FROM revisions WHERE part_id = part.id), "
_LAST_REVISION = "(SELECT id FROM revisions WHERE part_id = part.id ORDER BY number DESC LIMIT 1)"
PROMISE_REVISED = _promising_parts("result.revised", at="now()", number=_LAST_REVISION, more=_REVISION)
"""Takes `part_ids` of pages that were just reviewed; queues a notice of each. Repeated reviews get other ids."""

_PROMISE_READY = _promising_parts(
    "document.ready",
    at="now()",
    number=f"concat_ws(' ', endings, ready->>'number', {_LAST_REVISION})",
    more=f"{_REVISION}'document', ready, ",
    of_each="CROSS JOIN jsonb_array_elements(CAST(:documents AS jsonb)) AS ready",
)


def _listed(states: Iterable[PartState]) -> str:
    """Return states as a list in SQL."""
    quoted = ", ".join(f"'{state}'" for state in states)
    return f"({quoted})"


_COUNTED = [state for state in PartState if state.is_terminal]
_OVER = _listed(_COUNTED)
OPEN: Final = _listed(state for state in PartState if not state.is_terminal)
"""SQL: the states of a part that has not ended."""
_CHANGES = ", ".join(
    f"count(*) FILTER (WHERE stage <> 'ingest' AND state = '{state}')"
    f" - count(*) FILTER (WHERE stage <> 'ingest' AND former = '{state}') AS {state}"
    for state in _COUNTED
)
_ADDED = ", ".join(f"{state} = jobs.{state} + changes.{state}" for state in _COUNTED)


_BEGUN_BESIDE = """, beginning AS (
        SELECT id FROM jobs WHERE id IN (SELECT job_id FROM moved) AND state = 'queued'
        FOR NO KEY UPDATE SKIP LOCKED
    ), begun AS (
        UPDATE jobs SET state = 'running', started_at = coalesce(started_at, now())
        FROM beginning WHERE jobs.id = beginning.id RETURNING jobs.id
    )"""
_COUNTED_BESIDE = f""", changes AS (
        SELECT job_id, {_CHANGES}, bool_or(stage = 'ingest' AND state IN ('failed', 'cancelled')) AS uncut,
               bool_or(stage = 'ingest' AND former IN {_OVER}) AS cut_again
        FROM moved GROUP BY job_id HAVING bool_or(state IN {_OVER} OR former IN {_OVER})
    ), counted AS (
        UPDATE jobs
        SET {_ADDED}, total = CASE WHEN uncut THEN 0 WHEN cut_again THEN NULL ELSE total END
        FROM changes WHERE jobs.id = changes.job_id
    )"""  # noqa: S608  constants of this module
_NOTIFY_BEGUN = """
        SELECT id, CAST(NULL AS uuid), 'running', :actor, CAST(NULL AS int), CAST(NULL AS text) FROM begun
        UNION ALL"""


def moving(
    chosen: str,
    *,
    sets: str = "",
    kept: str = "",
    begins: bool = False,
    ends: bool = True,
    beside: str = "",
    answer: str = "SELECT id FROM moved",
) -> TextClause:
    """Return the statement that moves parts, writes an event for each, and counts ended parts in their jobs.

    The caller locks the jobs whose parts end or are reopened. An ingest part is not counted in its job's total: it
    sets the total, to 0 if the document could not be cut, and unsets it when it runs again.

    Args:
        chosen: Common table expressions. The last, `chosen`, has the locked parts: `id`, `former` and `state`, the
            states before and after, and `reason`, for the event.
        sets: Further columns of `parts` to set, in the form of `SET`.
        kept: Columns of `chosen` that `beside` and `answer` need.
        begins: Whether the parts' queued jobs begin. A job that another transaction has locked begins later.
        ends: Whether parts may end or be reopened.
        beside: Further common table expressions, which see the parts as `moved`.
        answer: The query of the statement's result.
    """
    return text(
        f"""
    WITH {chosen}, moved AS (
        UPDATE parts
        SET {sets + "," if sets else ""}
            state = chosen.state, finished_at = CASE WHEN chosen.state IN {_OVER} THEN now() END
        FROM chosen WHERE parts.id = chosen.id
        RETURNING parts.*, chosen.former, chosen.reason{", " + kept if kept else ""}
    ){_BEGUN_BESIDE if begins else ""}, told AS (
        INSERT INTO job_events (job_id, part_id, state, actor, attempt, reason){_NOTIFY_BEGUN if begins else ""}
        SELECT job_id, id, state, :actor, attempt, reason FROM moved
    ){_COUNTED_BESIDE if ends else ""}{", " + beside if beside else ""}
    {answer}
    """  # noqa: S608  constants of callers
    )


_END_PARTS = moving(
    f"""
    chosen AS (
        SELECT id, state AS former, 'cancelled' AS state, CAST(:reason AS text) AS reason FROM parts
        WHERE job_id = ANY(CAST(:job_ids AS uuid[])) AND state IN {OPEN}
        ORDER BY id FOR NO KEY UPDATE
    )
    """  # noqa: S608  a constant
)

_END_JOBS = text(
    """
    WITH ended AS (
        UPDATE jobs SET state = :state, finished_at = now(), endings = endings + 1
        WHERE id = ANY(CAST(:job_ids AS uuid[])) RETURNING id
    )
    INSERT INTO job_events (job_id, state, actor, reason) SELECT id, :state, :actor, :reason FROM ended
    """
)

NOTIFY_REVISED: Final = """
    INSERT INTO job_events (job_id, part_id, state, actor, reason)
    VALUES (:job_id, :part_id, 'done', :actor, 'revised')
"""
"""SQL: records that a person has corrected a part's reading. The part stays done."""

# Begins jobs that were locked while their first part was claimed.
BEGIN_JOBS = text(
    """
    WITH begun AS (
        UPDATE jobs SET state = 'running', started_at = coalesce(started_at, now())
        WHERE id = ANY(CAST(:job_ids AS uuid[])) AND state = 'queued' RETURNING id
    )
    INSERT INTO job_events (job_id, state, actor) SELECT id, 'running', :actor FROM begun
    """
)
"""Takes `job_ids` and `actor`; begins those of the jobs that are queued."""

IS_HELD: Final = f"stage IN ({', '.join(map(repr, map(str, AWAITED)))})"
"""SQL condition: the part is of a stage that waits for another."""


def awaited_by(part: str) -> str:
    """Return SQL for the stage that a held part waits for."""
    cases = " ".join(f"WHEN '{stage}' THEN '{awaited}'" for stage, awaited in AWAITED.items())
    return f"CASE {part}.stage {cases} END"


RELEASABLE: Final = f"""
    held.state = 'held' AND NOT EXISTS (
        SELECT FROM parts WHERE job_id = held.job_id AND stage = {awaited_by("held")} AND state IN {OPEN})
"""
"""SQL condition: a row of `parts`, named `held`, waits only for parts that have ended."""

# A held part is queued once the parts that it waits for have ended, or cancelled if none of them has a result.
_RELEASE = moving(
    f"""
    chosen AS (
        SELECT held.id, held.state AS former, CASE WHEN has_text THEN 'queued' ELSE 'cancelled' END AS state,
               CASE WHEN NOT has_text THEN 'nothing_to_' || held.stage END AS reason
        FROM parts AS held, LATERAL (
            SELECT EXISTS (
                SELECT FROM parts WHERE job_id = held.job_id AND stage = {awaited_by("held")} AND state = 'done')
        ) AS awaited (has_text)
        WHERE held.job_id = ANY(CAST(:job_ids AS uuid[])) AND {RELEASABLE}
    )
    """,  # noqa: S608  constants of this module
    sets="run_at = now()",
)

# A failed job gets the failure of its first failed part, so that the caller need not search for it.
_FINISH = text(
    """
    WITH finished AS (
        UPDATE jobs
        SET finished_at = now(), endings = endings + 1,
            state = CASE WHEN total > 0 AND failed + cancelled = 0 THEN 'succeeded' WHEN done > 0 THEN 'partial'
                         WHEN failed > 0 OR EXISTS (
                             SELECT FROM parts WHERE parts.job_id = jobs.id AND parts.state = 'failed'
                         ) THEN 'failed' ELSE 'cancelled' END,
            failure = CASE WHEN done > 0 THEN NULL ELSE (
                SELECT parts.failure FROM parts
                WHERE parts.job_id = jobs.id AND parts.state = 'failed' ORDER BY stage, ordinal LIMIT 1) END
        WHERE id = ANY(CAST(:job_ids AS uuid[])) AND state IN ('queued', 'running')
          AND done + failed + cancelled >= total
        RETURNING id, state
    ), told AS (
        INSERT INTO job_events (job_id, state, actor) SELECT id, state, :actor FROM finished
    )
    SELECT id, state FROM finished
    """
)

# A job that had expired gets no new time limit.
REOPEN_JOB = text(
    """
    WITH reopened AS (
        UPDATE jobs
        SET state = 'queued', failure = NULL, started_at = NULL, finished_at = NULL,
            expires_at = CASE WHEN expires_at > now() THEN expires_at END
        WHERE id = :job_id RETURNING id
    )
    INSERT INTO job_events (job_id, state, actor, reason) SELECT id, 'queued', :actor, 'retry' FROM reopened
    """
)
"""Takes `job_id` and `actor`; queues an ended job, after parts of it were queued again."""

COUNTED: Final = f"""
    SELECT jobs.id,
           count(parts.id) FILTER (WHERE stage <> 'ingest') AS pieces,
           count(*) FILTER (WHERE stage <> 'ingest' AND parts.state = 'done') AS done,
           count(*) FILTER (WHERE stage <> 'ingest' AND parts.state = 'failed') AS failed,
           count(*) FILTER (WHERE stage <> 'ingest' AND parts.state = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE parts.state IN {OPEN}) AS open
    FROM jobs LEFT JOIN parts ON parts.job_id = jobs.id
    WHERE {{which}}
    GROUP BY jobs.id
"""  # noqa: S608  a constant
"""SQL with a placeholder for a condition: the right counters of jobs, and the number of their open parts."""

# A document that is not cut yet has no total; one that cannot be cut any more has 0.
_RECOUNT = text(
    f"""
    WITH counted AS ({COUNTED.format(which="jobs.id = ANY(CAST(:job_ids AS uuid[]))")})
    UPDATE jobs
    SET done = counted.done, failed = counted.failed, cancelled = counted.cancelled,
        total = CASE WHEN pieces > 0 THEN pieces WHEN open = 0 THEN 0 END
    FROM counted WHERE jobs.id = counted.id
    """  # noqa: S608  constants of this module
)

CUT_JOB = text(
    f"""
    WITH added AS (
        INSERT INTO parts (id, job_id, stage, ordinal, lane, flow, cost, width, height, start_s, end_s, state)
        SELECT new.id, jobs.id, new.stage, new.ordinal, jobs.lane, jobs.flow, new.cost, new.width, new.height,
               new.start_s, new.end_s, CASE WHEN new.{IS_HELD} THEN 'held' ELSE 'queued' END
        FROM jobs, jsonb_to_recordset(CAST(:parts AS jsonb)) AS new (
            id uuid, stage text, ordinal int, cost int, width int, height int, start_s float, end_s float)
        WHERE jobs.id = :job_id
        RETURNING job_id
    )
    UPDATE jobs SET total = (SELECT count(*) FROM added) WHERE id = :job_id
    """  # noqa: S608  a constant
)
"""Takes `job_id` and its `parts`, a JSON array of rows. A part of a stage that waits for another is held."""


class Connection(Protocol):
    """Connection of a transaction: SQLAlchemy's in the fleet, another one in clients."""

    def execute(self, statement: TextClause, parameters: dict[str, Any], /) -> Any:
        """Run a statement and return its rows."""
        ...


def end_jobs(
    connection: Connection, job_ids: Collection[UUID], *, state: JobState, actor: str, reason: str | None
) -> None:
    """Cancel the open parts of these locked jobs, and end the jobs with this state."""
    values = {"job_ids": list(job_ids), "actor": actor, "reason": reason}
    connection.execute(_END_PARTS, values)
    connection.execute(_END_JOBS, values | {"state": state})


def promise_callbacks(connection: Connection, job_ids: Collection[UUID]) -> None:
    """Queue the callbacks of jobs that have ended in this transaction."""
    connection.execute(PROMISE_CALLBACKS, {"job_ids": list(job_ids)})


def promise_ready(connection: Connection, part_id: UUID, split: Split, before: Split | None = None) -> None:
    """Queue a notice of each document of a split without conflict, unless the former split had it with these pages."""
    known = {part.pages for part in before.documents if not part.has_conflict} if before else set()
    ready = [part for part in split.documents if not part.has_conflict and part.pages not in known]
    if ready:
        documents = json.dumps([{"number": part.number, "pages": part.pages} for part in ready])
        connection.execute(_PROMISE_READY, {"part_ids": [part_id], "documents": documents})


def settle(
    connection: Connection, job_ids: Collection[UUID], *, actor: str, releases: bool = True
) -> dict[UUID, JobState]:
    """Release held parts whose awaited parts have ended, end the jobs whose parts have, and return how these ended.

    The caller holds the jobs' locks. A job that is not cut yet (`total` unknown) continues. A job that could not be cut
    (`total` 0) has failed, or is cancelled if its ingest part was. `releases` is False if no awaited part can have
    ended.
    """
    values = {"job_ids": list(job_ids), "actor": actor}
    if releases:
        connection.execute(_RELEASE, values)
    ended = {job_id: JobState(state) for job_id, state in connection.execute(_FINISH, values)}
    if ended:
        promise_callbacks(connection, ended)
    return ended


def recount(connection: Connection, job_ids: Collection[UUID], *, actor: str) -> dict[UUID, JobState]:
    """Recount the parts of these locked jobs; then settle them and return those that ended."""
    connection.execute(_RECOUNT, {"job_ids": list(job_ids)})
    return settle(connection, job_ids, actor=actor)
