"""The statements by which what happens to a job promises its callbacks, in the same transaction.

What moves a job to a terminal state, the fleet's ledger or a client that cancels, runs the first. The job's lock is
held, and its events are written: the newest gives the notice its place among those of the job.
"""

from sqlalchemy import TextClause, text

from pecia_schemas.events import utc
from pecia_schemas.results import NEEDS_REVIEW

_DATA = f"""
    'job_id', jobs.id, 'kind', kind, 'state', state, 'lane', lane,
    'progress', jsonb_build_object('total', total, 'done', done, 'failed', failed, 'cancelled', cancelled),
    'failure', failure->'code', 'metadata', metadata,
    'needs_review', (SELECT count(*) FROM parts WHERE parts.job_id = jobs.id AND {NEEDS_REVIEW}),
    'created_at', {utc("jobs.created_at")}, 'finished_at', {utc("jobs.finished_at")}
"""  # noqa: S608  a constant

# Who wants to know of an event: the webhook that came with the job, and the endpoints that are registered. These are
# locked: one that is removed meanwhile must not fail what happens to the job by its foreign key.
_TARGETS = """
    SELECT jobs.webhook->>'url' AS url, CAST(NULL AS uuid) AS endpoint_id WHERE jobs.webhook->'events' ? noticed.type
    UNION ALL
    SELECT url, id FROM (
        SELECT url, id FROM endpoints
        WHERE disabled_at IS NULL AND noticed.type = ANY(events) AND (tenant IS NULL OR tenant = jobs.tenant)
        FOR KEY SHARE
    ) AS registered
"""

PROMISE_CALLBACKS = text(
    f"""
    INSERT INTO deliveries (job_id, type, url, endpoint_id, body)
    SELECT jobs.id, noticed.type, target.url, target.endpoint_id, jsonb_build_object(
        'type', noticed.type, 'timestamp', {utc("finished_at")}, 'data', jsonb_build_object(
            {_DATA}, 'sequence', coalesce((SELECT max(sequence) FROM job_events WHERE job_events.job_id = jobs.id), 0)))
    FROM jobs
    CROSS JOIN LATERAL (SELECT 'job.' || jobs.state AS type) AS noticed
    CROSS JOIN LATERAL ({_TARGETS}) AS target
    WHERE jobs.id = ANY(:job_ids)
    """  # noqa: S608  constants of this module
)
"""Takes `job_ids`; writes a row for each that wants to know how one of these jobs ended. The body is a `JobNotice`."""

TELLS_PARTS = """
    coalesce(webhook->'events' ? 'part.done', false)
    OR EXISTS (SELECT FROM endpoints WHERE disabled_at IS NULL AND 'part.done' = ANY(events))
"""
"""Whether a receiver wants a notice of every part of a job, as an expression over its row."""


def _promise_about_parts(event: str, timestamp: str, more: str = "") -> TextClause:
    """Return SQL that takes `part_ids` and writes a row for each that wants to know this of one of them."""
    return text(
        f"""
    INSERT INTO deliveries (job_id, type, url, endpoint_id, body)
    SELECT jobs.id, noticed.type, target.url, target.endpoint_id, jsonb_build_object(
        'type', noticed.type, 'timestamp', {utc(timestamp)}, 'data', jsonb_build_object(
            {_DATA}, 'sequence', coalesce((
                SELECT sequence FROM job_events
                WHERE job_events.job_id = jobs.id AND job_events.part_id = part.id ORDER BY sequence DESC LIMIT 1), 0),
            {more}'part', jsonb_build_object(
                'id', part.id, 'stage', part.stage, 'number', part.ordinal + 1, 'attempt', part.attempt)))
    FROM jobs
    JOIN (SELECT id, job_id, stage, ordinal, attempt, finished_at FROM parts) AS part ON part.job_id = jobs.id
    CROSS JOIN (SELECT '{event}' AS type) AS noticed
    CROSS JOIN LATERAL ({_TARGETS}) AS target
    WHERE part.id = ANY(:part_ids) AND part.stage <> 'ingest'
    """  # noqa: S608  constants of this module
    )


PROMISE_PARTS = _promise_about_parts("part.done", "part.finished_at")
"""Takes `part_ids`, which are done; writes a row for each that wants to know of one of them."""

PROMISE_REVISED = _promise_about_parts(
    "result.revised", "now()", "'revision', (SELECT max(number) FROM revisions WHERE part_id = part.id), "
)
"""The same of pages that a person has just reviewed."""
