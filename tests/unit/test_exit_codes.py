"""The command ends as the table of exit codes says: for every error of the client, and by command lines."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pecia import FailureCode, ReadDocument, errors
from pecia.cli import endings, jobs, reading, results
from pecia.cli.endings import Ending
from pecia.testing import FakeFleet
from pecia_workers.commands import common
from tests.shared.command import run_pecia
from tests.shared.snippets import ROOT

ROWS = re.findall(
    r"^\| (\d+) \| .+? \| ([^|]*?) ?\| [^|]*\|$", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE
)
CODES = {error: int(code) for code, named in ROWS for error in re.findall(r"`(\w+)`", named)}


def kinds(error: type[errors.PeciaError]) -> Iterator[type[errors.PeciaError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_the_table_has_a_row_for_each_code_and_names_every_error_once() -> None:
    public = {kind.__name__ for kind in kinds(errors.PeciaError) if kind.__module__ == errors.__name__}
    assert [int(code) for code, _ in ROWS] == list(Ending)
    assert sorted(error for _, named in ROWS for error in re.findall(r"`(\w+)`", named)) == sorted(public)


@pytest.mark.parametrize("name", CODES)
def test_an_error_ends_the_command_with_the_code_of_its_row(name: str) -> None:
    kind: Any = getattr(errors, name)
    assert endings.of(kind.__new__(kind)) == CODES[name]


def test_the_fleets_verbs_end_with_the_same_codes() -> None:
    assert (common.FAILED, common.USAGE, common.UNAVAILABLE) == (
        Ending.FAILED,
        Ending.USAGE,
        Ending.UNAVAILABLE,
    )


@pytest.fixture
def job_ids(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Ids of jobs of a fake fleet, whose clients the commands use, by what became of them."""
    with FakeFleet() as fleet:
        for module in (jobs, reading, results):
            monkeypatch.setattr(module, "Client", lambda **_: fleet.client())
        client = fleet.client()
        ended = {"read": client.submit(ReadDocument(b"%PDF-1"))}
        fleet.fails(ReadDocument, FailureCode.DAMAGED)
        ended["failed"] = client.submit(ReadDocument(b"%PDF-1"))
        fleet.hold()
        ended["waiting"] = client.submit(ReadDocument(b"%PDF-1"))
        yield {name: str(job.id) for name, job in ended.items()}


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        ("wait {read}", 0, ""),
        ("wait {failed}", 1, ""),
        ("result {failed}", 1, "damaged"),
        ("no-such-verb", 2, "No such command"),
        ("status 0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11", 2, "0190b3c8"),
        ("read no-such-file.pdf", 2, "there is no file"),
        ("result {read} -o {long}.txt", 2, "File name too long."),
        ("result {read} -o /proc/x.txt", 2, "the file cannot be written"),
        ("wait {waiting} --timeout 0", 3, "is not finished"),
        ("usage", 4, "PECIA_DATABASE_URL"),
    ],
)
def test_a_command_ends_with_the_code_of_its_row(
    job_ids: dict[str, str], tmp_path: Path, line: str, code: int, sentence: str
) -> None:
    words = line.format(**job_ids, long="x" * 300).split()
    ended = run_pecia(*words, env={"PECIA_HOME": str(tmp_path)})
    assert (ended.returncode, sentence in ended.stderr) == (code, True), ended.stderr
    assert "fault in Pecia" not in ended.stderr


def test_ctrl_c_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "Client", interrupt)
    assert run_pecia("list").returncode == Ending.INTERRUPTED
