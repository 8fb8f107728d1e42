"""The first tables.

Revision: 0001, after .
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("task", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("task_digest", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("webhook", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("total", sa.Integer(), nullable=True),
        sa.Column("done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancelled", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'partial', 'failed', 'cancelled', 'expired')",
            name=op.f("jobs_state_check"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
        sa.UniqueConstraint("idempotency_key", name=op.f("jobs_idempotency_key_key")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "jobs_expires_at_idx",
        "jobs",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index("jobs_metadata_idx", "jobs", ["metadata"], unique=False, postgresql_using="gin")
    op.create_index("jobs_state_idx", "jobs", ["state", "id"], unique=False)
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("stages", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("workers_pkey")),
    )
    op.create_index(
        "workers_seen_at_idx",
        "workers",
        ["seen_at"],
        unique=False,
        postgresql_where=sa.text("stopped_at IS NULL"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'dead')", name=op.f("deliveries_state_check")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("deliveries_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("deliveries_pkey")),
    )
    op.create_index(
        "deliveries_due_idx",
        "deliveries",
        ["next_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("deliveries_job_id_idx", "deliveries", ["job_id"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("part_id", sa.Uuid(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("job_events_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("job_events_pkey")),
    )
    op.create_index("job_events_job_id_sequence_idx", "job_events", ["job_id", "sequence"], unique=False)
    op.create_table(
        "parts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("cost", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=True),
        sa.Column("height", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("strikes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("deaths", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("stage IN ('ingest', 'read', 'caption')", name=op.f("parts_stage_check")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name=op.f("parts_state_check")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("parts_job_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("parts_pkey")),
        sa.UniqueConstraint("job_id", "stage", "ordinal", name=op.f("parts_job_id_stage_ordinal_key")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "parts_published_idx",
        "parts",
        ["published_at"],
        unique=False,
        postgresql_where=sa.text("state = 'queued' AND published_at IS NOT NULL"),
    )
    op.create_index(
        "parts_running_idx", "parts", ["worker"], unique=False, postgresql_where=sa.text("state = 'running'")
    )
    op.create_index(
        "parts_unpublished_idx",
        "parts",
        ["run_at"],
        unique=False,
        postgresql_where=sa.text("state = 'queued' AND published_at IS NULL"),
    )
    op.create_table(
        "results",
        sa.Column("part_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("content", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("results_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["part_id"], ["parts.id"], name=op.f("results_part_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("part_id", name=op.f("results_pkey")),
    )
    op.create_index("results_job_id_ordinal_idx", "results", ["job_id", "ordinal"], unique=False)


def downgrade() -> None:
    """Take it back."""
    op.drop_index("results_job_id_ordinal_idx", table_name="results")
    op.drop_table("results")
    op.drop_index(
        "parts_unpublished_idx",
        table_name="parts",
        postgresql_where=sa.text("state = 'queued' AND published_at IS NULL"),
    )
    op.drop_index("parts_running_idx", table_name="parts", postgresql_where=sa.text("state = 'running'"))
    op.drop_index(
        "parts_published_idx",
        table_name="parts",
        postgresql_where=sa.text("state = 'queued' AND published_at IS NOT NULL"),
    )
    op.drop_table("parts")
    op.drop_index("job_events_job_id_sequence_idx", table_name="job_events")
    op.drop_table("job_events")
    op.drop_index("deliveries_job_id_idx", table_name="deliveries")
    op.drop_index(
        "deliveries_due_idx", table_name="deliveries", postgresql_where=sa.text("state = 'pending'")
    )
    op.drop_table("deliveries")
    op.drop_index("workers_seen_at_idx", table_name="workers", postgresql_where=sa.text("stopped_at IS NULL"))
    op.drop_table("workers")
    op.drop_index("jobs_state_idx", table_name="jobs")
    op.drop_index("jobs_metadata_idx", table_name="jobs", postgresql_using="gin")
    op.drop_index(
        "jobs_expires_at_idx", table_name="jobs", postgresql_where=sa.text("state IN ('queued', 'running')")
    )
    op.drop_table("jobs")
