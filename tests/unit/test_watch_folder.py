"""`pecia watch-folder`: when a file is whole, and that a stop at any moment repeats nothing and loses nothing."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pecia import FailureCode, ReadDocument
from pecia.cli import folder as verb
from pecia.cli import inbox
from pecia.cli.folder import FolderOptions, Places, Watch
from pecia.cli.inbox import Entry, Journal, Stillness
from pecia.cli.reading import ANY_SOURCE
from pecia.client import Client
from pecia.errors import PayloadStoreUnavailableError
from pecia.job import Job
from pecia.testing import FakeFleet

SIZE, LATER, OTHER = (1, 1, 1), (2, 2, 1), (1, 1, 2)
PNG = b"\x89PNG\r\n\x1a\n"


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet() as fleet:
        yield fleet


def test_a_file_is_whole_once_it_has_not_changed_over_two_looks() -> None:
    stillness = Stillness(2)
    assert stillness.whole({"a": SIZE}, 10) == []
    assert stillness.whole({"a": SIZE}, 11.9) == []
    assert stillness.whole({"a": LATER}, 12.5) == []
    assert stillness.whole({"a": OTHER}, 14.6) == []
    assert stillness.whole({}, 16.7) == []
    assert stillness.whole({"a": OTHER, "b": SIZE}, 20) == []
    assert stillness.whole({"b": SIZE, "a": OTHER}, 22) == ["a", "b"]


@pytest.mark.parametrize(
    "name",
    ["scan.pdf.part", "a.TMP", "a.crdownload", ".scan.pdf", "~$a.docx", ".~lock.a#", "Thumbs.db", "a.pdf~"],
)
def test_names_of_files_that_are_still_written_are_left_alone(name: str) -> None:
    assert inbox.is_partial(name)


def test_a_browsers_placeholder_is_left_alone_until_the_download_is_renamed() -> None:
    assert inbox.is_partial("scan.pdf", {"scan.pdf", "scan.pdf.part"})
    assert not inbox.is_partial("scan.pdf", {"scan.pdf", "party.pdf"})


def test_folders_below_are_searched_if_wanted_but_for_those_of_results(tmp_path: Path) -> None:
    for name in ("a.pdf", "ward/b.pdf", "done/c.pdf", ".hidden/d.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    over = {tmp_path / "done"}
    assert list(inbox.files_in(tmp_path, recursive=False, passed_over=over)) == ["a.pdf"]
    assert set(inbox.files_in(tmp_path, recursive=True, passed_over=over)) == {"a.pdf", "ward/b.pdf"}
    with pytest.raises(FileNotFoundError):
        inbox.files_in(tmp_path / "away", recursive=False, passed_over=())


def test_a_journal_outlives_a_line_that_was_cut(tmp_path: Path) -> None:
    entries = [
        Entry.new(name, SIZE, digest="", place=name, result=f"done/{name}.txt") for name in ("a", "b\udcff")
    ]
    with Journal.open(tmp_path) as journal:
        journal.write(entries)
        journal.remove(entries[0])
    file = tmp_path / ".pecia" / "watched.jsonl"
    with file.open("ab") as stream:
        stream.write(b'{"name": "c", "pri')
    with Journal.open(tmp_path) as journal:
        journal.write([entries[0]])
    with Journal.open(tmp_path) as journal:
        assert journal.entries == {entry.name: entry for entry in entries}


def watched(
    fleet: FakeFleet, folder: Path, then: Callable[[], object] = lambda: None, **options: Any
) -> None:
    """Watch the folder for some rounds, and `then` for some more."""
    chosen = FolderOptions(**options)
    with fleet.client() as client, Journal.open(folder) as journal:
        watch = Watch(
            client=client,
            task=ReadDocument(ANY_SOURCE),
            options={"batch": "watched"},
            places=Places.of(folder, chosen),
            journal=journal,
            stillness=Stillness(0),
            form=chosen.form,
            recursive=chosen.recursive,
            report=lambda *_: None,
        )
        for number in range(8):
            if number == 4:
                then()
            watch.search()
            watch.settle()


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".pecia" not in path.parts
    }


def _dying(real: Callable[..., Any], moments: Iterator[bool]) -> Callable[..., Any]:
    def called(*args: Any, **given: Any) -> Any:
        if next(moments):
            raise Killed
        returned = real(*args, **given)
        if next(moments):
            raise Killed
        return returned

    return called


STEPS = (
    (Client, "submit_many"),
    (Job, "save"),
    (Journal, "_append"),
    (verb, "_move"),
    (verb, "_copy"),
    (Path, "replace"),
)


@pytest.mark.parametrize("keep", [False, True])
def test_a_kill_before_or_after_any_step_repeats_nothing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keep: bool
) -> None:
    expected, count = None, 0
    for fatal in [10**6, *range(40)]:
        folder = tmp_path / str(fatal)
        folder.mkdir()
        (folder / "good.png").write_bytes(PNG)
        (folder / "bad.png").write_bytes(PNG + b"bad")
        with FakeFleet() as fleet:
            fleet.fails(ReadDocument, FailureCode.DAMAGED, times=1)
            moments = (number == fatal for number in range(10**9))
            with monkeypatch.context() as patch:
                for owner, name in STEPS:
                    patch.setattr(owner, name, _dying(getattr(owner, name), moments))
                try:
                    watched(fleet, folder, keep=keep)
                except Killed:
                    count += 1
            watched(fleet, folder, keep=keep)
            found = {
                name: b"" if name.endswith("error.txt") else text for name, text in files(folder).items()
            }
            expected = expected or found
            assert found == expected
            assert len(fleet.submitted) == 2
    assert count > 15
    assert set(expected or ()) > {"failed/bad.png.error.txt"}


def test_another_document_of_the_same_name_is_read_beside_the_first(tmp_path: Path, fleet: FakeFleet) -> None:
    for text in ("first", "second"):
        fleet.answers(ReadDocument, text=text)
        (tmp_path / "scan.png").write_bytes(PNG + text.encode())
        watched(fleet, tmp_path)
    done = files(tmp_path)
    assert set(done) == {f"done/scan{end}" for end in (".png", ".png.txt", "-2.png", "-2.png.txt")}
    assert (b"first" in done["done/scan.png.txt"], b"second" in done["done/scan-2.png.txt"]) == (True, True)


def test_a_document_that_stays_is_read_again_once_its_content_changes(
    tmp_path: Path, fleet: FakeFleet
) -> None:
    scan = tmp_path / "scan.png"
    scan.write_bytes(PNG)
    watched(fleet, tmp_path, keep=True)
    os.utime(scan, ns=(1, 1))
    watched(fleet, tmp_path, keep=True)
    assert (len(fleet.submitted), set(files(tmp_path))) == (1, {"scan.png", "scan.png.txt"})
    fleet.answers(ReadDocument, text="anew")
    scan.write_bytes(PNG + b"more")
    watched(fleet, tmp_path, keep=True)
    assert (len(fleet.submitted), b"anew" in files(tmp_path)["scan.png.txt"]) == (2, True)
    scan.unlink()
    (tmp_path / "scan.png.txt").unlink()
    watched(fleet, tmp_path, keep=True)
    assert (tmp_path / ".pecia/watched.jsonl").read_bytes().split()[-1] == b"true}"


def test_a_file_that_changes_while_it_is_read_is_read_again_and_has_one_result(tmp_path: Path) -> None:
    scan = tmp_path / "scan.png"
    scan.write_bytes(PNG)
    with FakeFleet(held=True) as fleet:
        watched(fleet, tmp_path, lambda: scan.write_bytes(PNG + b"the rest"))
        fleet.release()
        watched(fleet, tmp_path)
        assert [job.state for job in fleet.client().jobs()] == ["succeeded", "cancelled"]
    assert files(tmp_path)["done/scan.png"] == PNG + b"the rest"


def test_a_full_disk_loses_no_result(
    tmp_path: Path, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scan.png").write_bytes(PNG)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "done"))

    with monkeypatch.context() as patch:
        patch.setattr(Job, "save", full)
        with pytest.raises(OSError, match="No space") as raised:
            watched(fleet, tmp_path)
    assert "make space" in verb._trouble(raised.value)
    assert set(files(tmp_path)) == {"scan.png"}
    watched(fleet, tmp_path)
    assert (len(fleet.submitted), len(files(tmp_path))) == (1, 2)


def test_a_store_that_is_away_leaves_documents_where_they_are(tmp_path: Path, fleet: FakeFleet) -> None:
    (tmp_path / "scan.png").write_bytes(PNG)
    with fleet.outage("payloads"), pytest.raises(PayloadStoreUnavailableError):
        watched(fleet, tmp_path)
    assert set(files(tmp_path)) == {"scan.png"}
    watched(fleet, tmp_path)
    assert set(files(tmp_path)) == {"done/scan.png", "done/scan.png.txt"}


def test_the_journal_holds_no_more_than_what_is_open(tmp_path: Path, fleet: FakeFleet) -> None:
    (tmp_path / "scan.png").write_bytes(PNG)
    watched(fleet, tmp_path)
    with Journal.open(tmp_path) as journal:
        assert journal.entries == {}
    assert [json.loads(line) for line in (tmp_path / ".pecia/watched.jsonl").read_bytes().splitlines()] == []
