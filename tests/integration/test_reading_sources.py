"""What a page's text is taken from, and what an independent reading finds wrong with it, through a whole worker."""

from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel

from pecia import Document, Job, Page, Prefer, ReadDocument, Verdict
from pecia_schemas.blocks import Source
from pecia_schemas.results import TokenUsage
from tests.shared.chat_server import ChatServerDouble, only_page
from tests.shared.hand_made_pdfs import typeset, written_pdf
from tests.shared.pictures import encoded
from tests.shared.witnessed_pages import Drawn, Score, drawn_page, lied_about

LINES = [
    "Arsenic in drinking water: 0.005 mg/l",
    "Batch O0l1I5S8B, read from small print",
    "Result 3.60, 12 days",
]
WRITTEN = written_pdf(typeset(LINES, size=6))
Work = Callable[..., Job[Document]]


def test_six_point_print_is_exact_and_costs_no_token(server: ChatServerDouble, work: Work) -> None:
    page = only_page(work(ReadDocument(WRITTEN)))
    assert page.text.splitlines() == LINES
    assert (page.engine, page.source, page.verdict) == ("layer", Source.LAYER, Verdict.OK)
    assert page.usage == TokenUsage()
    assert not server.pages


@pytest.mark.parametrize(
    ("prefer", "mode", "source"),
    [(Prefer.PIXELS, 0, Source.MODEL), (Prefer.LAYER, 3, Source.LAYER)],
    ids=["pixels of a good page", "layer of a recognised one"],
)
def test_a_task_says_what_pages_are_read_from(work: Work, prefer: Prefer, mode: int, source: Source) -> None:
    page = only_page(work(ReadDocument(written_pdf(typeset(LINES, mode=mode)), prefer=prefer)))
    assert page.source is source


class Sample(BaseModel):
    batch: str


def test_fields_of_a_written_page_are_asked_of_the_engine_and_its_text_is_not(
    server: ChatServerDouble, work: Work
) -> None:
    server.behaviour.form = '{"batch": "O0l1I5S8B"}'
    page = only_page(work(ReadDocument(WRITTEN, fields=Sample)))
    assert page.text.splitlines() == LINES
    assert page.fields == {"batch": "O0l1I5S8B"}
    assert len(server.pages) == 1


def test_pages_that_look_alike_share_fields_and_keep_their_text(server: ChatServerDouble, work: Work) -> None:
    server.behaviour.form = '{"batch": "O0l1I5S8B"}'
    minus = "\N{MINUS SIGN}"
    hyphened, signed = (written_pdf(typeset([*LINES, "-3.5"]), means={"-": said}) for said in ("-", minus))

    first, second = (
        only_page(work(ReadDocument(pdf, fields=Sample), cache_revision="1")) for pdf in (hyphened, signed)
    )

    assert (first.text.splitlines()[-1], second.text.splitlines()[-1]) == ("-3.5", f"{minus}3.5")
    assert second.cached_from
    assert first.fields == second.fields
    assert len(server.pages) == 1


@pytest.fixture
def page(work: Work, server: ChatServerDouble) -> Callable[..., Page]:
    """Reads a drawn page, of which the model writes what the page's answer is."""

    def read(drawn: Drawn, **options: Any) -> Page:
        server.behaviour.text = drawn.markdown()
        source = drawn.pdf if options.pop("pdf", False) else encoded(Image.fromarray(drawn.pixels), "PNG")
        settings = {"witness": options.pop("fleet", "auto"), "witness_processes": 1}
        return only_page(work(ReadDocument(source, cache=False, **options), **settings))

    return read


@pytest.mark.parametrize(
    ("given", "source"),
    [({"pdf": True, "prefer": Prefer.PIXELS, "fleet": "layer"}, Source.LAYER), ({}, Source.OCR)],
    ids=["layer", "ocr"],
)
def test_lies_about_a_page_are_found_and_nothing_else(
    page: Callable[..., Page], given: dict[str, Any], source: Source
) -> None:
    drawn = lied_about(drawn_page("lab_result", 0), 0, swaps=6, inventions=2, omissions=2)
    score = Score()

    result = page(drawn, **given)

    score.add(result, drawn)
    assert (result.verdict, result.source) == (Verdict.INCOMPLETE, Source.MODEL)
    assert result.witness
    assert result.witness.source is source
    assert (score.swaps, score.inventions) == ({True: 6}, {True: 2})
    assert (score.omissions, score.doubted[True]) == ({True: 2}, 0)
    assert score.boxes[True] >= 0.97 * score.boxes.total()
    assert all(cell.box for table in result.tables for cell in table.cells if cell.row == 1)
