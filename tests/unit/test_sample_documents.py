from __future__ import annotations

from pathlib import Path

import pypdfium2
import pytest
from PIL import Image

from pecia_schemas import DocumentType
from pecia_workers.local.accuracy import accuracy
from pecia_workers.local.sample_documents import (
    SampleDocument,
    sample_document,
    sample_documents,
    write_damaged_png,
    write_pdf,
    write_png,
    write_scan,
)


def test_the_same_seed_draws_the_same_pixels_and_another_seed_other_text() -> None:
    first, again, other = (sample_document(DocumentType.LAB_RESULT, seed) for seed in (1, 1, 2))

    assert first.pages[0].image.tobytes() == again.pages[0].image.tobytes()
    assert first.text == again.text != other.text


@pytest.mark.parametrize("document", sample_documents(3), ids=lambda document: document.name)
def test_nothing_is_drawn_over_the_pages_edge(document: SampleDocument) -> None:
    for page in document.pages:
        box = Image.eval(page.image.convert("L"), lambda grey: 255 - grey).getbbox()
        assert box is not None
        assert min(box[0], box[1]) >= 100
        assert box[2] <= page.image.width - 100
        assert box[3] <= page.image.height - 100


def test_files_hold_what_their_names_say(tmp_path: Path) -> None:
    chart = sample_document(DocumentType.CHART)

    write_pdf(chart, tmp_path / "chart.pdf")
    write_png(chart, tmp_path / "chart.png")
    write_scan(chart, tmp_path / "scan.jpg", degrees=90)
    write_damaged_png(chart, tmp_path / "damaged.png")

    with pypdfium2.PdfDocument(tmp_path / "chart.pdf") as pdf:
        assert len(pdf) == 4
    with Image.open(tmp_path / "chart.png") as png, Image.open(tmp_path / "scan.jpg") as scan:
        assert scan.size == png.size[::-1]
    with Image.open(tmp_path / "damaged.png") as damaged, pytest.raises(OSError, match="truncated"):
        damaged.load()


@pytest.mark.parametrize(
    ("read", "known", "expected"),
    [("ab c\nd", "a bcd", 1.0), ("abxd", "abcd", 0.75), ("", "abcd", 0.0), ("", "", 1.0), ("x", "", 0.0)],
)
def test_accuracy_counts_wrong_characters_and_no_white_space(read: str, known: str, expected: float) -> None:
    assert accuracy(read, known) == expected
