"""What commands say and do of many jobs at once, and of what goes wrong in the middle."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from pecia import (
    Client,
    Counts,
    DatabaseUnavailableError,
    FailureCode,
    InvalidOptionError,
    InvalidSourceError,
    JobState,
    Lane,
    QueueFullError,
    ReadDocument,
    Submission,
    request,
)
from pecia.cli import jobs, output, printing, reading, results, values, watching
from pecia.cli.app import app
from pecia.cli.values import inputs
from pecia.cli.watching import follow
from pecia.formats import Format
from pecia.job import JobGroup
from pecia.saving import write
from pecia.testing import FakeFleet
from pecia_schemas import storable
from pecia_schemas.installing import install_command
from pecia_schemas.results import Document
from pecia_schemas.states import as_prefix, is_complete_id
from tests.shared.command import run_pecia
from tests.shared.limits import WAIT_S


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFleet]:
    with FakeFleet() as fleet:
        for module in (jobs, reading, results, watching):
            monkeypatch.setattr(module, "Client", lambda **_: fleet.client())
        yield fleet


@pytest.fixture
def client(fleet: FakeFleet) -> Client:
    return fleet.client()


def pecia(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_folder_is_a_batch_whose_jobs_are_called_as_its_files(client: Client, tmp_path: Path) -> None:
    (tmp_path / "ward").mkdir()
    for name in ("b.pdf", "ward/a.pdf"):
        (tmp_path / name).write_bytes(b"%PDF-" + name.encode())
    assert pecia("read", tmp_path).exit_code == 0
    first, second = client.jobs()
    assert (first.label, second.label) == ("ward/a.pdf", "b.pdf")
    assert first.batch == second.batch is not None
    assert pecia("read", tmp_path / "b.pdf").exit_code == 0
    alone = next(client.jobs())
    assert (alone.label, alone.batch) == ("b.pdf", None)


def test_who_leaves_a_wait_is_told_how_to_come_back(
    fleet: FakeFleet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.hold()
    (job,) = client.submit_many([ReadDocument(b"%PDF-1")], batch="night")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pecia.cli.watching.follow", interrupted)
    for words, back in (["--batch", "night"], "--batch night"), ([str(job.id)], str(job.id)):
        left = pecia("wait", *words)
        assert (left.exit_code, f"`pecia watch {back}`" in left.stderr) == (130, True)
    assert not job.refresh().done


def test_who_leaves_a_document_can_have_what_was_read_of_it(
    fleet: FakeFleet, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pecia.cli.printing.print_each", interrupted)
    left = pecia("read", scans[0], "--wait")
    (job,) = fleet.submitted
    assert left.exit_code == 130
    assert left.stderr == (
        f"pecia: '{scans[0]}' goes on: `pecia watch {job.id}` follows it, `pecia result {job.id}` prints what is read, "
        f"`pecia cancel {job.id}` ends it.\n"
    )


def test_verbs_are_for_those_of_a_batch_that_they_can_be_for(fleet: FakeFleet, client: Client) -> None:
    fleet.hold()
    group = client.submit_many(
        [Submission(ReadDocument(f"%PDF-{n}".encode()), label=f"{n}.pdf") for n in range(4)], batch="night"
    )
    fleet.answers(ReadDocument, text="Read")
    fleet.finish(group[0])
    fleet.fails(ReadDocument, FailureCode.ENGINE_ERROR)
    fleet.finish(group[1])

    read = pecia("result", "--batch", "night", "--state", "succeeded")
    assert (read.exit_code, read.stdout.splitlines()[0]) == (0, "--- 0.pdf, page 1 (ok)")
    again = pecia("retry", "--batch", "night", "--json")
    assert (again.exit_code, json.loads(again.stdout)["label"]) == (0, "1.pdf")
    assert pecia("cancel", "--batch", "night").stdout == "3 jobs cancelled.\n"
    assert pecia("cancel", "--batch", "night").stdout == "0 jobs cancelled.\n"
    assert pecia("wait", "--batch", "night", "--state", "succeeded").exit_code == 0
    none = pecia("result", "--batch", "night", "--state", "expired")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "pecia: no job matches.\n")
    assert pecia("wait", "--batch", "night").exit_code == 1
    watched = pecia("watch", "--batch", "night").stdout
    assert "0 queued, 0 running, 1 done, 0 failed, 3 cancelled" in watched
    for wrong in (
        ["cancel"],
        ["cancel", "--batch", "none"],
        ["cancel", str(group[0].id), "--batch", "night"],
    ):
        assert pecia(*wrong).exit_code != 0


def test_a_line_says_how_many_are_where_and_how_long_it_takes() -> None:
    counts = Counts(
        states={JobState.QUEUED: 1_000, JobState.RUNNING: 2, JobState.SUCCEEDED: 10, JobState.PARTIAL: 1},
        parts=30,
        done=20,
        failed=1,
        uncut=1_000,
    )
    assert watching.summary(counts, 3.0) == (
        "1,000 queued, 2 running, 11 done, 0 failed; 3.0 pages/s, 0:12:52 left"
    )
    pace = watching.Pace()
    for second in range(100):
        pace.add(second * 5, float(second))
    assert pace.rate == 5.0


def test_a_label_cannot_move_the_cursor_and_shows_its_end(client: Client) -> None:
    label = "\x1b[2J" + "x" * 100 + "scan.pdf"
    shown = output.table([client.submit(ReadDocument(b"%PDF-1"), label=label)], 200)
    assert "\x1b" not in shown
    assert "xscan.pdf" in shown


def test_parquet_without_its_library_says_what_to_install(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    client.submit_many([ReadDocument(b"%PDF-1")], batch="night")
    refused = pecia("export", "--batch", "night", "--format", "parquet", "--to", tmp_path)
    assert install_command("parquet") in str(refused.exception)


def test_an_id_may_be_cut_short_anywhere_behind_its_fourth_digit() -> None:
    whole = "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"
    assert all(as_prefix(whole[:end]) for end in range(4, len(whole) + 1))
    assert is_complete_id(whole.replace("-", ""))
    assert not is_complete_id(whole[:-1])
    for wrong in ("019", "night", f"01234567-{'a' * 27}", whole + "0", "-" * 8):
        assert as_prefix(wrong) is None


REFUSED = "https://nurse:secret@archive.example/scan.pdf"


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
    monkeypatch.setattr(request, "_MOST_TASKS", 1)

    told = pecia("read", REFUSED, *scans, "--json")

    assert isinstance(told.exception, QueueFullError)
    assert isinstance(told.exception.failures[0], InvalidSourceError)
    assert f"{REFUSED}: The fleet fetches no URL with a user name" in told.stderr
    (line,) = told.stdout.splitlines()
    assert json.loads(line)["job"] == str(fleet.submitted[0].id)


@pytest.mark.usefixtures("fleet")
def test_a_long_signed_url_is_called_by_the_last_of_its_path_in_a_folder(tmp_path: Path) -> None:
    url = f"https://archive.example/scan.pdf?signature={'a' * 5_000}"
    told = pecia("read", url, "--wait", "-o", f"{tmp_path}{os.sep}")
    assert told.exit_code == 0, told.output
    (written,) = tmp_path.iterdir()
    assert written.name == "scan.txt"


def test_a_pipe_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "scan").write_bytes(b"%PDF-1.7")
    assert [one.name for one in inputs([str(tmp_path)], lambda _media: True)] == [str(tmp_path / "scan")]


def test_a_restart_of_postgres_is_outlasted_in_sight_of_a_person(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_job_that_cannot_rerun_harms_no_other(fleet: FakeFleet, client: Client) -> None:
    read = client.submit(ReadDocument(b"scan"))
    fleet.fails(ReadDocument, FailureCode.ENGINE_ERROR)
    failed = [client.submit(ReadDocument(name)) for name in (b"one", b"two")]
    fleet.hold()

    told = pecia("retry", failed[0].id, read.id, failed[1].id, "--json")

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
    assert pecia("caption", scans[0], "--segments", "1e300").exit_code == 2
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


def test_a_terminal_gets_tables_in_columns_and_nothing_it_obeys_and_a_pipe_the_text(
    client: Client, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Lab \x1b]0;name\x07\x9b0m\nTest\tResult\t\n혈색소\u3000\t10.7\tlow\r\nPulse\t72\fEnd"
    fleet.answers(ReadDocument, text=text)
    job = client.submit(ReadDocument(b"a"))
    job.result(timeout=WAIT_S)

    printing.Printer().print(job, "a.png")
    assert capsys.readouterr().out == f"--- a.png, page 1 (ok)\n{text}\n\n"

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printing.Printer().print(job, "\x1b[2Ja.png")
    assert capsys.readouterr().out.split("\n") == [
        "--- �[2Ja.png, page 1 (ok)",
        "Lab �]0;name��0m",
        "Test      Result",
        "혈색소\u3000  10.7    low",
        "Pulse     72",
        "End",
        "",
        "",
    ]


def test_the_failure_of_a_single_page_is_printed_once(fleet: FakeFleet, client: Client) -> None:
    fleet.answers(ReadDocument, pages=[FailureCode.DAMAGED])
    job = client.submit(ReadDocument(b"%PDF-1.7"), label="cut.pdf").wait(WAIT_S)
    assert [
        line.split(": ")[:2] for line in pecia("result", job.id).stderr.splitlines() if "damaged" in line
    ] == [["cut.pdf", "damaged"]]


def test_a_word_that_is_no_choice_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "scan.png").touch()
    refused = run_pecia("read", tmp_path / "scan.png", "--priority", "high").stderr
    assert refused.startswith("pecia: Invalid value for '--priority': 'high' is not one of 'urgent', ")
