"""Redis holds a bounded window of what waits: the relay finds the rest by stage, lane and flow.

Revision: 0011, after 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_UNPUBLISHED = "state = 'queued' AND published_at IS NULL"


def upgrade() -> None:
    """Apply it."""
    op.add_column("parts", sa.Column("flow", sa.Uuid(), nullable=True))
    op.add_column("parts", sa.Column("early", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.execute(
        """
        UPDATE parts SET flow = jobs.flow, early = attempt = 0 AND parts.state = 'queued' AND run_at > now()
        FROM jobs WHERE jobs.id = parts.job_id AND parts.state IN ('queued', 'held', 'running')
          AND (jobs.flow IS NOT NULL OR run_at > now())
        """
    )
    op.drop_index("parts_unpublished_idx", table_name="parts")
    op.create_index(
        "parts_unpublished_idx",
        "parts",
        ["stage", "lane", sa.text("coalesce(flow, job_id)"), "run_at", "id"],
        postgresql_where=sa.text(f"{_UNPUBLISHED} AND attempt = 0 AND NOT early"),
    )
    op.create_index(
        "parts_unpublished_again_idx",
        "parts",
        ["stage", "lane", "run_at", "id"],
        postgresql_where=sa.text(f"{_UNPUBLISHED} AND attempt > 0"),
    )
    op.create_index(
        "parts_early_idx", "parts", ["run_at"], postgresql_where=sa.text("state = 'queued' AND early")
    )


def downgrade() -> None:
    """Take it back."""
    for name in ("parts_early_idx", "parts_unpublished_again_idx", "parts_unpublished_idx"):
        op.drop_index(name, table_name="parts")
    op.create_index("parts_unpublished_idx", "parts", ["run_at"], postgresql_where=sa.text(_UNPUBLISHED))
    op.drop_column("parts", "early")
    op.drop_column("parts", "flow")
