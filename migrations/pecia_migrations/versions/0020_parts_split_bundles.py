"""Parts may be of the stage that splits a bundle into its documents.

Revision: 0020, after 0019. It adds: workers of 0019 go on beside it, and leave such parts alone.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def _allow(stages: str) -> None:
    """Replace the check of the parts' stage; every part is looked at once."""
    op.execute(
        "ALTER TABLE parts DROP CONSTRAINT parts_stage_check,"
        f" ADD CONSTRAINT parts_stage_check CHECK (stage IN ({stages}))"
    )


def upgrade() -> None:
    """Allow the new stage."""
    _allow("'ingest', 'read', 'caption', 'summarize', 'split'")


def downgrade() -> None:
    """Forbid it again; jobs with such parts are lost."""
    op.execute("DELETE FROM jobs WHERE kind = 'bundle.read'")
    _allow("'ingest', 'read', 'caption', 'summarize'")
