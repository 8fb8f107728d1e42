"""Parts know the verdict on their result, so that pages to be looked at are found.

Revision: 0008, after 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it. Results that are there already may be encrypted: their parts have no verdict."""
    op.add_column("parts", sa.Column("verdict", sa.String(length=200), nullable=True))
    op.create_index(
        "parts_needs_review_idx",
        "parts",
        ["job_id"],
        postgresql_where=sa.text("verdict NOT IN ('ok', 'blank')"),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_index("parts_needs_review_idx", table_name="parts")
    op.drop_column("parts", "verdict")
