"""Words of a command line become what is worked on, and what is found becomes a table."""

import io
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
import typer
from PIL import Image

from pecia import FailureCode, ReadDocument
from pecia.cli import values
from pecia.cli.output import fitting, table
from pecia.cli.values import inputs
from pecia.testing import FakeFleet
from pecia_schemas.media import MediaType


def page(media: MediaType) -> bool:
    return not media.is_video


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a mail room leaves it: pictures under right and wrong names, at two depths, and other things."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox" / "ward").mkdir(parents=True)
    (tmp_path / "inbox" / ".trash").mkdir()
    for name in ("b.png", "a.dat", "ward/c.png", ".hidden.png", ".trash/d.png"):
        Image.new("L", (8, 8)).save(tmp_path / "inbox" / name, "PNG")
    (tmp_path / "inbox" / "notes.txt").write_text("call back")
    return tmp_path / "inbox"


def names(*words: str) -> list[str]:
    return [one.name for one in inputs(words, page)]


@pytest.mark.usefixtures("inbox")
def test_a_folder_is_searched_whole_by_content_but_for_the_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    assert names("inbox") == ["inbox/a.dat", "inbox/b.png", "inbox/ward/c.png"]
    assert "skipped 1 of another kind: notes.txt\n" in capsys.readouterr().err


def test_of_many_passed_over_the_first_are_named(inbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        (inbox / "ward" / f"{number}.txt").write_text("call back")
    names("inbox")
    said = capsys.readouterr().err
    assert "skipped 7 of another kind: notes.txt, ward/0.txt, " in said
    assert said.endswith("ward/3.txt, …\n")


@pytest.mark.usefixtures("inbox")
def test_a_file_that_is_named_is_taken_whatever_it_holds_and_a_quoted_pattern_is_matched() -> None:
    assert names("inbox/notes.txt") == ["inbox/notes.txt"]
    assert names("inbox/**/*.png") == ["inbox/b.png", "inbox/ward/c.png"]


def test_addresses_are_handed_on_as_they_are() -> None:
    found = inputs(["https://archive.example/scan.pdf", "s3://scans/7.pdf"], page)
    assert [one.source for one in found] == ["https://archive.example/scan.pdf", "s3://scans/7.pdf"]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"%PDF-")))
    (found,) = inputs(["-"], page)
    assert isinstance(found.source, io.BufferedIOBase)
    assert found.source.read() == b"%PDF-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.png"], "there is no file 'nowhere.png'"),
        (["a" * 400], "there is no file"),
        (["*.tiff"], "no file matches '*.tiff'"),
        (["inbox/.trash/empty"], "contains no file that this command accepts"),
        (["-", "-"], "can be read only once"),
    ],
)
def test_a_word_that_stands_for_nothing_is_named(inbox: Path, words: list[str], said: str) -> None:
    (inbox / ".trash" / "empty").mkdir()
    with pytest.raises(typer.BadParameter, match=said.replace("*", r"\*")):
        names(*words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(inbox: Path) -> None:
    (inbox / "b.png").chmod(0)
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        names("inbox/b.png")


def test_a_prompt_for_a_password_that_is_left_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object, **__: object) -> str:
        raise typer.Abort

    monkeypatch.setattr(typer, "prompt", leave)
    with pytest.raises(typer.BadParameter, match="--password-file reads it from a file"):
        values.password(None, ask=True)


def drawn(width: int) -> tuple[list[str], list[str]]:
    """Return the table of a job that was read and one that failed, and their ids."""
    with FakeFleet() as fleet:
        client = fleet.client()
        read = client.submit(ReadDocument(b"a scan")).wait()
        fleet.fails(ReadDocument, FailureCode.LANGUAGE_UNAVAILABLE)
        failed = client.submit(ReadDocument(b"another")).wait()
        return table([read, failed], width).splitlines(), [str(read.id), str(failed.id)]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_width_has_whole_ids_states_and_reasons(width: int) -> None:
    lines, ids = drawn(width)
    shown = [line for line in lines if any(one in line for one in ids)]
    assert len(shown) == len(ids)
    assert "succeeded" in shown[0]
    assert "failed" in shown[1]
    assert "language_unavailable" in shown[1]
    assert "…" not in "".join(lines)


def test_a_wide_terminal_has_every_column_and_a_narrow_one_those_that_matter() -> None:
    wide, narrow = (" ".join(drawn(width)[0]).split() for width in (200, 80))
    assert wide[:8] == ["job", "kind", "lane", "state", "parts", "submitted", "took", "why"]
    assert narrow[:4] == ["job", "state", "parts", "why"]


def test_columns_go_in_the_order_that_was_given_until_the_rest_has_room() -> None:
    now = datetime.now(UTC).isoformat()
    made = fitting(("a", "b", "c", "d"), [(str(uuid4()), now, now, "x")], spare=("b", "c"), width=80)
    assert made.split()[:3] == ["a", "c", "d"]


def test_columns_are_as_wide_on_the_terminal_as_what_is_in_them() -> None:
    rows = [("처방전", "\x1b[32mdone\x1b[0m", "x"), ("plain", "failed", "y")]
    lines = fitting(("name", "state", "why"), rows, spare=()).splitlines()
    assert lines[3:5] == [" 처방전  \x1b[32mdone\x1b[0m    x", " plain   failed  y"]


def test_what_the_last_column_has_no_room_for_goes_on_below() -> None:
    lines = fitting(("id", "why"), [("1", "abcdefghijklm")], spare=(), width=14).splitlines()
    assert lines[3:5] == [" 1   abcdefghi", "     jklm"]
