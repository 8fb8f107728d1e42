"""The CPU engine on documents whose text is known; nothing that it loads reports home."""

import asyncio
import operator
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from pydantic import TypeAdapter

from pecia.evaluation.metrics import compared
from pecia_schemas.blocks import Box, DoubtReason, text_of
from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.cpu.ocr_engine import OcrEngine, PageRead
from pecia_workers.engines.registry import create_engine
from pecia_workers.media import frames
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits
from pecia_workers.media.samples import WRITERS, accuracy, sample_document, write_scan
from pecia_workers.protocol.base import EngineError, EngineRequest, Generation, Piece
from pecia_workers.reading.ladder import judged
from tests.shared.command import ran
from tests.shared.exact_pages import table_in_a_column
from tests.shared.forking import forked_for
from tests.shared.limits import WAIT_S, until
from tests.shared.ocr import witness_process
from tests.shared.value_pages import value_pages

pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")

pytestmark = pytest.mark.gate

Read = Callable[..., list[Generation]]


def request(pixels: NDArray[np.uint8], number: int = 0) -> EngineRequest:
    return EngineRequest(id=str(number), images=(pixels,), workload=DocumentType.MIXED)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[asyncio.Runner, OcrEngine]]:
    """One engine, whose processes load their models once, and the loop that it runs on."""
    engine = create_engine(WorkerSettings(engine="rapidocr", engine_processes=2))
    assert isinstance(engine, OcrEngine)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        yield runner, engine
        runner.run(engine.stop())


@pytest.fixture(scope="module")
def read(running: tuple[asyncio.Runner, OcrEngine]) -> Read:
    """Reads pages."""
    runner, engine = running

    async def story(pages: tuple[NDArray[np.uint8], ...]) -> list[Generation]:
        return await asyncio.gather(*(engine.generate(request(page, n)) for n, page in enumerate(pages)))

    return lambda *pages: runner.run(story(pages))


READ_ONE_PAGE = """
import sys

import numpy as np

from pecia_workers.engines.cpu import rapidocr
from pecia_workers.media.orientation import line_classifier

exec(sys.argv[2])
rapidocr.load_model()
print(rapidocr.read_page(np.load(sys.argv[1])).model_dump_json())
print(5e-324 * 1.0 == 0)
"""


def read_after(statement: str, page: NDArray[np.uint8], directory: Path) -> tuple[PageRead, bool]:
    """Return how a fresh process reads a page, and whether it takes subnormal numbers for zero."""
    np.save(directory / "page.npy", page)
    ended = ran(sys.executable, "-c", READ_ONE_PAGE, directory / "page.npy", statement)
    assert ended.returncode == 0, ended.stderr
    answer, flushed = ended.stdout.splitlines()
    return PageRead.model_validate_json(answer), flushed == "True"


def test_engine_processes_take_subnormal_numbers_for_zero(running: tuple[asyncio.Runner, OcrEngine]) -> None:
    runner, engine = running
    form = frames.plain(TypeAdapter(float))
    product = engine._processes.call(form, operator.mul, 5e-324, 1.0, timeout=WAIT_S)
    assert runner.run(product) == 0.0


@pytest.mark.parametrize("kind", [DocumentType.LAB_RESULT, DocumentType.PRESCRIPTION])
def test_what_is_read_is_the_same_with_subnormal_numbers(tmp_path: Path, kind: DocumentType) -> None:
    page = np.array(sample_document(kind, seed=7).pages[0].image)
    read, flushed = read_after("", page, tmp_path)
    as_read, as_flushed = read_after("line_classifier()", page, tmp_path)  # the first network decides
    assert (flushed, as_flushed) == (True, False)
    assert read == as_read


def test_upright_pages_of_every_type_have_at_most_one_error_in_a_hundred(read: Read) -> None:
    documents = [sample_document(kind, seed=5) for kind in WRITERS]
    known = [page for document in documents for page in document.pages[:1]]
    answers = read(*(np.array(page.image) for page in known))
    for answer, page in zip(answers, known, strict=True):
        assert answer.verdict is Verdict.OK
        assert accuracy(answer.text, "\n".join(page.lines)) >= 0.99


