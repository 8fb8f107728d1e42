"""A submit holds its payloads and looks which were released lately in the statement that writes its jobs.

A function that may change the database sees with each of its statements what was committed until then; a statement by
itself would look with eyes from before it waited for the locks.

Revision: 0012, after 0011.
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it. The locks are those of `pecia_schemas.discards`."""
    op.execute(
        """
        CREATE FUNCTION hold_payloads(wanted text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_advisory_xact_lock_shared(1885692777, bucket)
            FROM (SELECT DISTINCT hashtext(payload) & 63 AS bucket FROM unnest(wanted) AS payload) AS buckets;
            RETURN QUERY SELECT CAST(payload AS text) FROM discarded_payloads WHERE payload = ANY(wanted);
        END $$
        """
    )


def downgrade() -> None:
    """Take it back."""
    op.execute("DROP FUNCTION hold_payloads")
