"""A bundle from the client to the worker and back: its pages are read once, then it is split."""

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pikepdf
import pypdfium2
import pytest
from pydantic import SecretStr
from typer.testing import Result

from pecia import (
    Bundle,
    Client,
    InvalidFormatError,
    InvalidOptionError,
    InvalidSourceError,
    JobState,
    ReadBundle,
    Submission,
)
from pecia.bundles import Layout
from pecia_schemas.bundles import Subject
from pecia_schemas.settings import ClientSettings
from pecia_workers.ledger.recovery import Judge
from tests.shared import bundle_files, hand_made_pdfs
from tests.shared.fixture_types import Picture
from tests.shared.house import House, claimed, hear_nothing

pytestmark = pytest.mark.usefixtures("shared_template")


def pages_of(bundle: Bundle) -> list[tuple[int, ...]]:
    return [document.part.pages for document in bundle.documents]


def queued(house: House) -> list[tuple[str, int]]:
    return house.query("SELECT stage, ordinal FROM parts WHERE state = 'queued'")


def test_a_bundle_is_split_once_its_pages_are_read(client: Client, house: House) -> None:
    job = client.submit(ReadBundle(bundle_files.three_documents()))
    house.work_off(job)
    assert job.state is JobState.SUCCEEDED
    bundle = job.result(timeout=0)
    assert pages_of(bundle) == [(1, 2), (3,), (4,)]
    lab, letter, prescription = bundle.documents
    assert [page.number for page in lab.pages] == [1, 2]
    assert "Creatinine" in lab.text
    assert lab.part.identity.name == prescription.part.identity.name == bundle_files.MARY[0]
    assert letter.part.identity.name == bundle_files.JOHN[0]
    assert [page.number for page in job.pages(timeout=0)] == [1, 2, 3, 4]


