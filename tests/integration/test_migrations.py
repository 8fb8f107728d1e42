"""The schema's history leads to the tables in the code, and back."""

from __future__ import annotations

import subprocess
import sys

from sqlalchemy import create_engine, inspect

import pecia_migrations
from pecia_schemas.database import sqlalchemy_url
from pecia_schemas.tables import Base


def tables_in(url: str) -> set[str]:
    engine = create_engine(sqlalchemy_url(url))
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_the_migrations_make_the_tables_of_the_code(database_url: str) -> None:
    assert not pecia_migrations.has_pending_changes(database_url)


def test_up_down_up_leads_back_to_where_it_was(empty_database_url: str) -> None:
    pecia_migrations.upgrade(empty_database_url)
    first = tables_in(empty_database_url)
    pecia_migrations.downgrade(empty_database_url)
    assert tables_in(empty_database_url) == {"alembic_version"}
    pecia_migrations.upgrade(empty_database_url)
    assert tables_in(empty_database_url) == first == {*Base.metadata.tables, "alembic_version"}


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
