"""`pages=` and `password=` from the client to the worker and back: what is cut, read, refused, told and forgotten."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import pikepdf
import pypdfium2
import pytest
from pydantic import SecretStr, ValidationError
from typer.testing import Result

from pecia import Client, Job, JobState, Page, ReadDocument
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Document
from tests.shared.fixture_types import Picture
from tests.shared.house import House
from tests.shared.limits import WAIT_S, eventually
from tests.shared.overhearing import redis_keys
from tests.shared.snippets import blocks

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]

PASSWORD = "Quillfeather-1987"
Revision = Literal[3, 4, 6]  # of PDF's standard security handler
RC4: Final = 3
RC4_WITH_FILTERS: Final = 4
AES_256: Final = 6
Work = Callable[[Job[Document]], Job[Document]]


def pdf(pages: int) -> bytes:
    """A PDF whose pages are as wide, in points, as a hundred and their numbers."""
    document = pypdfium2.PdfDocument.new()
    for number in range(1, pages + 1):
        document.new_page(100 + number, 72)
    buffer = io.BytesIO()
    document.save(buffer)
    document.close()
    return buffer.getvalue()


def locked(pages: int, revision: Revision = AES_256) -> bytes:
    """The same under a password."""
    buffer = io.BytesIO()
    with pikepdf.open(io.BytesIO(pdf(pages))) as document:
        lock = pikepdf.Encryption(
            owner="owner", user=PASSWORD, R=revision, aes=revision == AES_256, metadata=revision == AES_256
        )
        document.save(buffer, encryption=lock)
    return buffer.getvalue()


@pytest.fixture
def work(house: House) -> Work:
    """Runs all parts of a job on a worker."""

    def run(job: Job[Document]) -> Job[Document]:
        house.work_off(job, max_pages=5)
        return job

    return run


def numbers(pages: tuple[Page, ...]) -> list[tuple[int, int]]:
    """Number and width, in pixels at 72 dpi, of each page."""
    return [(page.number, round(page.width * 72 / 150)) for page in pages]


def failure(job: Job[Document]) -> tuple[FailureCode, str]:
    """Code of a job that failed, and what was found, which stands before the advice."""
    assert job.state is JobState.FAILED
    assert job.failure is not None
    return job.failure.code, job.failure.message.removesuffix(job.failure.code.advice).strip()


def test_the_pages_asked_for_keep_their_numbers(client: Client, work: Work) -> None:
    job = work(client.submit(ReadDocument(pdf(9), pages="8-9,2,2-3")))
    assert job.state is JobState.SUCCEEDED
    assert (job.progress.done, job.progress.total) == (4, 4)
    assert numbers(job.result(timeout=0).pages) == [(2, 102), (3, 103), (8, 108), (9, 109)]
    assert [page.number for page in job.pages(timeout=0)] == [2, 3, 8, 9]


@pytest.mark.parametrize(
    ("pages", "stage"), [("1", "read"), ("1-", "read"), ("2", "ingest"), ("1-2", "ingest")]
)
def test_a_picture_goes_straight_to_its_lane_if_its_page_is_all_that_is_asked_for(
    client: Client, picture: Picture, house: House, pages: str, stage: str
) -> None:
    client.submit(ReadDocument(picture(), pages=pages))
    assert house.query("SELECT stage FROM parts") == [(stage,)]


def test_what_the_documentation_shows_is_what_happens(
    client: Client, work: Work, stores: dict[str, str], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text()
    _, some_pages, a_password = blocks(page, "python")
    (tmp_path / "chart.pdf").write_bytes(pdf(21))
    (tmp_path / "letter.pdf").write_bytes(locked(1))
    shown = some_pages + a_password.replace("19870431", PASSWORD)
    command = [sys.executable, "-c", shown]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **stores}, stdout=subprocess.PIPE, text=True
    ) as user:
        work(eventually(lambda: next(client.jobs(), None)))
        told, _ = user.communicate(timeout=WAIT_S)
    letter = next(job for job in client.jobs() if not job.done)

    assert [int(line) for line in told.split()] == [1, 2, 7, 20, 21]
    assert work(letter).state is JobState.SUCCEEDED


@pytest.mark.parametrize("revision", [RC4, RC4_WITH_FILTERS, AES_256])
def test_the_right_password_opens_a_pdf_after_a_retry_too_and_others_are_told(
    client: Client, work: Work, revision: Revision
) -> None:
    document = locked(3, revision)
    job = client.submit(
        ReadDocument(document, pages="2-", password=SecretStr(PASSWORD)), idempotency_key="scan 1"
    )
    job.cancel()
    job.retry()
    assert numbers(work(job).result(timeout=0).pages) == [(2, 102), (3, 103)]
    again = client.submit(ReadDocument(document, pages="2-", password="two"), idempotency_key="scan 1")
    assert (again.id, again.created) == (job.id, False), "another password is the same work"
    missing, wrong = (
        work(client.submit(ReadDocument(document, password=password))) for password in (None, "Sampleton")
    )
    assert failure(missing) == (FailureCode.ENCRYPTED, "The PDF asks for a password.")
    assert failure(wrong) == (FailureCode.ENCRYPTED, "The PDF cannot be opened with the given password.")
    assert "with the right `password=`" in FailureCode.ENCRYPTED.advice


def test_a_password_is_told_to_nobody_and_lies_in_the_jobs_row_alone(
    client: Client, work: Work, house: House, redis_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    task = ReadDocument(locked(1), password=PASSWORD)
    job = client.submit(task)
    heard = redis_keys(redis_url)
    work(job)
    assert job.state is JobState.SUCCEEDED
    said = repr(task), str(task), repr(job), heard, redis_keys(redis_url), *capfd.readouterr()
    assert PASSWORD not in "".join(said)
    assert str(house.query("SELECT CAST(jobs AS text) FROM jobs")).count(PASSWORD) == 1


@pytest.mark.parametrize("password", ["", "x" * 1_001, "a\0b", 1987, ["Sampleton"]])
def test_what_is_no_password_is_refused_where_the_task_is_made_and_not_quoted(password: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ReadDocument(b"", password=password)
    assert "Sampleton" not in str(caught.value)
    assert "1987" not in str(caught.value)


def test_files_attached_to_a_pdf_are_told(client: Client, work: Work, pecia: Callable[..., Result]) -> None:
    buffer = io.BytesIO()
    with pikepdf.open(io.BytesIO(pdf(2))) as document:
        document.attachments["letter.pdf"] = pdf(1)
        document.save(buffer)
    job = work(client.submit(ReadDocument(buffer.getvalue())))
    assert (job.state, job.result().attachments) == (JobState.SUCCEEDED, 1)
    assert not any(page.doubts for page in job.result().pages)
    assert "1 attached file was not read" in pecia("result", job.id).output
    assert json.loads(pecia("result", job.id, "--json").output)["attachments"] == 1
    again = work(client.submit(ReadDocument(pdf(2))))
    assert again.result().attachments == 0
    assert "attach" not in pecia("result", again.id).output + pecia("result", again.id, "--json").output
