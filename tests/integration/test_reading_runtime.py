"""A worker reads a page with a language model that is not always good at it, and a client gets what came of it."""

from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont
from pydantic import BaseModel

from pecia import GenerationOptions, Job, Preparation, Preset, ReadDocument, Verdict
from pecia_schemas.blocks import BlockKind, DoubtReason, Source, mean_confidence
from pecia_schemas.failures import FailureCode
from pecia_schemas.results import Change, Document
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.registry import create_engine
from pecia_workers.media.samples import accuracy, sample_document
from pecia_workers.reading.fields import closed
from pecia_workers.reading.page import instruction_for
from tests.shared.answers import ANSWERS, FormatAnswer
from tests.shared.chat_server import ChatServerDouble, only_page, picture_of
from tests.shared.fixture_types import Picture
from tests.shared.hand_made_pdfs import picture_pdf, typeset, written_pdf
from tests.shared.pictures import encoded

pytestmark = pytest.mark.gate

SAMPLE = sample_document(DocumentType.PRESCRIPTION)
Work = Callable[..., Job[Document]]


@pytest.fixture
def scan() -> bytes:
    return encoded(SAMPLE.pages[0].image, "PNG")


def test_a_page_that_stays_bad_is_the_best_of_its_readings_and_tells_of_all(
    server: ChatServerDouble, work: Work, scan: bytes
) -> None:
    server.behaviour.finish_reason = "repetition"

    page = only_page(work(ReadDocument(scan), max_readings=3))

    assert (page.verdict, page.text, page.change) == (Verdict.REPETITION, "Amoxicillin 500 mg", None)
    assert [(one.change, one.verdict) for one in page.attempts] == [
        (Change.TEMPERATURE, Verdict.REPETITION),
        (Change.PENALTY, Verdict.REPETITION),
    ]
    assert page.usage.output == 9
    assert page.usage.wasted == sum(one.usage.prompt + one.usage.output for one in page.attempts)
    assert [body.get("temperature") for body in server.pages] == [0, 0.4, 0]


