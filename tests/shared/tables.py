"""Everything that a database holds, as a backup of it would."""

import psycopg
from psycopg import sql

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


def texts_of_tables(database_url: str) -> dict[str, str]:
    """Return all rows of each table, as text."""
    with psycopg.connect(database_url) as connection:
        tables = [name for (name,) in connection.execute(_TABLES)]
        query = sql.SQL("SELECT CAST(t AS text) FROM {} AS t")
        return {
            name: "\n".join(row for (row,) in connection.execute(query.format(sql.Identifier(name))))
            for name in tables
        }
