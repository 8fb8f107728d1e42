"""What language models need: accounting of parts, learned lengths, capabilities of workers, the summary stage.

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TOKENS = ("prompt_tokens", "image_tokens", "cached_tokens", "output_tokens", "wasted_tokens")
_STRETCH = ("start_s", "end_s")
_SECONDS = ("queued_s", "decode_s", "engine_s", "first_token_s")


def upgrade() -> None:
    """Apply it."""
    op.create_table(
        "output_lengths",
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("weights", postgresql.ARRAY(sa.Double()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("workload", name=op.f("output_lengths_pkey")),
    )
    for name in _STRETCH:
        op.add_column("parts", sa.Column(name, sa.Double(), nullable=True))
    op.add_column("parts", sa.Column("engine", sa.Text(), nullable=True))
    for name in _TOKENS:
        op.add_column("parts", sa.Column(name, sa.Integer(), nullable=True))
    for name in _SECONDS:
        op.add_column("parts", sa.Column(name, sa.Double(), nullable=True))
    op.create_index(
        "parts_finished_at_idx",
        "parts",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("engine IS NOT NULL"),
    )
    op.add_column(
        "workers", sa.Column("capabilities", postgresql.JSONB(astext_type=sa.Text()), nullable=True)
    )
    _allow_stages("ingest", "read", "caption", "summarize")


def downgrade() -> None:
    """Take it back. Summaries go: the schema before knew none."""
    op.execute("DELETE FROM parts WHERE stage = 'summarize'")
    _allow_stages("ingest", "read", "caption")
    op.drop_column("workers", "capabilities")
    op.drop_index("parts_finished_at_idx", table_name="parts", postgresql_where=sa.text("engine IS NOT NULL"))
    for name in (*_SECONDS, *_TOKENS, "engine", *_STRETCH):
        op.drop_column("parts", name)
    op.drop_table("output_lengths")


def _allow_stages(*stages: str) -> None:
    listed = ", ".join(f"'{stage}'" for stage in stages)
    op.drop_constraint(op.f("parts_stage_check"), "parts")
    op.create_check_constraint(op.f("parts_stage_check"), "parts", f"stage IN ({listed})")
