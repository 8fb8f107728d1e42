"""A document goes in and its text comes out, page by page; what cannot be read costs one clear error."""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
from PIL import Image

from command import run_pecia
from limits import WAIT_S
from pecia import (
    CaptionVideo,
    Document,
    DocumentType,
    FailureCode,
    Job,
    JobFailedError,
    JobState,
    Page,
    ReadDocument,
    Verdict,
)
from pecia_schemas import TokenUsage
from pecia_workers.local import sample_documents as samples
from pecia_workers.local.accuracy import accuracy
from videos import video

GOOD = 0.99
SIDEWAYS_EXIF = {0x0112: 6}  # to be shown turned clockwise by 90 degrees

Draw = Callable[[str], bytes]


@pytest.fixture
def picture(drawn: Draw) -> Callable[[str], Image.Image]:
    return lambda text: Image.open(io.BytesIO(drawn(text))).convert("RGB")


@pytest.fixture
def pages(picture: Callable[[str], Image.Image]) -> Callable[..., bytes]:
    """A document of pages with one line of print each, as `kind`."""

    def written(kind: str, texts: list[str]) -> bytes:
        first, *others = map(picture, texts)
        return encoded(first, kind, save_all=True, append_images=others, resolution=samples.DPI)

    return written


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def read(fleet: Any, source: bytes | Path, **options: Any) -> Document:
    document: Document = fleet.client.submit(ReadDocument(source, **options)).result(WAIT_S)
    return document


def only_page(document: Document) -> Page:
    assert [page.number for page in document.pages] == [1]
    assert document.failed == ()
    return document.pages[0]


def expect_lines_on_the_page(page: Page) -> None:
    assert "\n".join(line.text for line in page.lines) == page.text
    for line in page.lines:
        assert 0 <= line.box.left < line.box.right <= page.width
        assert 0 <= line.box.top < line.box.bottom <= page.height
        assert line.confidence > 0.5


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_a_picture_is_read(fleet: Any, picture: Callable[[str], Image.Image], kind: str) -> None:
    image = picture(f"Sent as {kind} today")

    page = only_page(read(fleet, encoded(image, kind)))

    assert page.text == f"Sent as {kind} today"
    assert (page.verdict, page.rotation, page.engine) == (Verdict.OK, 0, "rapidocr")
    assert (page.width, page.height) == image.size
    assert page.confidence is not None and page.confidence > 0.9  # noqa: PT018  narrows the type
    expect_lines_on_the_page(page)


@pytest.mark.parametrize("kind", ["TIFF", "PDF"])
def test_all_pages_are_read_and_keep_their_order(fleet: Any, pages: Callable[..., bytes], kind: str) -> None:
    texts = [f"Sheet {number} of the file" for number in range(1, 8)]

    document = read(fleet, pages(kind, texts))

    assert [page.number for page in document.pages] == list(range(1, 8))
    assert document.text == "\f".join(texts)
    for page in document.pages:
        expect_lines_on_the_page(page)


def test_a_photo_is_turned_as_its_camera_noted(fleet: Any, picture: Callable[[str], Image.Image]) -> None:
    upright = picture("Held the wrong way round")
    exif = Image.Exif()
    exif.update(SIDEWAYS_EXIF)

    page = only_page(read(fleet, encoded(upright.rotate(90, expand=True), "JPEG", exif=exif)))

    assert page.text == "Held the wrong way round"
    assert (page.width, page.height) == upright.size
    assert page.rotation == 0


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_page_that_lies_turned_in_the_scanner_comes_back_upright(
    fleet: Any, tmp_path: Path, degrees: int
) -> None:
    sample = samples.sample_document(DocumentType.PRESCRIPTION, seed=degrees)
    samples.write_scan(sample, tmp_path / "scan.jpg", degrees=degrees)

    page = only_page(read(fleet, tmp_path / "scan.jpg"))

    assert page.rotation == 360 - degrees
    assert (page.width, page.height) == sample.pages[0].image.size
    assert accuracy(page.text, sample.text) >= GOOD
    expect_lines_on_the_page(page)


