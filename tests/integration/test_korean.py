"""Korean on the CPU: read by Tesseract where it is, refused with what to install where it is not."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.font_manager import findfont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from pecia import Document, Job, JobFailedError, ReadDocument
from pecia_schemas.blocks import DoubtReason
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Page, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.registry import create_engine
from pecia_workers.media.decoding import prepare
from pecia_workers.media.samples import accuracy, sample_document
from pecia_workers.protocol.base import EngineRequest, Generation
from tests.shared.korean import korean_font
from tests.shared.korean_pages import KoreanPage, korean_pages

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]

Work = Callable[..., Job[Document]]

pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")


@pytest.fixture(scope="module")
def pages() -> tuple[KoreanPage, ...]:
    return korean_pages(korean_font())


def read(settings: WorkerSettings, *pages: NDArray[np.uint8], language: str | None) -> list[Generation]:
    async def story() -> list[Generation]:
        engine = create_engine(settings)
        await engine.start()
        try:
            return await asyncio.gather(
                *(
                    engine.generate(
                        EngineRequest(id=str(n), images=(page,), workload="mixed", language=language)
                    )
                    for n, page in enumerate(pages)
                )
            )
        finally:
            await engine.stop()

    return asyncio.run(story())


@pytest.fixture(scope="module")
def answers(tessdata: str, pages: tuple[KoreanPage, ...]) -> list[Generation]:
    """What the fleet's own engine makes of the Korean pages."""
    settings = WorkerSettings(tessdata=tessdata, engine_processes=2)
    return read(settings, *(page.pixels for page in pages), language="ko")


def test_korean_pages_are_read_with_at_most_three_errors_in_a_hundred_characters(
    pages: tuple[KoreanPage, ...], answers: list[Generation]
) -> None:
    assert {answer.verdict for answer in answers} == {Verdict.OK}
    assert {answer.engine for answer in answers} == {"tesseract"}
    known = "\n".join(page.text for page in pages)
    assert accuracy("\n".join(answer.text for answer in answers), known) >= 0.97


def test_words_are_parted_as_on_the_page_not_after_every_syllable(
    pages: tuple[KoreanPage, ...], answers: list[Generation]
) -> None:
    for page, answer in zip(pages, answers, strict=True):
        assert len(answer.text.split()) == pytest.approx(len(page.text.split()), rel=0.15)


def test_a_row_of_a_table_is_one_line_with_tabs_between_its_cells(
    pages: tuple[KoreanPage, ...], answers: list[Generation]
) -> None:
    [table] = [answer for page, answer in zip(pages, answers, strict=True) if page.name == "results"]
    assert "총콜레스테롤\t212\tmg/dL\t0-200" in table.text.splitlines()


def test_lines_say_where_they_stand_and_how_sure_they_are(answers: list[Generation]) -> None:
    title = answers[0].lines[0]
    assert title.text == "진료 소견서"
    assert 110 < title.box.left < 130
    assert 115 < title.box.top < title.box.bottom < 165
    assert title.confidence
    assert 0.5 < title.confidence <= 1


def test_a_page_whose_language_is_not_named_is_read_by_the_other_library(tessdata: str) -> None:
    page = sample_document(DocumentType.PRESCRIPTION).pages[0]
    settings = WorkerSettings(tessdata=tessdata, engine_processes=1)
    [answer] = read(settings, np.array(page.image), language=None)
    assert answer.engine == "rapidocr"
    assert accuracy(answer.text, "\n".join(page.lines)) >= 0.99


def written(text: str, *, blur: float = 0) -> NDArray[np.uint8]:
    """A page of text in a font that knows Cyrillic."""
    page = Image.new("RGB", (1240, 500), "white")
    font = ImageFont.truetype(findfont("DejaVu Sans"), 24)
    ImageDraw.Draw(page).text((80, 60), text, fill="black", font=font, spacing=20)
    return np.array(page.filter(ImageFilter.GaussianBlur(blur)))


