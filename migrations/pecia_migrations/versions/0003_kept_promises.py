"""What the promises need: fair turns, retention and its record, the result cache.

Revision: 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it."""
    _add_result_cache()


def downgrade() -> None:
    """Take it back."""
    _drop_result_cache()


def _add_result_cache() -> None:
    op.create_table(
        "result_cache",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("part_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["part_id"],
            ["results.part_id"],
            name=op.f("result_cache_part_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("result_cache_pkey")),
    )
    op.create_index("result_cache_part_id_idx", "result_cache", ["part_id"], unique=False)
    op.add_column("parts", sa.Column("saved_tokens", sa.Integer(), nullable=True))


def _drop_result_cache() -> None:
    op.drop_column("parts", "saved_tokens")
    op.drop_table("result_cache")
