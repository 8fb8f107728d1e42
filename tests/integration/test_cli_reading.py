"""`pecia read` hands on what it was told of fields and of how to write, and prints what came of it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from house import House
from pecia import CachedFrom, Client, GenerationOptions, Preset, ReadDocument
from pecia.cli.app import app
from pecia_schemas.states import new_id
from pecia_schemas.tasks import Preparation, task_from_json

SCHEMA = {"type": "object", "properties": {"drug": {"type": "string"}}}
Pecia = Callable[..., Result]


@pytest.fixture
def pecia(stores: dict[str, str], picture: Callable[..., bytes], tmp_path: Path) -> Pecia:
    """Runs the command on a scan and a schema that lie in the directory."""
    (tmp_path / "scan.png").write_bytes(picture())
    (tmp_path / "drug.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "list.json").write_text("[]")

    def run(*arguments: str, typed: str | None = None) -> Result:
        placed = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in arguments]
        return CliRunner().invoke(app, placed, env=stores, input=typed)

    return run


def stored(house: House) -> tuple[ReadDocument, timedelta | None, datetime | None]:
    """Return the only task, how long it is to wait, and when it expires."""
    query = "SELECT kind, task, not_before - created_at, expires_at FROM jobs"
    ((kind, task, pause, expires),) = house.query(query)
    read = task_from_json(kind, task)
    assert isinstance(read, ReadDocument)
    return read, pause, expires


def test_options_reach_the_task(pecia: Pecia, house: House) -> None:
    how = ["--preset", "quality", "--temperature", "0.2", "--top-k", "5", "--seed", "7"]
    told = pecia("read", "scan.png", "--fields", "drug.json", "--adapter", "radiology", "--no-cache", *how)
    assert told.exit_code == 0, told.output
    task, _, _ = stored(house)
    assert (task.fields, task.adapter, task.preset) == (SCHEMA, "radiology", Preset.QUALITY)
    assert task.options == GenerationOptions(temperature=0.2, top_k=5, seed=7)
    assert not task.cache


@pytest.mark.parametrize("how", [["--password"], ["--password-file", "secret"]], ids=["typed", "in a file"])
def test_pages_steps_times_and_a_password_that_nothing_shows_reach_the_job(
    pecia: Pecia, house: House, tmp_path: Path, how: list[str]
) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    pages = ["--pages", "1-", "--prepare", "orient,deskew"]
    times = ["--not-before", "2h", "--expires", "2030-01-31"]

    told = pecia("read", "scan.png", *pages, *times, *how, typed="open sesame\n")

    assert told.exit_code == 0, told.output
    assert "open sesame" not in told.output
    task, pause, expires = stored(house)
    assert (task.pages, task.prepare) == ("1-", (Preparation.ORIENT, Preparation.DESKEW))
    assert isinstance(task.password, SecretStr)
    assert task.password.get_secret_value() == "open sesame"
    assert (pause, expires) == (timedelta(hours=2), datetime(2030, 1, 31, tzinfo=UTC))


def test_what_was_not_given_stays_unsaid(pecia: Pecia, house: House) -> None:
    pecia("read", "scan.png")
    task, pause, expires = stored(house)
    assert (task.fields, task.adapter, task.preset, task.options) == (None, None, None, None)
    assert (task.cache, pause, expires) == (True, None, None)


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


def test_fields_and_where_a_result_was_taken_from_are_printed(
    pecia: Pecia, client: Client, scribe: Any, picture: Callable[..., bytes]
) -> None:
    job = client.submit(ReadDocument(picture(), fields=SCHEMA))
    source = CachedFrom(part=new_id(), read_at=datetime(2026, 11, 1, tzinfo=UTC))
    scribe.read(job.id, fields={"drug": "아스피린"}, cached_from=source)

    text, lines = pecia("result", str(job.id)).stdout, pecia("result", str(job.id), "--json").stdout

    assert text.splitlines()[1:3] == ["text", ""]
    assert json.loads(text.splitlines()[3]) == {"drug": "아스피린"}
    (page,) = json.loads(lines)["pages"]
    assert page == {
        "number": 1,
        "text": "text",
        "verdict": "ok",
        "fields": {"drug": "아스피린"},
        "cached_from": {"part": str(source.part), "read_at": "2026-11-01T00:00:00Z"},
    }
