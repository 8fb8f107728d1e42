"""Notices, from which the webhook worker makes a delivery for each endpoint; how receivers stand; endings of a job.

Revision: 0017, after 0016. It adds, but for an index that the one by tenant replaces: workers of 0016 go on beside it.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_ADDED = """
CREATE TABLE notices (
    id uuid PRIMARY KEY, job_id uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    tenant varchar(63) NOT NULL DEFAULT '', type text NOT NULL, body jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), after uuid
);
CREATE INDEX notices_tenant_at_idx ON notices (tenant, at, id);
CREATE INDEX notices_job_id_idx ON notices (job_id);
CREATE INDEX endpoints_tenant_idx ON endpoints (tenant, id);
ALTER TABLE jobs ADD COLUMN endings integer NOT NULL DEFAULT 0;
ALTER TABLE receivers
    ADD COLUMN tenant varchar(63) NOT NULL DEFAULT '',
    ADD COLUMN known_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN well_at timestamptz,
    ADD COLUMN standing text NOT NULL GENERATED ALWAYS AS
        (CASE WHEN failures > 0 THEN 'failing' WHEN well_at IS NOT NULL THEN 'well' ELSE 'new' END) STORED;
DROP INDEX receivers_next_due_idx;
CREATE INDEX receivers_turn_idx ON receivers (tenant, standing, next_due) WHERE next_due IS NOT NULL
"""


def upgrade() -> None:
    """Add them."""
    for statement in _ADDED.split(";\n"):
        op.execute(statement)


def downgrade() -> None:
    """Take them away, with the notices that were not yet made deliveries of."""
    op.execute("DROP INDEX receivers_turn_idx")
    op.execute("CREATE INDEX receivers_next_due_idx ON receivers (next_due)")
    op.execute(
        "ALTER TABLE receivers"
        " DROP COLUMN standing, DROP COLUMN well_at, DROP COLUMN known_at, DROP COLUMN tenant"
    )
    op.execute("ALTER TABLE jobs DROP COLUMN endings")
    op.execute("DROP INDEX endpoints_tenant_idx")
    op.execute("DROP TABLE notices")