def test_what_a_model_reads_of_a_damaged_scan_is_incomplete(work: Work) -> None:
    image = SAMPLE.pages[0].image.convert("L")
    scan = encoded(image, "JPEG")
    about = b"/ColorSpace /DeviceGray /Filter /DCTDecode"

    page = only_page(work(ReadDocument(picture_pdf(scan[: len(scan) // 2], image.size, about))))

    assert (page.text, page.verdict, page.coverage) == ("Amoxicillin 500 mg", Verdict.INCOMPLETE, None)
    assert [doubt.reason for doubt in page.doubts] == [DoubtReason.UNCOVERED]


PROSE = ["Patient was admitted to ward 7 with fever.", "Metformin 850 mg twice daily is continued."]


@pytest.fixture
def allergy() -> bytes:
    """A written page with a picture of words below its text."""
    image = Image.new("L", (1000, 400), 255)
    font = ImageFont.load_default(40)
    ImageDraw.Draw(image).text((20, 20), "ALLERGY: PENICILLIN", fill=0, font=font)
    content = typeset(PROSE) + b" q 475 0 0 190 60 400 cm /P Do Q " + typeset(["Follow-up: 3 weeks"], top=380)
    return written_pdf(content, picture=encoded(image, "JPEG"))


@pytest.mark.parametrize(
    "settings", [{"engine": "rapidocr"}, {"fallback_engine": "rapidocr"}, {"witness": "ocr"}], ids=str
)
def test_what_a_picture_says_is_read_beside_the_exact_text_of_its_page(
    server: ChatServerDouble, work: Work, allergy: bytes, settings: dict[str, str]
) -> None:
    page = only_page(work(ReadDocument(allergy), **settings))

    assert [(line.text, line.source or Source.LAYER) for line in page.lines] == [
        *((line, Source.LAYER) for line in PROSE),
        ("ALLERGY: PENICILLIN", Source.OCR),
        ("Follow-up: 3 weeks", Source.LAYER),
    ]
    assert (page.source, page.verdict, page.doubts) == (Source.BOTH, Verdict.OK, ())
    assert server.pages == []


def test_a_picture_of_words_that_no_engine_reads_makes_its_page_incomplete(
    server: ChatServerDouble, work: Work, allergy: bytes
) -> None:
    page = only_page(work(ReadDocument(allergy)))

    assert (page.source, page.verdict) == (Source.LAYER, Verdict.INCOMPLETE)
    [doubt] = page.doubts
    assert doubt.reason is DoubtReason.UNCOVERED
    assert doubt.box
    assert page.lines[1].box.bottom < doubt.box.top < doubt.box.bottom < page.lines[2].box.top
    assert server.pages == []


def test_the_cpu_engine_reads_what_a_model_cannot(server: ChatServerDouble, work: Work, scan: bytes) -> None:
    server.behaviour.finish_reason = "length"
    settings = {"max_readings": 1, "fallback_engine": "rapidocr"}

    page = only_page(work(ReadDocument(scan, language="en"), **settings))

    assert (page.engine, page.change, page.verdict) == ("rapidocr", Change.FALLBACK, Verdict.OK)
    assert accuracy(page.text, "\n".join(SAMPLE.pages[0].lines)) >= 0.99
    assert page.confidence == pytest.approx(mean_confidence(page.lines), abs=1e-3)
    (attempt,) = page.attempts
    assert (attempt.engine, attempt.verdict, attempt.change) == ("openai", Verdict.TRUNCATED, None)
    assert page.usage.wasted == attempt.usage.prompt + attempt.usage.output


def test_a_worker_whose_own_engine_is_the_fallback_starts_it_once(
    work: Work, scan: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def counted(settings: WorkerSettings) -> Any:
        started.append(settings.engine)
        return create_engine(settings)

    for module in ("runtime", "stages"):
        monkeypatch.setattr(f"pecia_workers.worker.{module}.create_engine", counted)
    page = only_page(
        work(ReadDocument(scan), engine="rapidocr", fallback_engine="rapidocr", engine_processes=1)
    )

    assert started == ["rapidocr"]
    assert page.attempts == ()


def test_how_a_task_is_to_be_read_reaches_engines(server: ChatServerDouble, work: Work, scan: bytes) -> None:
    server.behaviour.models = ({"id": "tiny"}, {"id": "radiology", "parent": "tiny"})
    server.behaviour.finish_reason = "length"
    options = GenerationOptions(top_k=5, max_output_tokens=2)
    task = ReadDocument(
        scan,
        document_type=DocumentType.CHART,
        language="ko",
        preset=Preset.FACTUAL,
        options=options,
        adapter="radiology",
    )

    page = only_page(work(task, adapters={"radiology": "/models/radiology"}))

    (asked,) = server.pages
    assert (asked["model"], asked["temperature"], asked["top_k"]) == ("radiology", 0.3, 5)
    assert asked["messages"][0]["content"][1]["text"] == instruction_for(DocumentType.CHART, "ko")
    assert (page.text, page.usage.output) == ("Amoxicillin 500", 2)


@pytest.mark.parametrize("told", ANSWERS, ids=lambda told: str(told.format))
def test_a_model_is_asked_and_understood_by_its_reader_card(
    server: ChatServerDouble, work: Work, scan: bytes, told: FormatAnswer
) -> None:
    server.behaviour.models = ({"id": told.model},)
    server.behaviour.text = told.text
    card = card_of(told.model)

    page = only_page(work(ReadDocument(scan)))

    (asked,) = server.pages
    words = [part["text"] for part in asked["messages"][-1]["content"] if part["type"] == "text"]
    assert words == ([card.prompt] if card.prompt else [])
    sampling = (asked["temperature"], asked["top_p"], asked["skip_special_tokens"], asked.get("stop", []))
    assert sampling == (
        card.sampling.temperature,
        card.sampling.top_p,
        card.sampling.skip_special_tokens,
        list(card.sampling.stop),
    )
    assert max(page.width, page.height) <= card.longest_side
    assert (page.verdict, [(block.kind, block.text) for block in page.blocks]) == (
        Verdict.OK,
        list(told.blocks),
    )
    assert all((block.box is not None) is told.has_places for block in page.blocks)


def test_a_task_says_what_a_model_is_told_by_card(server: ChatServerDouble, work: Work, scan: bytes) -> None:
    server.behaviour.text = "<fcel>Na<fcel>140<nl>"
    page = only_page(work(ReadDocument(scan, instructions="Table Recognition:"), card="paddleocr_vl"))
    (asked,) = server.pages
    assert asked["messages"][-1]["content"][1]["text"] == "Table Recognition:"
    assert [block.kind for block in page.blocks] == [BlockKind.TABLE]


def test_instructions_are_refused_without_words(server: ChatServerDouble, work: Work, scan: bytes) -> None:
    server.behaviour.models = ({"id": "lightonai/LightOnOCR-2-1B"},)
    job = work(ReadDocument(scan, instructions="Copy the table alone."))
    assert job.failure
    assert job.failure.code is FailureCode.INSTRUCTIONS_UNAVAILABLE


class Form(BaseModel):
    drug: str
    refills: int = 0


def test_fields_are_filled_beside_the_text(server: ChatServerDouble, work: Work, scan: bytes) -> None:
    server.behaviour.form = '{"drug": "Amoxicillin", "refills": 2}'

    page = only_page(work(ReadDocument(scan, fields=Form, adapter=None)))

    assert page.text == "Amoxicillin 500 mg"
    assert page.fields_as(Form) == Form(drug="Amoxicillin", refills=2)
    assert (page.fields_text, page.attempts, page.usage.wasted) == (None, (), 0)
    text, form = server.pages
    assert "response_format" not in text
    assert form["response_format"]["json_schema"]["schema"] == closed(Form.model_json_schema())
    assert picture_of(form["messages"][0]["content"][0]) == picture_of(text["messages"][0]["content"][0])
    assert page.usage.output == 7


class Forms(BaseModel):
    forms: list[Form]


def test_fields_that_break_off_keep_their_whole_rows_and_the_document_says_so(
    server: ChatServerDouble, work: Work, scan: bytes
) -> None:
    server.behaviour.form = '{"forms": [{"drug": "Amoxicillin", "refills": 2}, {"drug": "Ibu'
    server.behaviour.finish_reason = "length"

    job = work(ReadDocument(scan, fields=Forms), max_readings=1)

    page, document = only_page(job), job.result(timeout=0)
    assert (page.verdict, page.fields) == (
        Verdict.TRUNCATED,
        {"forms": [{"drug": "Amoxicillin", "refills": 2}]},
    )
    assert [(doubt.reason, doubt.text) for doubt in page.doubts] == [(DoubtReason.MISSING_FIELDS, "/forms")]
    assert [leaf.lacking for leaf in document.grounding if leaf.path == "/forms"] == [(1,)]


def test_a_page_without_text_has_no_fields(server: ChatServerDouble, work: Work, scan: bytes) -> None:
    server.behaviour.text = ""
    page = only_page(work(ReadDocument(scan, fields=Form), max_readings=1))
    assert (page.verdict, page.fields, page.fields_text) == (Verdict.UNREADABLE, None, None)
    assert len(server.pages) == 1


def test_a_blank_page_asks_no_engine(server: ChatServerDouble, work: Work, picture: Picture) -> None:
    page = only_page(work(ReadDocument(picture(), fields=Form)))
    assert (page.verdict, page.text, page.fields) == (Verdict.BLANK, "", None)
    assert server.pages == []


def test_how_a_page_is_prepared_is_the_fleets_choice_unless_the_task_makes_one(work: Work) -> None:
    upside_down = encoded(SAMPLE.pages[0].image.rotate(180), "PNG")
    as_it_is = only_page(work(ReadDocument(upside_down), engine="simulated:instant", prepare=()))
    turned = only_page(
        work(ReadDocument(upside_down, prepare=(Preparation.ORIENT,)), engine="simulated:instant", prepare=())
    )
    assert (as_it_is.rotation, turned.rotation) == (0, 180)
