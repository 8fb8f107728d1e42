"""Receivers take turns at callbacks; a payload that was released is remembered from then on.

A receiver is a registered endpoint, or scheme, host and port of a URL.

Revision: 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_NOW = sa.text("now()")
_HOST = (
    "COALESCE((endpoint_id)::text, \"left\"(\"substring\"(url, '^[a-z]+://[^/?#]+'::text), 300), ''::text)"
)
_URL = "COALESCE((endpoint_id)::text, split_part(url, '?'::text, 1))"


def upgrade() -> None:
    """Apply it. What is known of the failures of URLs is forgotten: the next tries find it out again."""
    op.execute("DELETE FROM receivers WHERE receiver LIKE 'http%'")
    _replace_receiver(_HOST)
    op.add_column("deliveries", sa.Column("queued", sa.Boolean(), server_default=sa.false(), nullable=False))
    _replace_due_index("state = 'pending' AND NOT queued")
    op.add_column("receivers", sa.Column("next_due", _TIME, nullable=True))
    op.create_index("receivers_next_due_idx", "receivers", ["next_due"])
    op.alter_column("receivers", "failures", server_default=sa.text("0"))
    for name in ("failing_since", "failed_at"):
        op.alter_column("receivers", name, server_default=None, nullable=True)
    op.execute("UPDATE discarded_payloads SET erased_at = now() WHERE erased_at IS NULL")
    op.alter_column("discarded_payloads", "erased_at", server_default=_NOW, nullable=False)


def downgrade() -> None:
    """Take it back."""
    op.alter_column("discarded_payloads", "erased_at", server_default=None, nullable=True)
    op.execute("DELETE FROM receivers WHERE failures = 0 OR receiver LIKE 'http%'")
    for name in ("failing_since", "failed_at"):
        op.alter_column("receivers", name, server_default=_NOW, nullable=False)
    op.alter_column("receivers", "failures", server_default=None)
    op.drop_index("receivers_next_due_idx", table_name="receivers")
    op.drop_column("receivers", "next_due")
    _replace_due_index("state = 'pending'")
    op.drop_column("deliveries", "queued")
    _replace_receiver(_URL)


def _replace_receiver(expression: str) -> None:
    """Compute the column anew; its index goes with it and comes again."""
    op.drop_column("deliveries", "receiver")
    op.add_column(
        "deliveries",
        sa.Column("receiver", sa.Text(), sa.Computed(expression, persisted=True), nullable=False),
    )
    op.create_index(
        "deliveries_receiver_idx",
        "deliveries",
        ["receiver", "next_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )


def _replace_due_index(condition: str) -> None:
    op.drop_index("deliveries_due_idx", table_name="deliveries")
    op.create_index("deliveries_due_idx", "deliveries", ["next_at"], postgresql_where=sa.text(condition))
