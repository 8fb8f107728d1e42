"""A part that waits for others of its job is held: a state, not a date that never comes. Heartbeats are cheap.

Revision: 0009, after 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_STATES = ("queued", "running", "done", "failed", "cancelled")


def upgrade() -> None:
    """Apply it. An index over what each heartbeat changes keeps Postgres from updating the row in place (HOT)."""
    op.drop_index("workers_seen_at_idx", table_name="workers")
    op.execute("ALTER TABLE workers SET (fillfactor = 50)")
    _allow_states("held", *_STATES)
    op.execute(
        "UPDATE parts SET state = 'held', run_at = now() WHERE state = 'queued' AND run_at >= '9999-01-01 00:00:00+00'"
    )


def downgrade() -> None:
    """Take it back."""
    op.execute("UPDATE parts SET state = 'queued', run_at = '9999-01-01 00:00:00+00' WHERE state = 'held'")
    _allow_states(*_STATES)
    op.execute("ALTER TABLE workers RESET (fillfactor)")
    op.create_index(
        "workers_seen_at_idx", "workers", ["seen_at"], postgresql_where=sa.text("stopped_at IS NULL")
    )


def _allow_states(*states: str) -> None:
    listed = ", ".join(f"'{state}'" for state in states)
    op.drop_constraint(op.f("parts_state_check"), "parts")
    op.create_check_constraint(op.f("parts_state_check"), "parts", f"state IN ({listed})")
