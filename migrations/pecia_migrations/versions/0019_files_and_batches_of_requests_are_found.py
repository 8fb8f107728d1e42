"""An index of the files and batches of requests that the gateway's OpenAI API holds as jobs.

Revision: 0019, after 0018. It adds: workers of 0018 go on beside it.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it beside jobs that are submitted and read: there may be many."""
    with op.get_context().autocommit_block():
        op.execute(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_requests_idx ON jobs (kind, tenant, id)"
            " WHERE kind IN ('openai.file', 'openai.batch')"
        )


def downgrade() -> None:
    """Drop it."""
    op.execute("DROP INDEX jobs_requests_idx")
