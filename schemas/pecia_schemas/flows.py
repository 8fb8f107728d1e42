"""Which jobs take turns as one: those that share a value of their metadata, while one of them is not over."""

from __future__ import annotations

from sqlalchemy import text

# A value that another client writes at this very moment is not seen: then the job takes turns alone.
FLOW_OF = text(
    """
    WITH known AS (
        SELECT id FROM flows WHERE digest = :digest
    ), made AS (
        INSERT INTO flows (digest) SELECT :digest WHERE NOT EXISTS (SELECT FROM known)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT id FROM known UNION ALL SELECT id FROM made
    """
)
"""The id of a flow, made if there is none."""

# A job that was given a flow which is deleted here keeps its id; only those that come later take turns of their own.
FORGET_FLOWS = text(
    """
    DELETE FROM flows WHERE NOT EXISTS (
        SELECT FROM jobs WHERE jobs.flow = flows.id AND jobs.state IN ('queued', 'running'))
    """
)
"""Deletes the flows whose jobs are over."""
