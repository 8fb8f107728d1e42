"""A document goes in and its text comes out, page by page. What cannot be read is in test_every_input.py."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fixture_types import Draw
from limits import WAIT_S
from pecia import Document, Page, ReadDocument, Verdict
from pecia_workers.local import samples
from pictures import encoded


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


def test_a_picture_is_read(fleet: Any, picture: Callable[[str], Image.Image]) -> None:
    image = picture("Sent as a picture")
    page = only_page(read(fleet, encoded(image, "PNG")))
    assert page.text == "Sent as a picture"
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
