"""Alembic's environment: one connection, one transaction, one migrator at a time."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import text

from pecia_migrations import LOCK_TIMEOUT_S, open_engine

_MIGRATION_LOCK = 0x9EC1A  # any number, the same in every version


# The attribute is ours; the variable serves the plain `alembic` command during development.
_URL = context.config.attributes.get("database_url") or os.environ["PECIA_DATABASE_URL"]
with open_engine(_URL).connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        context.run_migrations()
