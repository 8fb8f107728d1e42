"""A bundle from the client to the worker and back: its pages are read once, then it is split."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path

import pikepdf
import pytest
from pydantic import SecretStr
from typer.testing import Result

from pecia import (
    Bundle,
    BundledDocument,
    Client,
    InvalidFormatError,
    InvalidOptionError,
    JobState,
    ReadBundle,
    saving,
)
from pecia_schemas.bundles import Cut, DocumentKind, DocumentPart, Subject
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


def test_pages_that_a_gateway_drew_of_a_whole_bundle_are_no_document_of_it(tmp_path: Path) -> None:
    cut = Cut(page=1, probability=1)
    part = DocumentPart(number=1, pages=(1,), cut=cut, kind=DocumentKind.OTHER, kind_probability=1)
    with pytest.raises(InvalidFormatError, match="as a whole"):
        saving.write_bytes(b"%PDF", BundledDocument(pages=(), part=part), tmp_path / "one.pdf")
    assert not [*tmp_path.iterdir()]
