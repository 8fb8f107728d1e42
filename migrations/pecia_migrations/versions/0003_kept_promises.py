"""What the promises need: fair turns, retention and its record, the result cache, dead parts.

Revision: 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it."""
    _add_flows()
    _add_result_cache()
    _add_retention()
    op.add_column("workers", sa.Column("memory", sa.Double(), nullable=True))
    op.create_index(
        "parts_failed_idx",
        "parts",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("state = 'failed'"),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_column("workers", "memory")
    op.drop_index("parts_failed_idx", table_name="parts", postgresql_where=sa.text("state = 'failed'"))
    _drop_retention()
    _drop_result_cache()
    _drop_flows()


def _add_flows() -> None:
    op.create_table(
        "flows",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("flows_pkey")),
    )
    op.add_column("jobs", sa.Column("flow", sa.Uuid(), nullable=True))
    op.create_index(
        "jobs_flow_idx",
        "jobs",
        ["flow"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )


def _drop_flows() -> None:
    op.drop_index(
        "jobs_flow_idx", table_name="jobs", postgresql_where=sa.text("state IN ('queued', 'running')")
    )
    op.drop_column("jobs", "flow")
    op.drop_table("flows")


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


_RETENTION_INDEXES = (
    ("jobs", "jobs_payload_idx", "payload", "payload_released_at IS NULL"),
    ("jobs", "jobs_finished_at_idx", "finished_at", "finished_at IS NOT NULL"),
    (
        "jobs",
        "jobs_payload_due_idx",
        "finished_at",
        "payload_released_at IS NULL AND finished_at IS NOT NULL",
    ),
    ("jobs", "jobs_results_due_idx", "finished_at", "erased_at IS NULL AND finished_at IS NOT NULL"),
    ("deliveries", "deliveries_finished_at_idx", "finished_at", "finished_at IS NOT NULL"),
)
_RELEASE_COLUMNS = ("payload_released_at", "erased_at")


def _add_retention() -> None:
    for name in _RELEASE_COLUMNS:
        op.add_column("jobs", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    for table, name, column, where in _RETENTION_INDEXES:
        op.create_index(name, table, [column], unique=False, postgresql_where=sa.text(where))
    op.create_table(
        "discarded_payloads",
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("discarded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("payload", name=op.f("discarded_payloads_pkey")),
    )
    op.create_index(
        "discarded_payloads_discarded_at_idx",
        "discarded_payloads",
        ["discarded_at"],
        unique=False,
        postgresql_where=sa.text("discarded_at IS NOT NULL"),
    )
    _add_trail(
        "reads", sa.Column("client", sa.Text(), nullable=False), sa.Column("what", sa.Text(), nullable=False)
    )
    op.create_check_constraint(op.f("reads_what_check"), "reads", "what IN ('result', 'pages')")
    _add_trail(
        "erasures",
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("counts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    )


def _add_trail(table: str, *columns: sa.Column[str]) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        *columns,
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"{table}_pkey")),
    )
    op.create_index(f"{table}_job_id_idx", table, ["job_id"], unique=False)
    op.create_index(f"{table}_at_idx", table, ["at"], unique=False)


def _drop_retention() -> None:
    for table in ("erasures", "reads", "discarded_payloads"):
        op.drop_table(table)
    for table, name, _, where in _RETENTION_INDEXES:
        op.drop_index(name, table_name=table, postgresql_where=sa.text(where))
    for name in _RELEASE_COLUMNS:
        op.drop_column("jobs", name)
