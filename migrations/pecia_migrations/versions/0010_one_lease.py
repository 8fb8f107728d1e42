"""A worker that was taken for dead is told so in its row: the heartbeat is the only lease of what it runs.

Revision: 0010, after 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it."""
    op.add_column("workers", sa.Column("lost_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("workers", "lost_at")
