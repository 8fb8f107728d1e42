"""How long a migration waits for a table: while it waits, all that come after it wait too."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Final

from sqlalchemy import NullPool, create_engine, text

from pecia_schemas.connecting import CONNECT_ARGS, sqlalchemy_url, sqlstate_of

LOCK_TIMEOUT_S: Final = 2
_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""Before each further try: in them the fleet works."""
_NOT_AVAILABLE: Final = "55P03"

# Who holds a lock on one of our tables for longest; the migration itself is rolled back by now.
_IN_THE_WAY = text(
    """
    SELECT pid, usename, application_name, extract(epoch FROM now() - xact_start) AS seconds
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND xact_start IS NOT NULL AND pid IN (
        SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = relation
        WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND relnamespace = current_schema()::regnamespace)
    ORDER BY xact_start LIMIT 1
    """
)


class LockedError(Exception):
    """Another transaction holds a table that the migration needs. Nothing was changed."""


def patiently(migrate: Callable[[], None], database_url: str) -> None:
    """Run a migration, again after a pause if a table cannot be had. Raises `LockedError`."""
    for pause in (*_PAUSES_S, None):
        try:
            return migrate()
        except Exception as error:
            if sqlstate_of(error) != _NOT_AVAILABLE:
                raise
            if pause is None:
                raise LockedError(_complaint(database_url)) from None
        sleep(pause)
    return None


def _complaint(database_url: str) -> str:
    engine = create_engine(sqlalchemy_url(database_url), connect_args=CONNECT_ARGS, poolclass=NullPool)
    with engine.connect() as connection:
        found = connection.execute(_IN_THE_WAY).one_or_none()
    what = (
        f"process {found.pid} of Postgres ({found.usename}, {found.application_name or 'without a name'}), "
        f"whose transaction is open for {found.seconds:.0f} s, holds a table"
        if found
        else "other transactions held a table each time"
    )
    return f"Nothing was migrated: {what}. End it, or wait until it is over, and try again."
