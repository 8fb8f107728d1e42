"""The schema's history leads to the tables in the code, and back."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect

import pecia_migrations
from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.tables import REVISION, Base
from tests.shared.command import run_pecia


def tables_in(url: str) -> set[str]:
    engine = create_engine(sqlalchemy_url(url))
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_the_migrations_make_the_tables_of_the_code(database_url: str) -> None:
    assert not pecia_migrations.has_pending_changes(database_url)


def test_the_tables_are_stored_and_vacuumed_as_the_code_says(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND reloptions <> '{}'"
        )
        found = {name: dict(option.split("=") for option in options) for name, options in rows}
    wanted = {name: table.kwargs.get("postgresql_with") for name, table in Base.metadata.tables.items()}
    assert found == {name: options for name, options in wanted.items() if options}


def test_up_down_up_leads_back_to_where_it_was(empty_database_url: str) -> None:
    pecia_migrations.upgrade(empty_database_url)
    first = tables_in(empty_database_url)
    pecia_migrations.downgrade(empty_database_url)
    assert tables_in(empty_database_url) == {"alembic_version"}
    pecia_migrations.upgrade(empty_database_url)
    assert tables_in(empty_database_url) == first == {*Base.metadata.tables, "alembic_version"}


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--to", "base"], 0, f"The database is at {REVISION}."),
        (["--down"], 0, f"The database is at {REVISION}."),
        (["--down", "--to", "base"], 0, "The database is at base."),
        (["--to", ""], 2, "no revision is named"),
    ],
    ids=["an older one", "down to no other", "down", "none"],
)
def test_the_command_says_which_revision_the_database_is_at(
    empty_database_url: str, words: list[str], status: int, told: str
) -> None:
    pecia_migrations.upgrade(empty_database_url)
    ran = run_pecia("migrate", *words, env={"PECIA_DATABASE_URL": empty_database_url})
    assert ran.returncode == status
    assert told in ran.stdout + ran.stderr


def test_a_table_that_no_migration_makes_is_noticed(empty_database_url: str) -> None:
    pecia_migrations.upgrade(empty_database_url)
    engine = create_engine(sqlalchemy_url(empty_database_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN client")
    engine.dispose()
    assert pecia_migrations.has_pending_changes(empty_database_url)


def test_a_current_database_is_left_alone_without_loading_alembic(database_url: str) -> None:
    again = "import sys, pecia_migrations; pecia_migrations.upgrade(sys.argv[1]); sys.exit('alembic' in sys.modules)"
    subprocess.run([sys.executable, "-c", again, database_url], check=True)


def test_the_revision_of_the_tables_is_that_of_the_newest_migration() -> None:
    versions = Path(pecia_migrations.__file__).parent.glob("versions/[0-9]*.py")
    assert max(path.name for path in versions).partition("_")[0] == REVISION


@pytest.fixture
def report(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A long transaction that reads a table which a migration changes."""
    monkeypatch.setattr(pecia_migrations, "LOCK_TIMEOUT_S", 0.05)
    pecia_migrations.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url, application_name="a long report") as connection:
        connection.execute("SELECT FROM deliveries")
        yield connection


def test_a_migration_gives_up_a_table_that_it_cannot_have_and_names_who_has_it(
    empty_database_url: str, report: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pecia_migrations, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(
        pecia_migrations.LockedError, match=rf"process {report.info.backend_pid} .*a long report.*open for"
    ):
        pecia_migrations.downgrade(empty_database_url)
    assert report.execute("SELECT version_num FROM alembic_version").fetchone() == (REVISION,)


def test_a_migration_tries_again_when_the_table_is_free(
    empty_database_url: str, report: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    def sleep(pause: float) -> None:
        paused.append(pause)
        report.rollback()

    monkeypatch.setattr(pecia_migrations, "sleep", sleep)

    pecia_migrations.downgrade(empty_database_url)

    assert len(paused) == 1
    assert tables_in(empty_database_url) == {"alembic_version"}


@pytest.mark.parametrize("migrate", [pecia_migrations.upgrade, pecia_migrations.downgrade])
def test_tables_without_a_migration_are_left(empty_database_url: str, migrate: Callable[[str], None]) -> None:
    pecia_migrations.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0012'")
    with pytest.raises(pecia_migrations.RevisionError, match=r"'0012'.* 0016 by `pecia migrate` of commit"):
        migrate(empty_database_url)
    assert tables_in(empty_database_url) == {*Base.metadata.tables, "alembic_version"}
