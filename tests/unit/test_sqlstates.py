"""What an error of Postgres means is told by its SQLSTATE, and states are written, each in one place."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

import pecia
import pecia_migrations
import pecia_schemas
import pecia_workers
from pecia_schemas.connecting import Verdict, may_be_committed, name_of, sqlstate_of, verdict_on

PACKAGES = (pecia, pecia_migrations, pecia_schemas, pecia_workers)
MAY_JUDGE = {"sqlstates.py", "database.py", "connecting.py"}
"""The table, the engines and the connections: what the driver and SQLAlchemy raise is none of the others' business."""


def raised(sqlstate: str) -> Exception:
    """Return the error as SQLAlchemy raises it for an answer of Postgres."""
    cause = errors.lookup(sqlstate)("the name of a patient")
    return DBAPIError("INSERT INTO results", {"content": "the name of a patient"}, cause)


VERDICTS = {
    Verdict.TRANSIENT: "08006 25006 25P03 40001 40P01 53100 53300 55P03 57014 57P01 57P03 58030",
    Verdict.REFUSED: "21000 22003 23505 25P02 42601 54000 P0001 XX000",
    Verdict.FAULT: "42501 42703 42P01",
}


@pytest.mark.parametrize(
    ("sqlstate", "verdict"),
    [(code, verdict) for verdict, codes in VERDICTS.items() for code in codes.split()],
)
def test_each_class_has_its_verdict(sqlstate: str, verdict: Verdict) -> None:
    assert verdict_on(raised(sqlstate)) is verdict


def test_every_code_that_the_driver_knows_has_a_verdict() -> None:
    codes = {code for code in errors._sqlcodes if len(code) == 5}
    assert {verdict_on(raised(code)) for code in codes} == set(Verdict)


def test_without_a_code_the_connection_was_lost_refused_or_silent() -> None:
    assert verdict_on(psycopg.OperationalError("the connection is closed")) is Verdict.TRANSIENT
    assert verdict_on(psycopg.InterfaceError("the connection is closed")) is Verdict.TRANSIENT
    assert verdict_on(PoolTimeoutError()) is Verdict.TRANSIENT


class Note(BaseModel):
    text: str


def test_a_value_that_cannot_be_written_is_refused_before_it_is_sent() -> None:
    assert verdict_on(psycopg.DataError("NUL")) is Verdict.REFUSED
    with pytest.raises(UnicodeEncodeError) as encoding:
        "\ud800".encode()
    assert verdict_on(encoding.value) is Verdict.REFUSED
    with pytest.raises(ValueError, match="surrogates") as serializing:
        Note(text="\ud800").model_dump_json()
    assert verdict_on(serializing.value) is Verdict.REFUSED


def test_other_errors_are_none_of_postgres() -> None:
    assert verdict_on(ValueError()) is None
    assert verdict_on(TimeoutError()) is None
    assert sqlstate_of(OSError()) is None


@pytest.mark.parametrize(
    ("sqlstate", "in_doubt"),
    [("08006", True), ("57P01", True), ("40003", True), ("40001", False), ("53100", False)],
)
def test_only_after_a_lost_answer_a_transaction_may_be_committed(sqlstate: str, *, in_doubt: bool) -> None:
    assert may_be_committed(raised(sqlstate)) is in_doubt
    assert may_be_committed(psycopg.OperationalError("the connection is lost"))


def test_the_name_of_an_error_quotes_nothing() -> None:
    assert name_of(raised("22003")) == "22003"
    assert name_of(psycopg.OperationalError("could not translate host name")) == "OperationalError"


def test_nothing_else_judges_by_the_class_of_an_error() -> None:
    found = [
        path.name
        for package in PACKAGES
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if path.name not in MAY_JUDGE
        for node in ast.walk(ast.parse(path.read_text()))
        if _names_an_error(node)
    ]
    assert found == []


def _names_an_error(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="sqlalchemy.exc" | "psycopg.errors"):
            return True
        case ast.Attribute(value=ast.Name(id="psycopg"), attr=name):
            return name == "errors" or (name.endswith("Error") and name != "Error")
    return False


FOLDERS = [Path(package.__file__ or "").parent for package in (pecia, pecia_schemas, pecia_workers)]
_SET = r"\b(UPDATE\s+(parts|jobs)\b.*?\bSET\b|update\(\s*(PARTS|JOBS|PartRow|JobRow)\b)"
_WRITTEN = re.compile(
    rf"INSERT\s+INTO\s+job_events\b|insert\(\s*EVENTS\b"
    rf"|{_SET}(?:(?!\b(?:FROM|WHERE|RETURNING)\b).)*?\b(state|done|failed|cancelled|total)\s*=(?!=)",
    re.DOTALL,
)


def texts_of(module: Path) -> Iterator[str]:
    """Give every string of a module, with the fixed parts of those that are put together, and every statement."""
    source = module.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)
        elif isinstance(node, ast.Call):
            yield ast.unparse(node)


def test_nothing_but_creation_and_the_moves_writes_states_counters_or_events() -> None:
    writers = {
        module.name
        for package in FOLDERS
        for module in package.rglob("*.py")
        if any(_WRITTEN.search(text) for text in texts_of(module))
    }
    assert writers == {"submission.py", "moves.py"}
