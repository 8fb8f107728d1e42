"""Jobs and endpoints have a tenant, and tenants have keys for the gateway.

Revision: 0014, after 0013.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it. Writers of jobs wait while the table is looked through once."""
    for table in ("jobs", "endpoints"):
        op.add_column(table, sa.Column("tenant", sa.String(63), nullable=True))
    op.create_index(
        "jobs_tenant_idx", "jobs", ["tenant", "id"], postgresql_where=sa.text("tenant IS NOT NULL")
    )
    op.create_index(
        "jobs_tenant_open_idx",
        "jobs",
        ["tenant", "client"],
        postgresql_where=sa.text("tenant IS NOT NULL AND state IN ('queued', 'running')"),
    )
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "access_keys",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("scopes", ARRAY(sa.Text()), nullable=False),
        sa.Column("lanes", ARRAY(sa.Text()), nullable=False),
        sa.Column("pages_per_day", sa.Integer(), nullable=True),
        sa.Column("pages_in_flight", sa.Integer(), nullable=True),
        sa.Column("created_at", moment, nullable=False, server_default=sa.func.now()),
        sa.Column("expires_at", moment, nullable=True),
        sa.Column("revoked_at", moment, nullable=True),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("access_keys")
    for name in ("jobs_tenant_open_idx", "jobs_tenant_idx"):
        op.drop_index(name, table_name="jobs")
    for table in ("jobs", "endpoints"):
        op.drop_column(table, "tenant")
