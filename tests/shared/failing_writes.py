"""Writes that fail as the test says, in a real Postgres: a trigger raises the SQLSTATE."""

from typing import Final, LiteralString

import psycopg
from psycopg import sql

PATIENT: Final = "Jane Doe"
"""Stands in the text of each error, as data does in those of Postgres. It must not come out anywhere."""

_FUNCTION: Final = sql.SQL(
    """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF coalesce({row}, false) AND nextval('failed') <= {times} THEN
            RAISE EXCEPTION {text} USING ERRCODE = {sqlstate};
        END IF;
        RETURN NEW;
    END $$
    """
)
_ANY: Final = sql.SQL("true")


def fail_writes(
    url: str, where: LiteralString, sqlstate: str, *, times: int = 1_000_000, row: sql.Composable = _ANY
) -> None:
    """Have what is written there, as in `UPDATE ON parts`, fail the next times if `row` is true of it.

    Takes the place of the last such order.
    """
    function = _FUNCTION.format(
        row=row, times=sql.Literal(times), text=sql.Literal(PATIENT), sqlstate=sql.Literal(sqlstate)
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION IF EXISTS fail CASCADE")
        connection.execute("DROP SEQUENCE IF EXISTS failed")
        connection.execute("CREATE SEQUENCE failed")  # counts what is rolled back, too
        connection.execute(function)
        connection.execute(
            sql.SQL("CREATE TRIGGER fail BEFORE {} FOR EACH ROW EXECUTE FUNCTION fail()").format(
                sql.SQL(where)
            )
        )


def let_writes_pass(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION IF EXISTS fail CASCADE")
