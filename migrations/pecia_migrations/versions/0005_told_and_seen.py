"""What callbacks need: registered endpoints, a row for each try, receivers that are paused; and the trace of a job.

Revision: 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")
_TIME = sa.DateTime(timezone=True)
_RECEIVER = "COALESCE((endpoint_id)::text, split_part(url, '?'::text, 1))"
_PENDING = "state = 'pending'"
_DELIVERIES_INDEXES = (
    ("deliveries_receiver_idx", ["receiver", "next_at"], _PENDING),
    ("deliveries_promised_at_idx", ["promised_at"], _PENDING),
    ("deliveries_endpoint_id_idx", ["endpoint_id", "created_at"], None),
    ("deliveries_created_at_idx", ["created_at"], None),
)


def upgrade() -> None:
    """Apply it."""
    _add_endpoints()
    _widen_deliveries()
    _add_attempts()
    _add_receivers()
    op.add_column("jobs", sa.Column("traceparent", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take it back. Callbacks to registered endpoints go with them."""
    op.drop_column("jobs", "traceparent")
    op.drop_table("receivers")
    op.drop_table("delivery_attempts")
    op.execute("DELETE FROM deliveries WHERE job_id IS NULL OR endpoint_id IS NOT NULL")
    for name, _, _ in _DELIVERIES_INDEXES:
        op.drop_index(name, table_name="deliveries")
    for name in ("promised_at", "replayed_after", "receiver", "endpoint_id"):
        op.drop_column("deliveries", name)
    op.alter_column("deliveries", "job_id", existing_type=sa.Uuid(), nullable=False)
    op.drop_table("endpoints")


def _add_endpoints() -> None:
    op.create_table(
        "endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("former_secret", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("former_until", _TIME, nullable=True),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("disabled_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("endpoints_pkey")),
    )


def _widen_deliveries() -> None:
    op.alter_column("deliveries", "job_id", existing_type=sa.Uuid(), nullable=True)
    op.add_column("deliveries", sa.Column("endpoint_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(
        op.f("deliveries_endpoint_id_fkey"),
        "deliveries",
        "endpoints",
        ["endpoint_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.add_column(
        "deliveries", sa.Column("receiver", sa.Text(), sa.Computed(_RECEIVER, persisted=True), nullable=False)
    )
    op.add_column(
        "deliveries", sa.Column("replayed_after", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("deliveries", sa.Column("promised_at", _TIME, server_default=_NOW, nullable=False))
    for name, columns, where in _DELIVERIES_INDEXES:
        op.create_index(name, "deliveries", columns, postgresql_where=where and sa.text(where))


def _add_attempts() -> None:
    op.create_table(
        "delivery_attempts",
        sa.Column("delivery_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["deliveries.id"],
            name=op.f("delivery_attempts_delivery_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", "number", name=op.f("delivery_attempts_pkey")),
    )


def _add_receivers() -> None:
    op.create_table(
        "receivers",
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", _TIME, server_default=_NOW, nullable=False),
        sa.Column("failed_at", _TIME, server_default=_NOW, nullable=False),
        sa.Column("paused_until", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("receiver", name=op.f("receivers_pkey")),
    )
