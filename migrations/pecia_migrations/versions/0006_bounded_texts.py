"""Texts as long as the contract lets them be; and a purged job has no key that another could be given.

Revision: 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_DIGEST, _NAME, _ACTOR, _REASON, _KEY, _URL, _TRACE = 64, 200, 207, 200, 512, 2_048, 55
_LENGTHS = {
    "jobs": {
        "task_digest": _DIGEST,
        "payload": _DIGEST,
        "idempotency_key": _KEY,
        "client": _NAME,
        "traceparent": _TRACE,
    },
    "parts": {"worker": _NAME, "engine": _NAME},
    "job_events": {"actor": _ACTOR, "reason": _REASON},
    "endpoints": {"url": _URL, "client": _NAME},
    "workers": {"name": _NAME, "role": _NAME, "host": _NAME, "engine": _NAME},
    "output_lengths": {"workload": _NAME},
    "discarded_payloads": {"payload": _DIGEST},
    "reads": {"client": _NAME},
    "erasures": {"actor": _ACTOR, "reason": _REASON},
}


def upgrade() -> None:
    """Apply it. What is too long is cut, but for keys, of which none is."""
    for table, columns in _LENGTHS.items():
        for column, length in columns.items():
            op.alter_column(
                table,
                column,
                existing_type=sa.Text(),
                type_=sa.String(length),
                postgresql_using=f"left({column}, {length})",
            )
    op.alter_column("jobs", "idempotency_key", existing_type=sa.String(_KEY), nullable=True)
    op.execute("UPDATE jobs SET idempotency_key = NULL WHERE idempotency_key = 'erased/' || id")


def downgrade() -> None:
    """Take it back."""
    op.execute("UPDATE jobs SET idempotency_key = 'erased/' || id WHERE idempotency_key IS NULL")
    op.alter_column("jobs", "idempotency_key", existing_type=sa.String(_KEY), nullable=False)
    for table, columns in _LENGTHS.items():
        for column, length in columns.items():
            op.alter_column(table, column, existing_type=sa.String(length), type_=sa.Text())
