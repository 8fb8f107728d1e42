"""Bundles with documents in conflict are found before all else that waits for review.

Revision: 0021, after 0020. It adds an index: workers of 0020 go on beside it.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index; it holds bundles in conflict alone."""
    op.execute("CREATE INDEX parts_conflicts_idx ON parts (job_id) WHERE stage = 'split' AND doubts > 0")


def downgrade() -> None:
    """Drop it."""
    op.execute("DROP INDEX parts_conflicts_idx")
