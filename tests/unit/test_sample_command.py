"""`pecia sample` draws documents to try the fleet with, and takes nothing from who runs it."""

from pathlib import Path

from PIL import Image

from command import run_pecia


def test_it_draws_the_documents_of_the_demo_and_prints_where_they_are(tmp_path: Path) -> None:
    done = run_pecia("sample", tmp_path / "new" / "papers")
    assert done.returncode == 0, done.stderr
    written = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(written) == sorted((tmp_path / "new" / "papers").iterdir())
    assert {path.suffix for path in written} == {".pdf", ".png", ".jpg"}
    with Image.open(tmp_path / "new/papers/prescription.png") as picture:
        picture.load()


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lab.png").write_text("mine")
    assert run_pecia("sample", tmp_path).returncode == 0
    assert (tmp_path / "lab.png").read_text() == "mine"
    assert (tmp_path / "chart.pdf").read_bytes().startswith(b"%PDF")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_pecia("sample", tmp_path / "file" / "papers")
    assert done.returncode == 2
    assert "file/papers cannot be written" in done.stderr