@pytest.mark.parametrize("degrees", [90, 180])
def test_a_turned_noisy_scan_is_read_as_well(read: Read, tmp_path: Path, degrees: int) -> None:
    document = sample_document(DocumentType.LAB_RESULT, seed=6)
    write_scan(document, tmp_path / "scan", degrees=degrees)
    page = load_page(tmp_path / "scan", 0, Limits.of(WorkerSettings()))
    [answer] = read(page.pixels)
    assert accuracy(answer.text, document.text) >= 0.99


def test_lines_say_where_they_stand_and_their_words_inside_of_them(read: Read) -> None:
    [answer] = read(np.array(sample_document(DocumentType.DIAGNOSIS).pages[0].image))

    title = answer.lines[0]
    assert title.text == "Medical Certificate of Diagnosis"
    assert 100 < title.box.left < 125
    assert 100 < title.box.top < title.box.bottom < 180
    assert title.confidence
    assert title.confidence > 0.9
    for line in answer.lines:
        assert line.text == " ".join(word.text for word in line.words)
        lefts = [word.box.left for word in line.words]
        assert lefts == sorted(lefts)
        assert line.box.left <= lefts[0]
        assert line.words[-1].box.right <= line.box.right
        assert all(word.confidence is not None for word in line.words)


def test_small_print_on_a_large_sheet_is_read_whole(read: Read) -> None:
    page, text = printed((2129, 2560), size=17, pitch=26, lines=28)
    [answer] = read(page)
    assert answer.verdict is Verdict.OK
    assert accuracy(answer.text, text) >= 0.99
    assert answer.coverage == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("contrast", "noise"), [(30, 0), (20, 6), (12, 1)])
def test_a_faint_copy_is_read(read: Read, contrast: int, noise: float) -> None:
    page, text = printed((1754, 1240), size=26, pitch=44, lines=12)
    faint = 235 - (255 - page.astype(np.float32)) * (contrast / 255)
    grain = np.random.default_rng(0).normal(0, noise, page.shape[:2])[:, :, np.newaxis]
    [answer] = read((faint + grain).clip(0, 255).astype(np.uint8))
    assert accuracy(answer.text, text) >= 0.97


@pytest.mark.parametrize("noise", [0, 40])
def test_a_page_with_nothing_but_noise_is_blank(read: Read, noise: float) -> None:
    grain = np.random.default_rng(1).normal(235, noise, (1754, 1240))
    page = np.repeat(grain.clip(0, 255).astype(np.uint8)[:, :, np.newaxis], 3, axis=2)
    [answer] = read(page)
    assert (answer.verdict, answer.text, answer.coverage) == (Verdict.BLANK, "", None)


@pytest.mark.parametrize("degrees", [90, 270])
def test_a_heading_turned_by_a_quarter_is_read_whichever_way_it_runs(read: Read, degrees: int) -> None:
    page, _ = printed((900, 900), size=28, pitch=60, lines=8)
    heading = Image.new("L", (260, 40), 255)
    ImageDraw.Draw(heading).text((10, 2), "LUNCH TIME", fill=0, font=ImageFont.load_default(30))
    turned = np.array(heading.rotate(degrees, expand=True))
    page[300:560, 20:60] = turned[:, :, np.newaxis]
    [answer] = read(page)
    assert "LUNCH TIME" in answer.text