@pytest.mark.parametrize("kind", [kind for kind in DocumentType if kind is not DocumentType.MIXED])
def test_documents_of_every_type_are_read_to_the_letter(
    fleet: Any, tmp_path: Path, kind: DocumentType
) -> None:
    sample = samples.sample_document(kind)
    samples.write_pdf(sample, tmp_path / "document.pdf")

    document = read(fleet, tmp_path / "document.pdf", document_type=kind, language="en")

    assert len(document.pages) == len(sample.pages)
    for page, known in zip(document.pages, sample.pages, strict=True):
        assert page.verdict is Verdict.OK
        assert accuracy(page.text, "\n".join(known.lines)) >= GOOD


def test_a_blank_page_is_told_as_such_and_bothers_no_engine(fleet: Any) -> None:
    page = only_page(read(fleet, encoded(Image.new("RGB", (800, 1100), "white"), "PNG")))

    assert (page.text, page.verdict, page.lines, page.confidence) == ("", Verdict.BLANK, (), None)
    assert page.usage.prompt == page.usage.output == 0


def test_a_page_says_what_it_took(fleet: Any, drawn: Draw) -> None:
    page = only_page(read(fleet, drawn("What it took")))

    assert page.usage.prompt >= page.usage.image > 0
    assert page.usage.output > 0
    assert page.timings.queued >= 0
    assert page.timings.decode > 0
    assert page.timings.engine > 0


def test_a_language_model_says_when_its_first_token_came(
    limited_fleet: Any, pages: Callable[..., bytes]
) -> None:
    document = read(limited_fleet, pages("PDF", ["one", "two"]))

    for page in document.pages:
        assert page.timings.first_token is not None
        assert 0 < page.timings.first_token <= page.timings.engine
    assert document.usage.output == sum(page.usage.output for page in document.pages) > 0


# What cannot be read


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def png_header(width: int, height: int) -> bytes:
    """The PNG of a huge white picture in a few bytes: the header promises what never comes."""
    small = encoded(Image.new("RGB", (1, 1)), "PNG")
    dimensions = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    chunk = b"IHDR" + dimensions + small[24:29]
    return small[:12] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + small[33:]


def locked_pdf() -> bytes:
    """A PDF with a password that is not the empty one: no key fits its check value."""
    nonsense = b"<" + b"ab" * 32 + b">"
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 72 72] >>",
        b"<< /Filter /Standard /V 1 /R 2 /P -4 /O " + nonsense + b" /U " + nonsense + b" >>",
    )
    body = b"".join(b"%d 0 obj %b endobj\n" % (number, text) for number, text in enumerate(objects, start=1))
    return b"%PDF-1.4\n" + body + b"trailer << /Root 1 0 R /Size 5 /Encrypt 4 0 R /ID [<00> <00>] >>\n%%EOF"


PRINT = Image.effect_noise((300, 200), 80)

BAD_FILES = {
    "web page": (b"<!doctype html><title>Results</title>", FailureCode.UNSUPPORTED_TYPE),
    "archive": (b"PK\x03\x04" + bytes(60), FailureCode.UNSUPPORTED_TYPE),
    "no bytes": (b"", FailureCode.EMPTY),
    "cut PNG": (cut(encoded(PRINT, "PNG")), FailureCode.DAMAGED),
    "cut JPEG": (cut(encoded(PRINT, "JPEG")), FailureCode.DAMAGED),
    "cut PDF": (cut(encoded(PRINT, "PDF")), FailureCode.DAMAGED),
    "PDF with a password": (locked_pdf(), FailureCode.ENCRYPTED),
    "pixel bomb": (png_header(50_000, 50_000), FailureCode.TOO_LARGE),
}


