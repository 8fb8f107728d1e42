"""Results have revisions, parts a count of their doubts, and the audit trail those who revised.

Revision: 0015, after 0014.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_WHAT = "reads_what_check"


def upgrade() -> None:
    """Apply it."""
    op.create_table(
        "revisions",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("part_id", sa.Uuid(), sa.ForeignKey("results.part_id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("checked", sa.Boolean(), nullable=False),
        sa.Column("content", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("job_id", "number", name="revisions_job_id_number_key"),
    )
    op.create_index("revisions_part_id_number_idx", "revisions", ["part_id", "number"])
    op.add_column("parts", sa.Column("doubts", sa.Integer(), nullable=True))
    _allow("result", "pages", "revised")


def downgrade() -> None:
    """Take it back, with all revisions."""
    op.execute("DELETE FROM reads WHERE what = 'revised'")
    _allow("result", "pages")
    op.drop_column("parts", "doubts")
    op.drop_table("revisions")


def _allow(*what: str) -> None:
    """Let the audit trail say this."""
    listed = ", ".join(f"'{one}'" for one in what)
    op.execute(f"ALTER TABLE reads DROP CONSTRAINT {_WHAT}")
    op.execute(f"ALTER TABLE reads ADD CONSTRAINT {_WHAT} CHECK (what IN ({listed})) NOT VALID")
    op.execute(
        f"ALTER TABLE reads VALIDATE CONSTRAINT {_WHAT}"
    )  # under a lock that lets readers and writers go on
