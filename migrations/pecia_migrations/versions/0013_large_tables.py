"""Large tables are vacuumed and analysed after a hundredth of them has changed, not a fifth.

Revision: 0013, after 0012.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TABLES = ("jobs", "parts", "results", "job_events")


def upgrade() -> None:
    """Apply it. Readers and writers go on."""
    for table in _TABLES:
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.01)"
        )


def downgrade() -> None:
    """Take it back."""
    for table in _TABLES:
        op.execute(
            f"ALTER TABLE {table} RESET (autovacuum_vacuum_scale_factor,"
            " autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor)"
        )
