"""What commands do of what may go wrong in the middle: a full lane, an outage, unforeseen names and files."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from limits import WAIT_S
from pecia import (
    DatabaseUnavailableError,
    FailureCode,
    InvalidOptionError,
    InvalidSourceError,
    JobState,
    Lane,
    QueueFullError,
    ReadDocument,
    bulk,
)
from pecia.cli import jobs, reading, values
from pecia.cli.app import app
from pecia.cli.values import inputs
from pecia.cli.watching import follow
from pecia.formats import Format
from pecia.job import JobGroup
from pecia.saving import write
from pecia.testing import FakeFleet
from pecia_schemas import storable
from pecia_schemas.results import Document

REFUSED = "https://nurse:secret@archive.example/scan.pdf"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFleet]:
    with FakeFleet() as fleet:
        monkeypatch.setattr(reading, "Client", lambda **_: fleet.client())
        yield fleet


@pytest.fixture
def scans(tmp_path: Path) -> list[str]:
    for name in ("one.pdf", "two.pdf"):
        (tmp_path / name).write_bytes(b"%PDF-" + name.encode())
    return [str(tmp_path / "one.pdf"), str(tmp_path / "two.pdf")]


def test_what_was_accepted_and_refused_before_the_lane_was_full_is_told_with_json_too(
    fleet: FakeFleet, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.hold()
    monkeypatch.setattr(reading, "Client", lambda **_: fleet.client(max_backlog={Lane.NORMAL: 1}))
    monkeypatch.setattr(bulk, "_MOST_TASKS", 1)

    told = CliRunner().invoke(app, ["read", REFUSED, *scans, "--json"])

    assert isinstance(told.exception, QueueFullError)
    assert isinstance(told.exception.failures[0], InvalidSourceError)
    assert f"{REFUSED}: A URL with a user name" in told.stderr
    (line,) = told.stdout.splitlines()
    assert json.loads(line)["job"] == str(fleet.submitted[0].id)


def test_a_long_signed_url_is_called_by_its_job_in_a_folder(fleet: FakeFleet, tmp_path: Path) -> None:
    url = f"https://archive.example/scan.pdf?signature={'a' * 5_000}"
    told = CliRunner().invoke(app, ["read", url, "--wait", "-o", f"{tmp_path}{os.sep}"])
    assert told.exit_code == 0, told.output
    (written,) = tmp_path.iterdir()
    assert written.name == f"{fleet.submitted[0].id}.txt"


def test_a_pipe_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "scan").write_bytes(b"%PDF-1.7")
    assert [one.name for one in inputs([str(tmp_path)], lambda _media: True)] == [str(tmp_path / "scan")]


def test_a_restart_of_postgres_is_outlasted_in_sight_of_a_person(
    fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = fleet.client()
    group = client.group([client.submit(ReadDocument(b"scan"))])
    refresh, looks = JobGroup.refresh, iter([True])

    def restarting(self: JobGroup[Document]) -> JobGroup[Document]:
        if next(looks, False):
            raise DatabaseUnavailableError("it restarts")
        return refresh(self)

    monkeypatch.setattr(JobGroup, "refresh", restarting)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    follow(group, timeout=WAIT_S)
    assert group[0].done
    assert "1/1 jobs" in capsys.readouterr().err


def test_a_job_that_cannot_rerun_harms_no_other(fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "Client", fleet.client)
    client = fleet.client()
    read = client.submit(ReadDocument(b"scan"))
    fleet.fails(ReadDocument, FailureCode.ENGINE_ERROR)
    failed = [client.submit(ReadDocument(name)) for name in (b"one", b"two")]
    fleet.hold()

    told = CliRunner().invoke(app, ["retry", str(failed[0].id), str(read.id), str(failed[1].id), "--json"])

    assert told.exit_code == 2
    assert [json.loads(line)["job"] for line in told.stdout.splitlines()] == [str(job.id) for job in failed]
    assert f"Job {read.id} is succeeded" in told.stderr
    assert {job.refresh().state for job in failed} == {JobState.QUEUED}


def test_a_password_file_may_begin_with_a_mark_and_be_of_another_encoding(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes("\ufeffgeheim\u00e4\r\n".encode())
    assert values.password(file, ask=False) == "geheim\u00e4"
    file.write_bytes("geheim\u00e4".encode("latin-1"))
    with pytest.raises(typer.BadParameter, match="UTF-8"):
        values.password(file, ask=False)


@pytest.mark.parametrize("content", ["", " \n", "x" * (storable.INSTRUCTIONS + 1)])
def test_a_file_of_instructions_is_neither_empty_nor_too_long(tmp_path: Path, content: str) -> None:
    file = tmp_path / "instructions"
    file.write_text("Copy the table.\n")
    assert values.instructions(file) == "Copy the table.\n"
    file.write_text(content)
    with pytest.raises(typer.BadParameter, match="1 to 16,384"):
        values.instructions(file)


def test_a_distance_or_segment_beyond_all_bounds_is_refused(fleet: FakeFleet, scans: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="30m"):
        values.moment("9999999999d", "--since")
    with pytest.raises(InvalidOptionError, match="since"):
        list(fleet.client().jobs(since=timedelta(days=9_999_999)))
    assert CliRunner().invoke(app, ["caption", scans[0], "--segments", "1e300"]).exit_code == 2
    assert fleet.submitted == []


def test_two_saves_to_one_file_share_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, written, writes = tmp_path / "result.txt", Path.write_text, iter([True])
    document = Document(pages=())

    def meanwhile(self: Path, text: str, **how: str) -> int:
        size = written(self, text, **how)
        if next(writes, False):
            write(document, Format.TEXT, target)
        return size

    monkeypatch.setattr(Path, "write_text", meanwhile)
    write(document, Format.TEXT, target)
    assert list(tmp_path.iterdir()) == [target]
