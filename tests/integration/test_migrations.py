"""The schema's history leads to the tables that the docs describe, and back."""

import hashlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect

import pecia_migrations
from pecia_schemas import storable
from pecia_schemas.connecting import sqlalchemy_url
from pecia_schemas.states import JobState, PartState, Stage
from pecia_schemas.storable import REVISION
from tests.shared.command import run_pecia

PAGE = Path(__file__).parents[2] / "docs/tables.md"


def tables_in(url: str) -> set[str]:
    engine = create_engine(sqlalchemy_url(url))
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def described() -> dict[str, set[str]]:
    """Return the tables that the page of the docs describes, with the columns that it names."""
    _, *sections = re.split(r"^## `(\w+)`$", PAGE.read_text(), flags=re.MULTILINE)
    return {
        name: {
            *re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE),
            *re.findall(
                r"`(\w+)`", section[max(section.find(word) for word in ("\nAlso ", "\nColumns: ")) :]
            ),
        }
        for name, section in zip(sections[::2], sections[1::2], strict=True)
    }


def test_the_docs_name_every_table_and_column(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        ).fetchall()
    found: dict[str, set[str]] = defaultdict(set)
    for table, column in columns:
        found[table].add(column)
    del found["alembic_version"]
    assert found == described()


ENUMERATED = {
    *("jobs.kind", "jobs.lane", "jobs.state", "parts.lane", "parts.stage", "parts.state"),
    *("job_events.state", "reads.what"),
}
"""Written from an enumeration of the code."""
CALLBACKS = {"deliveries", "delivery_attempts", "notices", "receivers"}
"""Copies of what has a limit where it comes from, and what the sender has cut."""
LENGTHS = {
    "idempotency_key": storable.IDEMPOTENCY_KEY,
    "tenant": storable.TENANT,
    "url": storable.WEBHOOK_URL,
    "reason": storable.REASON,
    "actor": storable.NAME + len("client:"),
    "batches.name": storable.BATCH,
    **dict.fromkeys(("task_digest", "payload"), len(hashlib.sha256().hexdigest())),
    "traceparent": 55,  # by W3C
}
"""By column, or table and column; others hold a name."""


def test_every_column_of_text_is_as_long_as_the_contract_lets_it_be(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        lengths = connection.execute(
            "SELECT table_name, column_name, character_maximum_length FROM information_schema.columns"
            " WHERE table_schema = 'public' AND data_type IN ('text', 'character varying')"
            " AND table_name <> 'alembic_version'"
        ).fetchall()
    texts = {(table, column): length for table, column, length in lengths if table not in CALLBACKS}
    assert {f"{table}.{column}" for (table, column), length in texts.items() if length is None} == ENUMERATED
    for (table, column), length in texts.items():
        wanted = LENGTHS.get(f"{table}.{column}", LENGTHS.get(column, storable.NAME))
        assert length in (None, wanted), (table, column)


@pytest.mark.parametrize(
    ("column", "values"), [("jobs.state", JobState), ("parts.state", PartState), ("parts.stage", Stage)]
)
def test_tables_take_what_the_code_enumerates(database_url: str, column: str, values: type[StrEnum]) -> None:
    table, _, name = column.partition(".")
    with psycopg.connect(database_url) as connection:
        (check,) = connection.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s",
            [f"{table}_{name}_check"],
        ).fetchone() or ("",)
    assert set(re.findall(r"'(\w+)'", check)) == set(values)


def test_up_down_up_leads_back_to_where_it_was(empty_database_url: str) -> None:
    pecia_migrations.upgrade(empty_database_url)
    first = tables_in(empty_database_url)
    pecia_migrations.downgrade(empty_database_url)
    assert tables_in(empty_database_url) == {"alembic_version"}
    pecia_migrations.upgrade(empty_database_url)
    assert tables_in(empty_database_url) == first == {*described(), "alembic_version"}


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


def test_a_current_database_is_left_alone_without_loading_alembic(database_url: str) -> None:
    again = "import sys, pecia_migrations; pecia_migrations.upgrade(sys.argv[1]); sys.exit('alembic' in sys.modules)"
    subprocess.run([sys.executable, "-c", again, database_url], check=True)


def test_the_revision_of_the_tables_is_that_of_the_newest_migration() -> None:
    versions = Path(pecia_migrations.__file__).parent.glob("versions/[0-9]*.py")
    assert max(path.name for path in versions).partition("_")[0] == REVISION


@pytest.fixture
def report(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A long transaction that reads a table which a migration changes."""
    pecia_migrations.upgrade(empty_database_url)
    monkeypatch.setattr(pecia_migrations, "LOCK_TIMEOUT_S", 0.5)
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
    with pytest.raises(
        pecia_migrations.RevisionError, match=r"'0012'.* by `pecia migrate` of commit 1c7db438"
    ):
        migrate(empty_database_url)
    assert tables_in(empty_database_url) == {*described(), "alembic_version"}