def test_a_bundle_of_one_picture_is_split_too(client: Client, house: House, picture: Picture) -> None:
    job = client.submit(ReadBundle(picture()))
    house.work_off(job)
    assert (job.state, pages_of(job.result(timeout=0))) == (JobState.SUCCEEDED, [(1,)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a bundle's pages in two files, a broken picture between them, and what is no document."""
    folder = tmp_path / "pile"
    folder.mkdir()
    (folder / "scan 10.pdf").write_bytes(
        bundle_files.pdf_of([bundle_files.LETTER, bundle_files.PRESCRIPTION])
    )
    (folder / "scan 2.pdf").write_bytes(bundle_files.pdf_of([bundle_files.LAB, bundle_files.LAB_BACK]))
    (folder / "scan 3.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    (folder / "notes.txt").write_text("no document")
    return folder


def test_a_folder_is_one_bundle_in_the_order_in_which_people_number_files(
    client: Client, house: House, folder: Path
) -> None:
    job = client.submit(ReadBundle(folder))
    house.work_off(job)
    bundle = job.result(timeout=0)
    assert (job.state, [page.number for page in bundle.failed]) == (JobState.PARTIAL, [3])
    assert pages_of(bundle) == [(1, 2), (4,), (5,)]
    assert "Creatinine" in bundle.documents[0].text
    job.save(folder.parent / "letter.pdf", result=bundle.documents[1])
    assert (
        "Discharge letter"
        in pypdfium2.PdfDocument(folder.parent / "letter.pdf")[0].get_textpage().get_text_range()
    )
    again = client.submit(ReadBundle([folder / "scan 10.pdf", (folder / "scan 2.pdf").read_bytes()]))
    house.work_off(again)
    assert pages_of(again.result(timeout=0)) == [(1,), (2,), (3, 4)], (
        "files are taken in the order that is given"
    )
    for none in (folder / "empty", folder / "nowhere"):
        none.with_name("empty").mkdir(exist_ok=True)
        with pytest.raises(InvalidSourceError):
            client.submit(ReadBundle([none]))


def test_the_command_joins_folders_and_pictures_alone(
    pecia: Callable[..., Result], client: Client, folder: Path, picture: Picture
) -> None:
    pictures = [folder.parent / f"{number}.png" for number in (10, 9)]
    for number, path in enumerate(pictures):
        path.write_bytes(picture(shade=number))
    submitted = pecia("read", "--bundle", folder, *pictures, folder / "scan 2.pdf", "--batch", "b", "--json")
    assert submitted.exit_code == 0, submitted.output
    assert [job.label for job in client.jobs(batch="b")] == ["9.png", "scan 2.pdf", "pile"]


def test_the_pages_that_were_read_are_split_without_those_that_failed(client: Client, house: House) -> None:
    job = client.submit(ReadBundle(hand_made_pdfs.with_lost_page()))
    house.work_off(job)
    bundle = job.result(timeout=0)
    assert (job.state, [page.number for page in bundle.failed]) == (JobState.PARTIAL, [2])
    assert {number for pages in pages_of(bundle) for number in pages} >= {1, 3}
    house.work_off(job.retry())  # the page fails again; the split waits for it, and runs anew
    assert job.state is JobState.PARTIAL
    assert house.query("SELECT attempt FROM parts WHERE stage = 'split'") == [(2,)]
    assert len(job.result(timeout=0).documents) == len(bundle.documents)


def test_a_split_whose_worker_is_killed_runs_elsewhere(client: Client, house: House) -> None:
    job = client.submit(ReadBundle(bundle_files.three_documents()))

    async def until_split() -> None:
        async with house.working() as runtime:
            while "split" not in {stage for stage, _ in queued(house)}:
                for part in house.waiting():
                    await runtime.run(part, deaths=0)

    asyncio.run(until_split())
    (split,) = house.waiting()
    house.play(lambda dead: claimed(dead, split), "dead")
    assert house.ask(lambda database: Judge(database, house.settings(), hear_nothing).judge()) == 1

    async def run_elsewhere() -> None:
        async with house.working() as runtime:
            await runtime.run(split, deaths=1)

    asyncio.run(run_elsewhere())
    assert job.refresh().state is JobState.SUCCEEDED
    assert pages_of(job.result(timeout=0)) == [(1, 2), (3,), (4,)]


def test_the_expected_patient_is_stored_encrypted_and_erased_with_the_job(house: House) -> None:
    keys = SecretStr(json.dumps({"k": base64.b64encode(bytes(32)).decode()}))
    name = "Wilhelmina Quillfeather"
    with Client(**house.urls, settings=ClientSettings(encryption_keys=keys)) as client:
        job = client.submit(ReadBundle(bundle_files.three_documents(), subject=Subject(name=name)))
        assert name not in str(house.query("SELECT task FROM jobs"))
        house.work_off(job, encryption_keys=keys)
        documents = job.result(timeout=0).documents
        assert all(document.part.has_conflict for document in documents)
        stored = house.query("SELECT content FROM results") + house.query("SELECT reason FROM job_events")
        assert bundle_files.JOHN[0] not in str(stored)
        client.purge([job.id])
        assert "subject" not in str(house.query("SELECT task FROM jobs"))


def test_the_command_writes_documents_to_files_but_none_in_conflict(
    pecia: Callable[..., Result], house: House, tmp_path: Path
) -> None:
    (tmp_path / "pile.pdf").write_bytes(bundle_files.three_documents())
    name, born, record = bundle_files.MARY
    who = ["--subject-name", name, "--subject-born", born, "--subject-record", record]
    refused = pecia("read", tmp_path / "pile.pdf", *who)
    assert (refused.exit_code, "--bundle" in refused.output) == (2, True)
    (job_id,) = pecia("read", tmp_path / "pile.pdf", "--bundle", *who).output.split()
    house.work_off()
    shown = pecia("result", job_id)
    assert "identity_conflict" in shown.output
    (line,) = pecia("result", job_id, "--json").output.splitlines()
    assert [document["pages"] for document in json.loads(line)["documents"]] == [[1, 2], [3], [4]]
    written = pecia("result", job_id, "--by", "document", "-o", tmp_path / "out")
    assert written.exit_code == 1
    assert "document 2" in written.output
    assert bundle_files.JOHN[0] not in written.output
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(files) == 3
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    with pikepdf.open(tmp_path / "out" / manifest["documents"][0]["file"]) as lab:
        assert len(lab.pages) == 2, "those of the document alone"
    assert [entry["file"] is None for entry in manifest["documents"]] == [False, True, False]
    assert name not in (tmp_path / "out" / "manifest.json").read_text() + "".join(files)
    by = ["--by", "patient", "--name", "{patient}", "--with-conflicts", "--format", "text"]
    assert pecia("result", job_id, *by, "-o", tmp_path / "all").exit_code == 0
    folders = {path.parent.name for path in (tmp_path / "all").rglob("*.txt")}
    assert folders == {"patient-01", "conflict-02"}
    refused = pecia("result", job_id, "--by", "patient", "--name", "{born}", "-o", tmp_path / "no")
    assert isinstance(refused.exception, InvalidOptionError)


def test_an_export_writes_each_document_and_says_which_are_held_back(
    pecia: Callable[..., Result], client: Client, house: House, tmp_path: Path
) -> None:
    name, born, _ = bundle_files.MARY
    subject = Subject(name=name, birth_date=date.fromisoformat(born))
    held = ReadBundle(bundle_files.three_documents(), subject=subject)
    for task, label in ((ReadBundle(bundle_files.three_documents()), "a.pdf"), (held, "b.pdf")):
        house.work_off(client.submit_many([Submission(task, label=label)], batch="week")[0])
    for_all = ("export", "--batch", "week", "--by", "patient", "--to", tmp_path)
    written = pecia(*for_all)
    assert (written.exit_code, "1 document held back" in written.output) == (1, True)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pdf")}
    assert {file.rpartition("/")[0] for file in files} == {"a/patient-01", "a/patient-02", "b/patient-01"}
    assert len(files) == 5
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert [entry["file"] is None for entry in manifest["documents"]] == [False, True, False]
    again = pecia(*for_all)
    assert "1 result written, 1 written before" in again.output, "what was held back may have been reviewed"
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pdf")} == files
    whole = client.export(tmp_path / "fhir", format="fhir", batch="week")
    assert (whole.written, whole.held_back) == (2, 0)
    left_out = json.loads((tmp_path / "fhir" / "b.fhir.json").read_text())["entry"][-1]["resource"]
    assert left_out["issue"][0]["details"]["text"] == "Document 2 (pages 3): its patient is in conflict."
    shown = pecia("result", "--batch", "week", "--format", "fhir", "-o", tmp_path / "each")
    assert (shown.exit_code, shown.output.count("is held back")) == (1, 1)
    with pytest.raises(InvalidFormatError, match="single files"):
        client.export(tmp_path, layout=Layout(), format="jsonl", batch="week")
