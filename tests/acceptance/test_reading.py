"""A document goes in and its text comes out, page by page. What cannot be read is in test_every_input.py."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from command import run_pecia
from limits import WAIT_S
from pecia import Document, DocumentType, Page, ReadDocument, Verdict
from pecia_schemas import TokenUsage
from pecia_workers.local import sample_documents as samples
from pecia_workers.local.accuracy import accuracy
from pictures import encoded

GOOD = 0.99

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


def read(fleet: Any, source: bytes | Path, **options: Any) -> Document:
    document: Document = fleet.client.submit(ReadDocument(source, **options)).result(WAIT_S)
    return document


def only_page(document: Document) -> Page:
    assert [page.number for page in document.pages] == [1]
    assert document.failed == ()
    return document.pages[0]


def expect_lines_on_the_page(page: Page) -> None:
    assert " ".join(line.text for line in page.lines).split() == page.text.split()
    for line in page.lines:
        assert 0 <= line.box.left < line.box.right <= page.width
        assert 0 <= line.box.top < line.box.bottom <= page.height
        assert line.confidence
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
