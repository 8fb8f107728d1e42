"""The one statement by which finishing a job promises its callbacks.

Whoever moves a job to a terminal state, the fleet's ledger or a client that cancels, runs it in the same transaction.
"""

from sqlalchemy import text

PROMISE_CALLBACKS = text(
    """
    INSERT INTO deliveries (job_id, type, url, body)
    SELECT id, 'job.' || state, webhook->>'url', jsonb_build_object(
        'type', 'job.' || state,
        'timestamp', finished_at,
        'data', jsonb_build_object(
            'job_id', id, 'kind', kind, 'state', state, 'lane', lane,
            'progress', jsonb_build_object('total', total, 'done', done, 'failed', failed, 'cancelled', cancelled),
            'failure', failure->'code', 'metadata', metadata,
            'created_at', created_at, 'finished_at', finished_at))
    FROM jobs
    WHERE id = ANY(:job_ids) AND webhook IS NOT NULL AND webhook->'events' ? ('job.' || state)
    """
)
"""Takes `job_ids`; writes one row for each of these jobs whose webhook wants to know. The body is a `JobNotice`."""