def expect_failure(job: Job[Any], code: FailureCode) -> None:
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert job.failure.code is code
    assert job.failure.message.endswith(code.advice)
    with pytest.raises(JobFailedError) as caught:
        job.result(timeout=0)
    assert caught.value.failure == job.failure


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_ends_in_one_failure_that_says_what_to_do(fleet: Any, name: str) -> None:
    content, code = BAD_FILES[name]

    job = fleet.client.submit(ReadDocument(content)).wait(WAIT_S)

    expect_failure(job, code)
    attempts = fleet.query("SELECT attempt FROM parts WHERE job_id = %s", job.id)
    assert attempts == [(1,)]  # a damaged file does not get better by trying again


def test_the_content_decides_and_not_the_name(fleet: Any, drawn: Draw, tmp_path: Path) -> None:
    (tmp_path / "drawing.png").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "picture.pdf").write_bytes(drawn("A picture after all"))

    drawing = fleet.client.submit(ReadDocument(tmp_path / "drawing.png")).wait(WAIT_S)

    expect_failure(drawing, FailureCode.UNSUPPORTED_TYPE)
    assert read(fleet, tmp_path / "picture.pdf").text == "A picture after all"


def test_bad_files_take_nobody_down(fleet: Any, drawn: Draw) -> None:
    workers = {name: fleet.pid(name) for name in ("ingest", "engine")}
    bad = [ReadDocument(content) for content, _ in BAD_FILES.values()]
    good = ReadDocument(drawn("Read all the same"))

    jobs = fleet.client.submit_many([*bad, good, *bad]).wait(WAIT_S)

    assert Counter(job.state for job in jobs) == {JobState.FAILED: 2 * len(bad), JobState.SUCCEEDED: 1}
    assert jobs[len(bad)].result(timeout=0).text == "Read all the same"
    assert {name: fleet.pid(name) for name in workers} == workers


def test_one_broken_page_leaves_the_others(fleet: Any, pages: Callable[..., bytes]) -> None:
    whole = pages("PDF", ["First sheet", "Second sheet", "Third sheet"])
    broken = whole.replace(b"/Kids [ 1 0 R 3 0 R 5 0 R ]", b"/Kids [ 1 0 R 0 0 R 5 0 R ]")
    assert broken != whole

    job = fleet.client.submit(ReadDocument(broken)).wait(WAIT_S)

    assert job.state is JobState.PARTIAL
    document = job.result(timeout=0)
    assert [(page.number, page.text) for page in document.pages] == [(1, "First sheet"), (3, "Third sheet")]
    assert [(page.number, page.failure.code) for page in document.failed] == [(2, FailureCode.DAMAGED)]
    assert (job.progress.done, job.progress.failed, job.progress.total) == (2, 1, 3)


def test_a_document_of_too_many_pages_is_refused_whole(fleet: Any, tmp_path: Path) -> None:
    document = pypdfium2.PdfDocument.new()
    for _ in range(fleet.settings.max_pages + 1):
        document.new_page(100, 100).close()
    document.save(tmp_path / "long.pdf")
    document.close()

    job = fleet.client.submit(ReadDocument(tmp_path / "long.pdf")).wait(WAIT_S)

    expect_failure(job, FailureCode.TOO_MANY_PAGES)
    assert job.progress.finished == 0


def test_work_that_no_engine_can_do_fails_at_once(fleet: Any) -> None:
    job = fleet.client.submit(CaptionVideo(b"\x00\x00\x00\x18ftypmp42" + bytes(64))).wait(WAIT_S)

    expect_failure(job, FailureCode.NO_ENGINE)


def test_fields_of_a_document_that_no_engine_fills_fail_before_it_is_cut(
    fleet: Any, pages: Callable[..., bytes]
) -> None:
    form = {"type": "object", "properties": {"drug": {"type": "string"}}}
    job = fleet.client.submit(ReadDocument(pages("PDF", list("ab")), fields=form)).wait(WAIT_S)

    expect_failure(job, FailureCode.FIELDS_UNAVAILABLE)
    assert job.progress.total == 0


