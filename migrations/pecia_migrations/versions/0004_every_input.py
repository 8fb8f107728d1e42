"""What every kind of input needs: documents that the fleet fetches itself; and lanes that can be full.

Revision: 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it."""
    op.alter_column("jobs", "payload", existing_type=sa.Text(), nullable=True)
    op.create_index(
        "parts_lane_run_at_idx", "parts", ["lane", "run_at"], postgresql_where=sa.text("state = 'queued'")
    )


def downgrade() -> None:
    """Take it back. A document that was not fetched yet is none any more."""
    op.drop_index("parts_lane_run_at_idx", table_name="parts")
    op.execute("UPDATE jobs SET payload = '' WHERE payload IS NULL")
    op.alter_column("jobs", "payload", existing_type=sa.Text(), nullable=False)
