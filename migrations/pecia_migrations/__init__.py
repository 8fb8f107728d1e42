"""The schema's history. Ships in the wheel, so that `pecia migrate` works from an installed package."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final

from sqlalchemy import Engine, NullPool, create_engine, inspect, text

from pecia_schemas.connecting import CONNECT_ARGS, sqlalchemy_url, sqlstate_of
from pecia_schemas.storable import REVISION

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["LockedError", "RevisionError", "downgrade", "revision_of", "upgrade"]

LOCK_TIMEOUT_S: Final = 2
"""How long a migration waits for a table: while it waits, all that come after it wait too."""
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


class RevisionError(Exception):
    """The database is at, or shall go to, a revision of which this version has no migration. Nothing was changed."""


def upgrade(database_url: str, revision: str = "head") -> None:
    """Bring the database to a revision. Safe to call again, from several processes at once, and beside a working fleet.

    Raises `LockedError` if another transaction is in the way for long, `RevisionError`.
    """
    if revision == "head" and revision_of(database_url) == REVISION:
        return
    _migrate("upgrade", database_url, revision)


def downgrade(database_url: str, revision: str = "base") -> None:
    """Take the database back to a revision. Everything stored in what goes away is lost. Raises as `upgrade` does."""
    _migrate("downgrade", database_url, revision)


def revision_of(database_url: str) -> str | None:
    """Return the revision that the database is at; None without any."""
    with open_engine(database_url).connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return found


def _migrate(how: str, database_url: str, revision: str) -> None:
    from alembic import command  # noqa: PLC0415  takes longer to load than the question whether it is needed
    from alembic.util import CommandError  # noqa: PLC0415  as above

    for pause in (*_PAUSES_S, None):
        try:
            getattr(command, how)(_config(database_url), revision)
        except CommandError as error:
            raise RevisionError(
                f"{error}. This version knows {REVISION}. Older tables come to it by `pecia migrate` of commit "
                "1c7db438; for newer ones, upgrade Pecia."
            ) from None
        except Exception as error:
            if sqlstate_of(error) != _NOT_AVAILABLE:
                raise
            if pause is None:
                break
            sleep(pause)
        else:
            return
    with open_engine(database_url).connect() as connection:
        found = connection.execute(_IN_THE_WAY).one_or_none()
    what = (
        f"process {found.pid} of Postgres ({found.usename}, {found.application_name or 'without a name'}), "
        f"whose transaction is open for {found.seconds:.0f} s, holds a table"
        if found
        else "other transactions held a table each time"
    )
    raise LockedError(f"Nothing was migrated: {what}. End it, or wait until it is over, and try again.")


def open_engine(database_url: str) -> Engine:
    """Return connections that are closed after use."""
    return create_engine(sqlalchemy_url(database_url), connect_args=CONNECT_ARGS, poolclass=NullPool)


def _config(database_url: str) -> Config:
    from alembic.config import Config  # noqa: PLC0415  as above

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["database_url"] = database_url
    return config