RUSSIAN = written(
    "Пациент Иван Петров\nДиагноз: гипертония, диабет\nНазначен аспирин один раз каждый день утром"  # noqa: RUF001
)
BLURRED = written("Patient John Smith, born in March\nDiagnosis hypertension, type 2 diabetes", blur=3.5)


def test_a_page_is_read_by_what_knows_its_script(tessdata: str, pages: tuple[KoreanPage, ...]) -> None:
    english = np.array(sample_document(DocumentType.PRESCRIPTION).pages[0].image)
    settings = WorkerSettings(tessdata=tessdata, engine_processes=2)
    for language in (None, "en,ko,zh"):
        korean, others = read(settings, pages[0].pixels, english, language=language)
        assert [korean.engine, others.engine] == ["tesseract", "rapidocr"]
        assert accuracy(korean.text, pages[0].text) >= 0.97
        assert others.verdict is Verdict.OK


def test_a_script_that_nothing_reads_is_named_and_faint_print_is_not_one(
    tmp_path: Path, pages: tuple[KoreanPage, ...]
) -> None:
    settings = WorkerSettings(tessdata=str(tmp_path), engine_processes=2)
    korean, russian, blurred = read(settings, pages[0].pixels, RUSSIAN, BLURRED, language="en,ko")
    unread = [
        [doubt.other for doubt in one.doubts if doubt.reason is DoubtReason.LANGUAGE_UNREAD]
        for one in (korean, russian, blurred)
    ]
    assert unread == [["Hangul"], [""], []]
    assert (korean.verdict, russian.verdict) == (Verdict.UNREADABLE, Verdict.UNREADABLE)


def test_a_page_with_a_fold_and_no_text_is_blank_in_korean_too(tessdata: str) -> None:
    page = np.full((600, 600, 3), 255, dtype=np.uint8)
    page[300:303] = 0
    [answer] = read(WorkerSettings(engine="tesseract", tessdata=tessdata), page, language="ko")
    assert (answer.verdict, answer.text, answer.lines) == (Verdict.BLANK, "", ())


@pytest.fixture
def read_scan(run_page: Work) -> Work:
    """Submits a picture and runs it on a worker with the fleet's own engine."""

    def run(pixels: NDArray[np.uint8], language: str, **settings: Any) -> Job[Document]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return run_page(ReadDocument(file.getvalue(), language=language), engine_processes=1, **settings)

    return run


def test_a_fleet_without_a_setting_reads_a_korean_scan_that_stands_on_its_head(
    read_scan: Work, tessdata: str, pages: tuple[KoreanPage, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSDATA_PREFIX", tessdata)
    scan = np.ascontiguousarray(np.rot90(pages[0].pixels, 2))
    job = read_scan(scan, "ko")
    page: Page = job.result(timeout=0).pages[0]
    assert (page.engine, page.rotation) == ("tesseract", 180)
    assert page.verdict in {Verdict.OK, Verdict.REVIEW}  # as sure as Tesseract's version is of its words
    assert accuracy(page.text, pages[0].text) >= 0.95


def test_a_fleet_that_lacks_the_data_says_what_to_install(read_scan: Work, tmp_path: Path) -> None:
    page = np.array(sample_document(DocumentType.PRESCRIPTION).pages[0].image)
    job = read_scan(page, "ko", tessdata=str(tmp_path))
    assert job.failure
    assert job.failure.code is FailureCode.LANGUAGE_UNAVAILABLE
    with pytest.raises(JobFailedError, match=r"pecia\[korean\] .*tesseract-ocr-kor.*TESSDATA_PREFIX"):
        job.result(timeout=0)


def test_korean_pages_that_lie_turned_come_back_and_upright_ones_stay(pages: tuple[KoreanPage, ...]) -> None:
    upright = [prepare(page.pixels).rotation for page in pages]
    on_head = [prepare(np.ascontiguousarray(np.rot90(page.pixels, 2))).rotation for page in pages]
    assert upright == [0] * len(pages)
    assert on_head.count(180) >= len(pages) - 1
