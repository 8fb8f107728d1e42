"""Results as files, by `Job.save` and by `pecia result`: whole or not at all, and nothing of the document is left."""

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pikepdf
import pypdfium2
import pytest
from PIL import Image
from pyarrow import parquet
from pydantic import SecretStr

from pecia import (
    AuditAction,
    Captions,
    CaptionVideo,
    Client,
    ClientSettings,
    Document,
    Job,
    ReadDocument,
    errors,
    saving,
)
from pecia_schemas.blocks import Block, BlockKind, Box, Cell, Line, Source, Table, plain_blocks
from pecia_schemas.encryption import Keyring, new_key
from pecia_schemas.installing import install_command
from pecia_schemas.results import Verdict
from pecia_schemas.states import Stage
from tests.shared.command import run_pecia
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S

pytestmark = pytest.mark.gate

TEXT = "Amoxicillin 500 mg 아목시실린"
MP4 = b"\0\0\0\x18ftypmp42"


def lines(text: str = TEXT) -> dict[str, Any]:
    """What a page's result tells of one line on the printed page."""
    line = Line(text=text, box=Box(left=40, top=30, right=260, bottom=45), confidence=0.9)
    return {"width": 800, "height": 600, "blocks": plain_blocks(text, (line,), source=Source.OCR)}


@pytest.fixture
def job(client: Client, scribe: Any, printed: bytes) -> Job[Document]:
    """A document of one page that was read."""
    job = client.submit(ReadDocument(printed))
    scribe.read(job.id, text=TEXT, **lines())
    return job


@pytest.fixture
def film(client: Client, scribe: Any) -> Job[Captions]:
    job = client.submit(CaptionVideo(MP4))
    scribe.cut_video(job.id, 1)
    scribe.caption(job.id, 0)
    scribe.summarize(job.id, 1)
    return job


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where documents and half-made files lie while a PDF is written."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def text_of(file: Path | bytes) -> str:
    (page,) = pypdfium2.PdfDocument(file)
    return str(page.get_textpage().get_text_range())


def test_nobody_waits_or_reads_for_a_form_that_cannot_be_had_and_what_is_saved_is_read(
    client: Client, job: Job[Document], tmp_path: Path
) -> None:
    open_job = client.submit(ReadDocument(b"%PDF-1.7"))
    for name in ("page.docx", "page.srt"):
        with pytest.raises(errors.InvalidFormatError):
            open_job.save(tmp_path / name)
        with pytest.raises(errors.InvalidFormatError):
            job.save(tmp_path / name)
    assert list(client.audit(job=job)) == []
    with pytest.raises(errors.JobTimeoutError):
        open_job.save(tmp_path / "page.txt", timeout=0)
    job.save(tmp_path / "page.txt")
    assert [entry.action for entry in client.audit(job=job)] == [AuditAction.RESULT]


