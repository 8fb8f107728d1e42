"""Searchable PDFs: the pages look as they were read, and their text is found where it stands."""

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia.formats import pdf
from pecia_schemas.blocks import Box, Line, Word, plain_blocks
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.media import Encoding, NoPictureError, PagePictures, Picture
from pecia_schemas.results import Document, Page, PageFailure
from pecia_workers.media.pictures import compressed
from tests.shared.samples import page

SIDE = (600, 800)
LINES = (
    "Blutdruck 120/80 mmHg",
    "처방전 아목시실린 500mg",
    "患者 诊断 高血压",
    "naïve façade őű кровь Ελλάδα",
)
WORDS = st.text(st.sampled_from("aäßőЖ혈압약诊断12.,%"), min_size=1, max_size=12)


def sheet(colour: Any = (0, 0, 0)) -> NDArray[np.uint8]:
    """Return a page with a line of print in each of four places."""
    image = Image.new("RGB", SIDE, "white")
    font = ImageFont.load_default(28)
    for number in range(len(LINES)):
        ImageDraw.Draw(image).text((60, 100 * number + 60), f"Line {number}", fill=colour, font=font)
    return np.asarray(image)


def drawing(**pages: NDArray[np.uint8]) -> PagePictures:
    """Return what draws these pages, by number; there are no others."""

    def draw(number: int, *, rotation: int, skew: float) -> Picture:
        assert (rotation, skew) == (0, 0.0)
        if f"p{number}" not in pages:
            raise NoPictureError
        pixels = pages[f"p{number}"]
        encoding, data = compressed(pixels, 75)
        height, width = pixels.shape[:2]
        return Picture(encoding=encoding, data=data, width=width, height=height, dpi=72)

    return draw


def read(number: int, *texts: str, lines: bool = True) -> Page:
    boxes = [Box(left=60, top=100 * row + 60, right=540, bottom=100 * row + 90) for row in range(len(texts))]
    found = tuple(Line(text=text, box=box, confidence=0.9) for text, box in zip(texts, boxes, strict=True))
    blocks = plain_blocks("\n".join(texts), found if lines else ())
    return page(number, blocks=blocks, width=SIDE[0], height=SIDE[1])


def written(path: Path, document: Document, **pages: NDArray[np.uint8]) -> pypdfium2.PdfDocument:
    pdf.write(document, drawing(**pages), path)
    return pypdfium2.PdfDocument(path)


def texts(document: pypdfium2.PdfDocument) -> list[str]:
    return [page.get_textpage().get_text_range().replace("\r\n", "\n") for page in document]


