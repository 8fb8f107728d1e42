"""Data keys: one row for each job that was submitted with encryption keys, wrapped by these.

Revision: 0018, after 0017. It adds: workers of 0017 go on beside it, with jobs that have no data key.
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of data keys."""
    op.execute(
        "CREATE TABLE job_keys (job_id uuid PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, wrapped jsonb NOT NULL)"
        " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01,"
        " autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.01)"
    )


def downgrade() -> None:
    """Drop the data keys: everything encrypted under them becomes unreadable."""
    op.execute("DROP TABLE job_keys")