def calendar() -> tuple[NDArray[np.uint8], list[str]]:
    """Return a page with a digit in each cell of a calendar, dark or light, and the digits."""
    page, _ = printed((1240, 1240), size=18, pitch=36, lines=8)
    image = Image.fromarray(page)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    digits = [str(number % 9 + 1) for number in range(28)]
    for number, digit in enumerate(digits):
        x, y = 100 + 60 * (number % 7), 620 + 48 * (number // 7)
        light = number % 5 == 4
        draw.rectangle((x, y, x + 54, y + 42), fill="teal" if light else "lightyellow")
        draw.text((x + 5, y + 4), digit, fill="white" if light else "black", font=font)
    return np.array(image), digits


def test_digits_alone_in_the_cells_of_a_calendar_are_read_dark_or_light(read: Read) -> None:
    page, digits = calendar()
    [answer] = read(page)
    words = Counter(word.text for line in answer.lines for word in line.words)
    assert Counter(digits) - words == Counter()


def test_all_of_many_digits_that_stand_alone_are_read(read: Read) -> None:
    page, _ = printed((1240, 1240), size=18, pitch=36, lines=6)
    image = Image.fromarray(page)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for number in range(150):
        draw.text((80 + 40 * (number % 25), 500 + 40 * (number // 25)), "1", fill="black", font=font)
    [answer] = read(np.array(image))
    assert answer.text.split().count("1") == 150


def test_digits_alone_that_are_not_sure_are_doubts_and_no_text(tmp_path: Path) -> None:
    sure, _ = read_after("", calendar()[0], tmp_path)

    unsure, _ = read_after("rapidocr._SURE_ALONE = 2.0", calendar()[0], tmp_path)

    # Two columns come back as one, which is a doubt of its own.
    assert {doubt.reason for doubt in sure.doubts} <= {DoubtReason.TABLE_UNCLEAR}
    doubts = [doubt for doubt in unsure.doubts if doubt.reason is not DoubtReason.TABLE_UNCLEAR]
    assert doubts
    assert all(doubt.on_value for doubt in doubts)
    before, after = (Counter(text_of(page.blocks).split()) for page in (sure, unsure))
    assert before - after == Counter(doubt.text for doubt in doubts)


def test_clean_print_leaves_no_value_in_doubt(read: Read) -> None:
    [answer] = read(np.array(table_in_a_column().image.convert("RGB")))
    assert not any(doubt.on_value for doubt in answer.doubts)
    assert "Ferrous" in answer.text


def test_exponents_are_read_as_raised_characters_though_recognition_drops_them(read: Read) -> None:
    image = Image.new("RGB", (1240, 400), "white")
    draw, font, small = ImageDraw.Draw(image), ImageFont.load_default(24), ImageFont.load_default(15)
    draw.text((100, 100), "RBC 3.60 x10", fill="black", font=font)
    draw.text((100 + font.getlength("RBC 3.60 x10"), 98), "6", fill="black", font=small)
    draw.text((110 + font.getlength("RBC 3.60 x10"), 100), "/L, 25 % of 37 °C", fill="black", font=font)
    [answer] = read(np.array(image))
    assert answer.text == "RBC 3.60 x10⁶/L, 25 % of 37 °C"


def test_the_sign_of_a_footnote_is_no_digit_of_its_number(read: Read) -> None:
    image = Image.new("RGB", (1240, 400), "white")
    draw, font, small = ImageDraw.Draw(image), ImageFont.load_default(24), ImageFont.load_default(15)
    draw.text((100, 100), "Potassium 5", fill="black", font=font)
    draw.text((100 + font.getlength("Potassium 5"), 98), "1", fill="black", font=small)
    draw.text((118 + font.getlength("Potassium 5"), 100), "mmol/l", fill="black", font=font)
    [answer] = read(np.array(image))
    assert answer.text == "Potassium 5¹ mmol/l"


def test_codes_doses_and_dates_in_many_faces_are_right_or_in_doubt(read: Read) -> None:
    """A wrong value is a flag on its page; of clean print there are few."""
    pages = [page for page in value_pages(RECORDS) if page.pixels.shape[0] > SMALL_PRINT]
    wrong = true = 0
    for page, answer in zip(pages, read(*(page.pixels for page in pages)), strict=True):
        found = compared(answer.text, page.text, is_whole=True)
        missing = found.true - found.found
        wrong, true = wrong + missing, true + found.true
        assert not missing or judged(answer).verdict is not Verdict.OK, page.name
    assert wrong <= MOST_WRONG * true


RECORDS, SMALL_PRINT, MOST_WRONG = 12, 1300, 0.05
"""Records that are drawn; height of a page up to which its print is hard to read, in pixels; share of their values."""


def printed(shape: tuple[int, int], *, size: int, pitch: int, lines: int) -> tuple[NDArray[np.uint8], str]:
    """Return a white page with so many lines of print in its upper left, and its text."""
    image = Image.new("RGB", (shape[1], shape[0]), "white")
    text = [
        f"{n + 1}. Potassium was {3 + n / 10:.1f} mmol/L on day {n + 2} of the stay." for n in range(lines)
    ]
    for n, line in enumerate(text):
        ImageDraw.Draw(image).text(
            (100, 100 + n * pitch), line, fill="black", font=ImageFont.load_default(size)
        )
    return np.array(image), "\n".join(text)


@pytest.mark.usefixtures("own_templates")
def test_blurred_numbers_are_what_the_text_has_unless_their_ink_says_otherwise() -> None:
    numbers = [f"{thousands},{100 + 37 * thousands % 900}" for thousands in range(3, 83, 2)]
    wrong = [f"{text[:-1]}{(int(text[-1]) + 3) % 10}" for text in numbers]

    def drawn(size: int) -> tuple[NDArray[np.uint8], list[Box]]:
        image = Image.new("RGB", (900, 700), "white")
        draw, font = ImageDraw.Draw(image), ImageFont.load_default(size)
        boxes = []
        for number, text in enumerate(numbers):
            at = 60 + number % 5 * 160, 40 + number // 5 * 80
            draw.text(at, text, fill="black", font=font)
            left, top, right, bottom = map(round, draw.textbbox(at, text, font=font))
            boxes.append(Box(left=left - 4, top=top - 4, right=right + 4, bottom=bottom + 4))
        return np.asarray(image.filter(ImageFilter.GaussianBlur(1.0))), boxes

    with witness_process() as (_, read_again):

        def taken(page: tuple[NDArray[np.uint8], list[Box]], texts: list[str], *, usual: bool = False) -> int:
            pieces = [
                Piece(corners=corners(box), words=(box,), written=(text,), parts_thousands=usual)
                for box, text in zip(page[1], texts, strict=True)
            ]
            return sum(map(operator.eq, (line.text for line in read_again(page[0], pieces)), texts))

        blurred, small = drawn(15), drawn(9)
        assert taken(blurred, numbers) >= 0.9 * len(numbers)
        assert taken(blurred, wrong) == taken(blurred, wrong, usual=True) == 0
        assert taken(small, numbers) < taken(small, numbers, usual=True), "a comma is usual on the page"
        assert taken(small, wrong, usual=True) == 0


@pytest.mark.usefixtures("own_templates")
def test_an_l_is_no_i_because_the_text_has_one() -> None:
    words = ["Klda", "Klt7", "Rlda", "Rlt7", "h4lB4", "h4lda", "7blB4", "halB4"]
    image = Image.new("RGB", (900, 200), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(20)
    boxes = []
    for number, word in enumerate(words):
        at = 60 + number % 4 * 200, 40 + number // 4 * 80
        draw.text(at, word, fill="black", font=font)
        left, top, right, bottom = map(round, draw.textbbox(at, word, font=font))
        boxes.append(Box(left=left - 4, top=top - 4, right=right + 4, bottom=bottom + 4))
    page = np.asarray(image)

    with witness_process() as (_, read_again):

        def read(texts: list[str]) -> list[str]:
            pieces = [
                Piece(corners=corners(box), words=(box,), written=(text,))
                for box, text in zip(boxes, texts, strict=True)
            ]
            return [line.text for line in read_again(page, pieces)]

        assert read([word.replace("l", "I") for word in words]) == read(words) == words


def corners(box: Box) -> tuple[float, ...]:
    return box.left, box.top, box.right, box.top, box.right, box.bottom, box.left, box.bottom


async def test_a_process_killed_at_work_fails_only_its_own_page() -> None:
    page = np.array(sample_document(DocumentType.CHART).pages[0].image)
    engine = create_engine(WorkerSettings(engine_processes=2))
    await engine.start()
    try:
        reading = [asyncio.create_task(engine.generate(request(page, n))) for n in range(4)]
        victim = psutil.Process(forked_for()[0])
        idle_s = victim.cpu_times().user
        await until(lambda: victim.cpu_times().user >= idle_s + 0.05)  # it reads
        victim.kill()
        outcomes = await asyncio.gather(*reading, return_exceptions=True)
    finally:
        await engine.stop()

    assert [isinstance(outcome, EngineError) for outcome in outcomes].count(True) == 1
    assert [isinstance(outcome, BaseException) for outcome in outcomes].count(True) == 1


LOAD_EVERY_MODEL = """
from pecia_workers.engines.cpu import rapidocr
from pecia_workers.media.orientation import line_classifier

rapidocr.load_model()
assert line_classifier() is not None
"""


def test_loading_the_models_leaves_no_device_id_and_no_reports_to_send(tmp_path: Path) -> None:
    places = {"HOME": tmp_path, "TMPDIR": tmp_path, "XDG_CACHE_HOME": tmp_path, "XDG_DATA_HOME": tmp_path}
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")
    }

    subprocess.run(
        [sys.executable, "-c", LOAD_EVERY_MODEL],
        env=inherited | {name: str(path) for name, path in places.items()},
        timeout=WAIT_S,
        check=True,
    )

    assert list(tmp_path.iterdir()) == []
