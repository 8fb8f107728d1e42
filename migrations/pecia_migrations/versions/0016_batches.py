"""Jobs have a label and may belong to a batch, which may have a name.

Revision: 0016, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it. Writers of jobs wait while the table is looked through once."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=True),
        sa.Column("tenant", sa.String(63), nullable=True),
        sa.Column("created_at", moment, nullable=False, server_default=sa.func.now()),
        sa.Column("opened_at", moment, nullable=False, server_default=sa.func.now()),
    )
    op.create_index("batches_name_idx", "batches", [sa.text("coalesce(tenant, '')"), "name"], unique=True)
    op.add_column("jobs", sa.Column("batch", sa.Uuid(), nullable=True))
    op.add_column("jobs", sa.Column("label", JSONB(), nullable=True))
    op.create_index("jobs_batch_idx", "jobs", ["batch", "id"], postgresql_where=sa.text("batch IS NOT NULL"))


def downgrade() -> None:
    """Take it back."""
    op.drop_index("jobs_batch_idx", table_name="jobs")
    for column in ("label", "batch"):
        op.drop_column("jobs", column)
    op.drop_table("batches")
