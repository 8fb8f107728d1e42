"""What commands say and do of many jobs at once."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pecia import Client, Counts, FailureCode, JobState, ReadDocument, Submission
from pecia.cli import jobs, output, reading, results, watching
from pecia.cli.app import app
from pecia.testing import FakeFleet
from pecia_schemas.states import as_prefix, is_whole


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFleet]:
    with FakeFleet(held=True) as fleet:
        for module in (results, jobs, results, reading, watching):
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


def test_who_leaves_a_wait_is_told_how_to_come_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = client.submit_many([ReadDocument(b"%PDF-1")], batch="night")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pecia.cli.watching.follow", interrupted)
    for words, back in (["--batch", "night"], "--batch night"), ([str(job.id)], str(job.id)):
        left = pecia("wait", *words)
        assert (left.exit_code, f"`pecia watch {back}`" in left.stderr) == (130, True)
    assert not job.refresh().done


def test_verbs_are_for_those_of_a_batch_that_they_can_be_for(fleet: FakeFleet, client: Client) -> None:
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
    assert pecia("wait", "--batch", "night", "--state", "succeeded").exit_code == 0
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
    job = client.submit(ReadDocument(b"%PDF-1"), label=label)
    shown = output.table([job], 200)
    assert "\x1b" not in shown
    assert "xscan.pdf" in shown


def test_parquet_without_its_library_says_what_to_install(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    client.submit_many([ReadDocument(b"%PDF-1")], batch="night")
    refused = pecia("export", "--batch", "night", "--format", "parquet", "--to", tmp_path)
    assert "pip install 'pecia[parquet]'" in str(refused.exception)


def test_an_id_may_be_cut_short_anywhere_behind_its_fourth_digit() -> None:
    whole = "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"
    assert all(as_prefix(whole[:end]) for end in range(4, len(whole) + 1))
    assert is_whole(whole.replace("-", ""))
    assert not is_whole(whole[:-1])
    for wrong in ("019", "night", f"01234567-{'a' * 27}", whole + "0", "-" * 8):
        assert as_prefix(wrong) is None
