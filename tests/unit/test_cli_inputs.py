"""Words of a command line become what is worked on."""

import io
import os
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image

from pecia.cli import values
from pecia.cli.values import inputs
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
    assert "passed over 1 of another kind: notes.txt\n" in capsys.readouterr().err


def test_of_many_passed_over_the_first_are_named(inbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        (inbox / "ward" / f"{number}.txt").write_text("call back")
    names("inbox")
    said = capsys.readouterr().err
    assert "passed over 7 of another kind: notes.txt, ward/0.txt, " in said
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
    assert not isinstance(found.source, (str, Path))
    assert found.source.read() == b"%PDF-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.png"], "there is no file 'nowhere.png'"),
        (["a" * 400], "there is no file"),
        (["*.tiff"], "no file matches '*.tiff'"),
        (["inbox/.trash/empty"], "nothing in"),
        (["-", "-"], "can be read once"),
    ],
)
def test_a_word_that_stands_for_nothing_is_named(inbox: Path, words: list[str], said: str) -> None:
    (inbox / ".trash" / "empty").mkdir()
    with pytest.raises(typer.BadParameter, match=said.replace("*", r"\*")):
        names(*words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(inbox: Path) -> None:
    (inbox / "b.png").chmod(0)
    with pytest.raises(typer.BadParameter, match="may not be read"):
        names("inbox/b.png")


def test_a_prompt_for_a_password_that_is_left_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object, **__: object) -> str:
        raise typer.Abort

    monkeypatch.setattr(typer, "prompt", leave)
    with pytest.raises(typer.BadParameter, match="--password-file reads it from a file"):
        values.password(None, ask=True)