def test_work_that_a_worker_elsewhere_can_do_waits_for_it(fleet: Any, eventually: Callable[..., Any]) -> None:
    elsewhere = (
        "INSERT INTO workers (name, role, stages, host, pid) VALUES (%s, 'engine', '{caption}', 'h', 1)"
    )
    fleet.query(elsewhere + " RETURNING name", "elsewhere")
    job = fleet.client.submit(CaptionVideo(video(1)))

    eventually(lambda: job.refresh().progress.total == 1 or job.done)

    assert job.cancel(), job.failure
    fleet.query("DELETE FROM workers WHERE name = %s RETURNING name", "elsewhere")


# Following a job


def test_pages_come_while_others_still_wait(fleet: Any, pages: Callable[..., bytes]) -> None:
    job = fleet.client.submit(ReadDocument(pages("PDF", [f"Leaf {number}" for number in range(1, 31)])))

    coming: Iterator[Page] = job.pages(timeout=WAIT_S)

    assert next(coming).text == "Leaf 1"
    assert not job.done
    assert [page.number for page in coming] == list(range(2, 31))


def test_events_tell_every_transition_once(fleet: Any, pages: Callable[..., bytes]) -> None:
    job = fleet.client.submit(ReadDocument(pages("TIFF", ["one", "two", "three"])))

    told = list(job.events(timeout=WAIT_S))

    assert [event.state for event in told if event.part_id is None] == ["queued", "running", "succeeded"]
    assert len({event.sequence for event in told}) == len(told)
    by_part: dict[Any, list[str]] = {}
    for event in told:
        assert event.job_id == job.id
        if event.part_id:
            assert event.attempt == 1
            by_part.setdefault(event.part_id, []).append(event.state)
    assert list(by_part.values()) == [["running", "done"]] * 4  # its ingest and three pages
    assert told[-1].state == "succeeded"
    assert told[0].actor.startswith("client:")


def test_jobs_are_found_again_by_what_was_attached(fleet: Any, drawn: Draw) -> None:
    both = {"ward": "7b", "case": "A-1"}
    first = fleet.client.submit(ReadDocument(drawn("Attached")), metadata=both).wait(WAIT_S)
    fleet.client.submit(ReadDocument(drawn("Attached")), metadata={"ward": "7b"}).wait(WAIT_S)

    assert len(list(fleet.client.jobs(metadata={"ward": "7b"}))) == 2
    assert [job.id for job in fleet.client.jobs(metadata=both, status="succeeded")] == [first.id]
    assert list(fleet.client.jobs(metadata={"ward": "7c"})) == []


def test_a_repeated_submit_is_the_same_job(fleet: Any, drawn: Draw) -> None:
    task = ReadDocument(drawn("Only once"))
    first = fleet.client.submit(task, idempotency_key="only-once")
    first.wait(WAIT_S)

    again = fleet.client.submit(task, idempotency_key="only-once")

    assert first.created
    assert not again.created
    assert (again.id, again.state) == (first.id, JobState.SUCCEEDED)
    assert fleet.query("SELECT count(*) FROM parts WHERE job_id = %s", first.id) == [(1,)]


def test_usage_adds_up_what_the_documents_say_they_took(fleet: Any, pages: Callable[..., bytes]) -> None:
    sources = [
        (pages("TIFF", ["one", "two"]), DocumentType.CHART),
        (pages("PNG", ["three"]), DocumentType.MIXED),
    ]
    documents = [
        fleet.client.submit(ReadDocument(source, document_type=kind), metadata={"ward": "12"})
        for source, kind in sources
    ]
    taken = sum((job.result(WAIT_S).usage for job in documents), TokenUsage())

    words = "usage --since 1h --by metadata:ward --json"
    shown = run_pecia(*words.split(), env=fleet.environment).stdout

    (ward,) = [group for group in json.loads(shown)["groups"] if group["name"] == "12"]
    assert (ward["jobs"], ward["parts"], ward["pages"]) == (2, 3, 3)
    assert TokenUsage.model_validate(ward["tokens"]) == taken
    assert min(taken.prompt, ward["engine_s"], ward["decode_s"], ward["queued_s"]["p95"]) > 0
    assert [job.usage().parts for job in documents] == [2, 1]
