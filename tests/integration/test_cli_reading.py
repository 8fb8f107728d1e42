"""`pecia read` hands on what it was told of fields and of how to write, and prints what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from pecia import CachedFrom, Client, GenerationOptions, Preset, ReadDocument
from pecia.cli.app import app
from pecia_schemas import new_id
from pecia_schemas.tasks import Preparation, task_from_json

SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}}}
Pecia = Callable[..., Result]


@pytest.fixture
def pecia(stores: dict[str, str], picture: Callable[..., bytes], tmp_path: Path) -> Pecia:
    """Runs the command on a scan and a schema that lie in the directory."""
    (tmp_path / "scan.png").write_bytes(picture())
    (tmp_path / "drug.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "list.json").write_text("[]")

    def run(*arguments: str) -> Result:
        placed = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in arguments]
        return CliRunner().invoke(app, placed, env=stores)

    return run


def stored_task(stores: dict[str, str]) -> ReadDocument:
    with psycopg.connect(stores["PECIA_DATABASE_URL"]) as connection:
        ((kind, stored),) = connection.execute("SELECT kind, task FROM jobs").fetchall()
    task = task_from_json(kind, stored)
    assert isinstance(task, ReadDocument)
    return task


def test_options_reach_the_task(pecia: Pecia, stores: dict[str, str]) -> None:
    how = ["--preset", "quality", "--temperature", "0.2", "--top-k", "5", "--seed", "7"]

    told = pecia("read", "scan.png", "--fields", "drug.json", "--adapter", "radiology", "--no-cache", *how)

    assert told.exit_code == 0, told.output
    task = stored_task(stores)
    assert (task.fields, task.adapter, task.preset) == (SCHEMA, "radiology", Preset.QUALITY)
    assert task.options == GenerationOptions(temperature=0.2, top_k=5, seed=7)
    assert not task.cache


def test_pages_steps_and_a_password_that_is_typed_unseen_reach_the_task(
    stores: dict[str, str], printed: bytes, tmp_path: Path
) -> None:
    (tmp_path / "report.pdf").write_bytes(printed)
    how = ["--pages", "3-,1", "--prepare", "orient,deskew", "--password"]

    told = CliRunner().invoke(
        app, ["read", str(tmp_path / "report.pdf"), *how], env=stores, input="open sesame\n"
    )

    assert told.exit_code == 0, told.output
    assert "open sesame" not in told.output
    task = stored_task(stores)
    assert (task.pages, task.prepare) == ("1,3-", (Preparation.ORIENT, Preparation.DESKEW))
    assert isinstance(task.password, SecretStr)
    assert task.password.get_secret_value() == "open sesame"


def test_a_password_is_read_from_a_file(pecia: Pecia, stores: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n")

    pecia("read", "scan.png", "--password-file", "secret")

    password = stored_task(stores).password
    assert isinstance(password, SecretStr)
    assert password.get_secret_value() == "open sesame"


def test_when_to_start_and_when_to_give_up_reach_the_job(pecia: Pecia, stores: dict[str, str]) -> None:
    told = pecia("read", "scan.png", "--not-before", "2h", "--expires", "2030-01-31")

    assert told.exit_code == 0, told.output
    with psycopg.connect(stores["PECIA_DATABASE_URL"]) as connection:
        query = "SELECT not_before - created_at, expires_at FROM jobs"
        ((pause, expires),) = connection.execute(query).fetchall()
    assert abs(pause - timedelta(hours=2)) < timedelta(minutes=1)
    assert expires == datetime(2030, 1, 31, tzinfo=UTC)


def test_what_was_not_given_stays_unsaid(pecia: Pecia, stores: dict[str, str]) -> None:
    pecia("read", "scan.png")

    task = stored_task(stores)
    assert (task.fields, task.adapter, task.preset, task.options) == (None, None, None, None)
    assert task.cache


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "3"),
        ("--top-p", "0"),
        ("--repetition-penalty", "0"),
        ("--fields", "scan.png"),
        ("--fields", "list.json"),
        ("--language", "English"),
        ("--expires", "soon"),
        ("--pages", "3-1"),
        ("--prepare", "polish"),
        ("--output", "text.txt"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named(pecia: Pecia, option: str, value: str) -> None:
    told = pecia("read", "scan.png", option, value)

    assert told.exit_code == 2
    assert option in told.output


def test_fields_are_printed_below_the_text_and_in_json(
    pecia: Pecia, client: Client, scribe: Any, picture: Callable[..., bytes]
) -> None:
    job = client.submit(ReadDocument(picture(), fields=SCHEMA))
    scribe.read(job.id, fields={"drug": "아스피린"})

    text, lines = pecia("result", str(job.id)).stdout, pecia("result", str(job.id), "--json").stdout

    assert text.splitlines()[1:3] == ["text", ""]
    assert json.loads(text.splitlines()[3]) == {"drug": "아스피린"}
    assert json.loads(lines)["pages"] == [
        {"number": 1, "text": "text", "verdict": "ok", "fields": {"drug": "아스피린"}}
    ]


def test_json_says_where_a_result_was_taken_from(
    pecia: Pecia, client: Client, scribe: Any, picture: Callable[..., bytes]
) -> None:
    job = client.submit(ReadDocument(picture()))
    source = CachedFrom(part=new_id(), read_at=datetime(2026, 11, 1, tzinfo=UTC))
    scribe.read(job.id, cached_from=source)

    (page,) = json.loads(pecia("result", str(job.id), "--json").stdout)["pages"]

    assert page["cached_from"] == {"part": str(source.part), "read_at": "2026-11-01T00:00:00Z"}
