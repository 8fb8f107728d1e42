"""Written PDFs through the ledger and a worker: the file's own text, exact and free, where it can be trusted."""

from collections.abc import Callable

import pytest
from pydantic import BaseModel

from chat_server import ChatServerDouble, only_page
from hand_made_pdfs import typeset, written_pdf
from pecia import Job, Prefer, ReadDocument, Verdict
from pecia_schemas.blocks import Source
from pecia_schemas.results import Document, TokenUsage

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