def rendered(page: pypdfium2.PdfPage) -> NDArray[np.uint8]:
    return np.asarray(page.render(scale=1).to_pil().convert("RGB"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "read.pdf"


@given(st.lists(st.lists(WORDS, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=7))
@example([*LINES])
def test_any_words_are_extracted_in_their_order(path: Path, lines: list[str]) -> None:
    document = written(path, Document(pages=(read(1, *lines),)), p1=sheet())
    assert "".join(texts(document)).split() == " ".join(lines).split()


def test_a_line_is_found_where_it_stands(path: Path) -> None:
    text = written(path, Document(pages=(read(1, *LINES),)), p1=sheet())[0].get_textpage()
    assert text.count_rects() == len(LINES)
    for row in range(len(LINES)):
        left, bottom, right, top = text.get_rect(row)
        expected = (60, SIDE[1] - (100 * row + 90), 540, SIDE[1] - (100 * row + 60))
        assert (left, bottom, right, top) == pytest.approx(expected, abs=2)


def test_words_stand_where_they_were_read_and_are_found_as_one_text(path: Path) -> None:
    def word(text: str, left: int, right: int) -> Word:
        return Word(text=text, box=Box(left=left, top=62, right=right, bottom=88))

    words = (word("Hb", 60, 299), word("고혈압", 300, 360), word("약", 362, 380))
    line = Line(text="Hb 고혈압약", box=Box(left=60, top=60, right=380, bottom=90), words=words)
    page = read(1).model_copy(update={"blocks": plain_blocks(line.text, (line,))})
    document = written(path, Document(pages=(page,)), p1=sheet())
    text = document[0].get_textpage()
    assert texts(document) == [line.text]
    (start, _) = text.search("고").get_next() or (0, 0)
    assert text.get_charbox(start)[0] == pytest.approx(300, abs=2)


@pytest.mark.parametrize(
    ("colour", "encoding"),
    [((190, 0, 0), Encoding.RGB), ((90, 90, 90), Encoding.GREY), (None, Encoding.BILEVEL)],
)
def test_the_page_looks_as_read_and_no_text_is_seen(path: Path, colour: Any, encoding: Encoding) -> None:
    pixels = sheet(colour or (0, 0, 0))
    if colour is None:
        pixels = np.where(pixels > 127, np.uint8(255), np.uint8(0))
    assert compressed(pixels, 75)[0] is encoding
    document = written(path, Document(pages=(read(1, *LINES),)), p1=pixels)
    difference = np.abs(rendered(document[0]).astype(int) - pixels)
    assert document[0].get_size() == pytest.approx(SIDE)
    assert difference.mean() < 1.5
    assert (difference > 100).mean() < 0.001


BACKWARD = (
    "וורפרין 5 מג ליד הקיר",
    "מטפורמין 850 מג (בערב)",
    "وارفارين 5 ملغ مرة يوميا",
    "חולה Metformin בבית",
)


@pytest.mark.parametrize("known", [True, False], ids=["words", "lines"])
def test_words_from_right_to_left_are_found_by_readers(path: Path, known: bool) -> None:
    def line(text: str, top: int) -> Line:
        words, right = [], 540
        for word in text.split():
            left = right - 14 * len(word)
            words.append(Word(text=word, box=Box(left=left, top=top, right=right, bottom=top + 30)))
            right = left - 10
        box = Box(left=right + 10, top=top, right=540, bottom=top + 30)
        return Line(text=text, box=box, words=tuple(words) if known else ())

    lines = tuple(line(text, 100 * row + 60) for row, text in enumerate(BACKWARD))
    written_page = page(1, blocks=plain_blocks("\n".join(BACKWARD), lines), width=SIDE[0], height=SIDE[1])
    document = written(path, Document(pages=(written_page,)), p1=sheet())
    words = [word for text in BACKWARD for word in text.split() if word.isalnum()]
    text = document[0].get_textpage()
    assert [word for word in words if text.search(word).get_next() is None] == []
    if poppler := shutil.which("pdftotext"):
        command = [poppler, str(path), "-"]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert [word for word in words if word not in found] == []


def test_a_page_without_lines_has_its_text_in_order(path: Path) -> None:
    paragraph = " ".join(f"word{number}" for number in range(400))
    document = written(path, Document(pages=(read(1, *LINES, paragraph, lines=False),)), p1=sheet())
    assert "".join(texts(document)).split() == " ".join((*LINES, paragraph)).split()
    rects = document[0].get_textpage()
    boxes = [rects.get_rect(row) for row in range(rects.count_rects())]
    assert len(boxes) > 20, "a paragraph is more than one row"
    left, bottom, right, top = zip(*boxes, strict=True)
    assert min(left + bottom) >= 0
    assert max(right) <= SIDE[0]
    assert max(top) <= SIDE[1]


def test_text_without_a_place_is_there_beside_lines_that_have_one(path: Path) -> None:
    (seen,) = read(1, "Hb 12").lines
    blocks = (*plain_blocks("Hb 12\n5 mg", (seen,)), *plain_blocks("twice a day"))
    document = written(
        path, Document(pages=(page(1, blocks=blocks, width=SIDE[0], height=SIDE[1]),)), p1=sheet()
    )
    assert "".join(texts(document)).split() == ["Hb", "12", "5", "mg", "twice", "a", "day"]


def test_a_page_without_text_or_picture_says_why_and_the_file_tells_nothing_else(path: Path) -> None:
    failed = tuple(PageFailure(number=number, failure=Failure.of(FailureCode.DAMAGED)) for number in (2, 3))
    document = written(path, Document(pages=(read(1, *LINES),), failed=failed), p2=sheet())
    assert len(document) == 3
    undrawn, *others = texts(document)
    assert undrawn.startswith("The picture of page 1 is missing.")
    assert LINES[1] in undrawn
    assert others == ["", "Page 3 is missing: damaged."]
    assert np.abs(rendered(document[1]).astype(int) - sheet()).mean() < 1.5
    told = {name: value for name, value in document.get_metadata_dict().items() if value}
    assert told.pop("Subject") == "Page 2 is missing: damaged. Page 3 is missing: damaged."
    assert list(told) == ["Producer"]
    assert str(path.parent).encode() not in path.read_bytes()


def test_pages_beyond_one_piece_keep_their_order_and_leave_no_file(path: Path) -> None:
    pages = tuple(read(number, f"page {number}") for number in range(1, 41))
    small = {f"p{number}": sheet()[:300, :400] for number in range(1, 41)}
    document = written(path, Document(pages=pages), **small)
    assert texts(document) == [f"page {number}" for number in range(1, 41)]
    assert list(path.parent.iterdir()) == [path]


_PEAK = """
import resource, sys
from pathlib import Path
from pecia.formats import pdf
from pecia_schemas.results import Document, Page
from pecia_schemas.media import Encoding, Picture

def draw(number, *, rotation, skew):
    return Picture(encoding=Encoding.GREY, data=bytes([number % 256]) * 200_000, width=9, height=9, dpi=72)

pages = [Page(number=n, verdict="ok", width=9, height=9, engine="") for n in range(1, int(sys.argv[2]) + 1)]
pdf.write(Document(pages=pages), draw, Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_pages(path: Path) -> None:
    def peak(pages: int) -> int:
        command = [sys.executable, "-c", _PEAK, str(path), str(pages)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1024

    grown = peak(320) - peak(32)
    assert path.stat().st_size > 32 * 200_000
    assert grown < 15 * 10**6, f"grown by {grown:,} bytes with {288 * 200_000:,} bytes of pictures"


@pytest.mark.parametrize(
    ("dpi", "pixels", "points"),
    [
        (150, (1240, 1754), (595.2, 841.9)),
        (None, (4000, 3000), (842, 631.5)),
        (36, (20_000, 100), (14_400, 72)),
    ],
)
def test_a_sheet_is_as_large_as_its_paper_or_as_a4(
    path: Path, dpi: float | None, pixels: tuple[int, int], points: tuple[float, float]
) -> None:
    buffer = io.BytesIO()
    Image.new("L", pixels, 255).save(buffer, "JPEG")
    width, height = pixels
    picture = Picture(encoding=Encoding.GREY, data=buffer.getvalue(), width=width, height=height, dpi=dpi)

    def draw(number: int, *, rotation: int, skew: float) -> Picture:
        assert (number, rotation, skew) == (1, 0, 0.0)
        return picture

    pdf.write(Document(pages=(read(1, "x"),)), draw, path)
    assert pypdfium2.PdfDocument(path)[0].get_size() == pytest.approx(points, abs=0.1)