def test_without_the_extra_it_is_named_before_anybody_waits(
    client: Client, printed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(ReadDocument(printed))
    monkeypatch.setitem(sys.modules, "pecia.formats.pdf", None)
    monkeypatch.delattr("pecia.formats.pdf", raising=False)
    with pytest.raises(errors.ConfigurationError, match=re.escape(install_command("pdf"))):
        job.save(tmp_path / "page.pdf", timeout=0)


def test_pages_that_nobody_can_draw_here_are_told_as_such(
    job: Job[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(errors.ConfigurationError, match="does not start"):
        job.save(tmp_path / "page.pdf")
    assert list(tmp_path.glob("*page*")) == []


@pytest.mark.parametrize("gone", ["released", "removed", "changed"])
def test_a_result_whose_document_is_gone_keeps_its_other_forms(
    client: Client, job: Job[Document], tmp_path: Path, house: House, gone: str
) -> None:
    (document,) = (path for path in Path(house.payload_url).rglob("*") if path.is_file())
    if gone == "released":
        house.query("UPDATE jobs SET payload_released_at = now()")
    elif gone == "removed":
        document.unlink()
    else:
        document.write_bytes(b"\x89PNG\r\n\x1a\nanother")
    kept = tmp_path / "page.pdf"
    kept.write_text("before")
    with pytest.raises(errors.DocumentGoneError, match="hocr"):
        job.save(kept)
    assert job.save(tmp_path / "page.txt").read_text() == f"{TEXT}\n"
    client.purge([job])
    with pytest.raises(errors.JobErasedError):
        job.save(kept)
    assert kept.read_text() == "before"


def test_a_file_that_cannot_be_written_leaves_nothing_half_made(job: Job[Document], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not a file"):
        job.save(tmp_path, "text")
    with pytest.raises(FileNotFoundError):
        job.save(tmp_path / "nowhere" / "page.txt")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
    (tmp_path / "page.txt").write_text("before")
    with suppress(KeyboardInterrupt), saving.replacing(tmp_path / "page.txt") as half:
        half.write_text("half")
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir() if path.is_file()] == ["before"]


@pytest.fixture
def sealed(house: House, scribe: Any, printed: bytes) -> Iterator[tuple[Client, Job[Document]]]:
    """A client with a key, and its job: document and result are encrypted."""
    keys = SecretStr(json.dumps({"k1": new_key()}))
    settings = ClientSettings(encryption_keys=keys)
    with Client(**house.urls, settings=settings) as client:
        job = client.submit(ReadDocument(printed))
        replace(scribe, keys=Keyring.of(keys)).read(job.id, text=TEXT, **lines())
        yield client, job


def test_an_encrypted_document_is_decrypted_on_the_way_and_left_nowhere(
    sealed: tuple[Client, Job[Document]], client: Client, tmp_path: Path, scratch: Path
) -> None:
    assert text_of(sealed[1].save(tmp_path / "page.pdf")) == TEXT
    assert list(scratch.iterdir()) == []
    with pytest.raises(errors.InvalidSettingError, match="PECIA_ENCRYPTION_KEYS"):
        client.job(sealed[1].id).save(tmp_path / "page.pdf")


def test_the_password_opens_it_again(client: Client, scribe: Any, printed: bytes, tmp_path: Path) -> None:
    Image.open(io.BytesIO(printed)).convert("L").save(tmp_path / "scan.pdf")
    with pikepdf.open(tmp_path / "scan.pdf") as scan:
        scan.save(tmp_path / "locked.pdf", encryption=pikepdf.Encryption(user="open sesame", owner="o"))
    job = client.submit(ReadDocument(tmp_path / "locked.pdf", password="open sesame"))
    scribe.cut(job.id, 1)
    scribe.read(job.id, text=TEXT, **lines())
    assert text_of(job.save(tmp_path / "page.pdf")) == TEXT


# pecia result

Pecia = Callable[..., CompletedProcess[str]]


@pytest.fixture
def pecia(stores: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pecia:
    """Runs the command in a directory of its own."""
    desk = tmp_path / "desk"
    desk.mkdir()
    monkeypatch.chdir(desk)
    return partial(run_pecia, env=stores)


def test_one_result_is_printed_as_written(pecia: Pecia, job: Job[Document], film: Job[Captions]) -> None:
    assert text_of(pecia("result", job.id, "--format", "pdf").stdout.encode(errors="surrogateescape")) == TEXT
    assert pecia("result", film.id, "--format", "srt").stdout.endswith("00:00:01,000\ncaption\n")
    assert pecia("result", job.id, "-o", "page.out", "--format", "markdown").returncode == 0
    assert Path("page.out").read_text().startswith("<!-- page 1: ok -->")


def test_results_from_a_pipe_go_to_a_folder(pecia: Pecia, job: Job[Document], film: Job[Captions]) -> None:
    assert pecia("result", "-", "-o", "out/deep", stdin=f"{job.id}\n{film.id}\n").returncode == 0
    assert {path.name for path in Path("out/deep").iterdir()} == {f"{job.id}.txt", f"{film.id}.txt"}
    assert pecia("result", job.id, "-o", f"new{os.sep}", "--format", "json").returncode == 0
    assert Path("new", f"{job.id}.json").is_file()


def test_no_file_is_replaced_unless_told_to(pecia: Pecia, job: Job[Document]) -> None:
    Path("page.txt").write_text("before")
    refused = pecia("result", job.id, "-o", "page.txt")
    assert (refused.returncode, Path("page.txt").read_text()) == (2, "before")
    assert "--force" in refused.stderr
    assert pecia("result", job.id, "-o", "page.txt", "--force").returncode == 0
    assert Path("page.txt").read_text() == f"{TEXT}\n"
    nowhere = pecia("result", job.id, "-o", "page.txt/page.txt")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)
    assert "cannot be written" in nowhere.stderr


def test_one_table_is_printed_as_csv(pecia: Pecia, client: Client, scribe: Any, printed: bytes) -> None:
    job = client.submit(ReadDocument(printed))
    tables = [Table(rows=1, columns=1, cells=(Cell(row=0, column=0, text=text),)) for text in ("K", "Na")]
    blocks = [Block(kind=BlockKind.TABLE, text=one.text, table=one, source=Source.OCR) for one in tables]
    scribe.read(job.id, blocks=blocks)
    assert pecia("result", job.id, "--table", "2").stdout.splitlines() == ["Na"]
    assert pecia("result", job.id, "--format", "csv").stdout.splitlines() == ["K", "", "Na"]
    assert "has 2 tables" in pecia("result", job.id, "--table", "3").stderr


def cells_of(path: Path) -> list[tuple[str, ...]]:
    with path.open(newline="") as file:
        return [tuple(text for name, text in row.items() if name != "job") for row in csv.DictReader(file)]


def test_all_tables_are_one_file(pecia: Pecia, client: Client, scribe: Any, printed: bytes) -> None:
    def table(*texts: str) -> Block:
        cells = tuple(Cell(row=n, column=0, text=text) for n, text in enumerate(texts))
        grid = Table(rows=len(texts), columns=1, cells=cells)
        return Block(kind=BlockKind.TABLE, text=grid.text, table=grid, source=Source.OCR)

    jobs = [client.submit(ReadDocument(printed + bytes([n])), label=f"{n}.pdf") for n in range(3)]
    scribe.read(jobs[0].id, blocks=(table("Na", "140"), table("K")))
    scribe.read(jobs[1].id, text="no table")
    told = pecia("export", "--state", "succeeded", "--tables", "--to", "out")
    assert told.returncode == 0, told.stderr
    zero = [
        ("0.pdf", "1", "1", "0", "0", "1", "1", "Na"),
        ("0.pdf", "1", "1", "1", "0", "1", "1", "140"),
        ("0.pdf", "1", "2", "0", "0", "1", "1", "K"),
    ]
    assert cells_of(Path("out/tables.csv")) == zero

    scribe.read(jobs[2].id, blocks=(table('1,5 "mg"'),))
    assert pecia("export", "--state", "succeeded", "--tables", "--to", "out").returncode == 0
    assert cells_of(Path("out/tables.csv")) == [*zero, ("2.pdf", "1", "1", "0", "0", "1", "1", '1,5 "mg"')]
    assert (
        pecia("export", "--state", "succeeded", "--tables", "--format", "parquet", "--to", "p").returncode
        == 0
    )
    assert parquet.read_table("p/tables.parquet").column("text").to_pylist() == ['1,5 "mg"', "Na", "140", "K"]


def test_a_place_that_cannot_be_written_is_named_with_the_reason(pecia: Pecia, job: Job[Document]) -> None:
    Path("taken").write_text("")
    told = pecia("export", "--state", "succeeded", "--to", "taken")
    assert (told.returncode, job.done) == (4, False)
    assert (
        told.stderr
        == "pecia: The folder of the export cannot be used: File exists. Name another one with --to.\n"
    )


def test_pages_are_listed_by_their_verdict(pecia: Pecia, client: Client, scribe: Any) -> None:
    job = client.submit(ReadDocument(b"%PDF-1.7"))
    scribe.cut(job.id, 2)
    scribe.read(job.id, 0)
    scribe.read(job.id, 1, verdict=Verdict.REVIEW)

    (found,) = map(json.loads, pecia("list", "--verdict", "review", "--json").stdout.splitlines())
    assert (found["job"], found["page"], found["verdict"]) == (str(job.id), 2, "review")
    assert str(job.id) in pecia("list", "--verdict", "review", "--verdict", "ok").stdout
    assert str(job.id) in pecia("list", "--verdict", "review", "--state", str(job.refresh().state)).stdout
    assert str(job.id) not in pecia("list", "--verdict", "review", "--state", "failed").stdout


def test_fields_of_many_documents_are_lines_that_begin_with_the_job(
    pecia: Pecia, client: Client, scribe: Any, picture: Picture
) -> None:
    jobs = [client.submit(ReadDocument(picture(shade=shade), fields={"type": "object"})) for shade in (9, 10)]
    for number, job in enumerate(jobs):
        scribe.read(job.id, fields={"refills": number})
    told = pecia("result", *(job.id for job in jobs), "--format", "fields").stdout
    assert [json.loads(line) for line in told.splitlines()] == [
        {"job": str(job.id), "page": 1, "fields": {"refills": number}, "verdict": "ok"}
        for number, job in enumerate(jobs)
    ]


def test_a_job_without_result_is_left(pecia: Pecia, client: Client, job: Job[Document], scribe: Any) -> None:
    broken, unread = (client.submit(ReadDocument(b"%PDF-1.7 " + mark)) for mark in (b"1", b"2"))
    scribe.fail(broken.id, stage=Stage.INGEST)
    told = pecia("result", broken.id, job.id, "-o", "out")
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert str(broken.id) in told.stderr
    assert "damaged" in told.stderr
    assert [path.stem for path in Path("out").iterdir()] == [str(job.id)]
    told = pecia("result", unread.id, broken.id, job.id, "-o", "more")
    assert (told.returncode, told.stderr.count("\n")) == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--format", "text"], "add -o DIR"),
        (["--format", "json", "--json"], "omit --format"),
        (["-o", "taken"], "name a folder"),
        (["--format", "srt", "-o", "out"], "text, markdown, html, csv, json, fields, hocr, pdf"),
        (["--format", "pdf", "--quality", "0", "-o", "out"], "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_is_written(
    pecia: Pecia, job: Job[Document], arguments: list[str], hint: str
) -> None:
    Path("taken").write_text("before")
    told = pecia("result", job.id, job.id, *arguments)
    assert told.returncode
    assert hint in told.stderr
    assert [path.name for path in Path().iterdir()] == ["taken"]


def test_a_pdf_is_nothing_for_a_terminal(stores: dict[str, str], job: Job[Document]) -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "pecia", "result", str(job.id), "--format", "pdf"]
    how: dict[str, Any] = {"stdout": its, "stderr": subprocess.PIPE, "text": True, "timeout": WAIT_S}
    done = subprocess.run(command, env=os.environ | stores, check=False, **how)
    os.close(its)
    os.close(ours)
    assert (done.returncode, "-o FILE" in done.stderr) == (2, True)
