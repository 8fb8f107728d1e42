"""What a model lies about a page is found by an independent reading of it, through a whole worker."""

from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from chat_server import ChatServerDouble, only_page
from pecia import Document, Job, Page, Prefer, ReadDocument, Verdict
from pecia_schemas.blocks import Source
from pictures import encoded
from witnessed_pages import Drawn, Score, drawn_page, lied_about

Work = Callable[..., Job[Document]]


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
