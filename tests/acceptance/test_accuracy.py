"""Drawn pages whose truth is exact, through a whole fleet: how much the CPU engine reads."""

from pathlib import Path

import pytest

from pecia import Verdict
from pecia.evaluation.metrics import Share
from pecia.evaluation.scores import PageScore, Report
from pecia.evaluation.truth import TruePage, Truth
from tests.shared.chinese import chinese_font
from tests.shared.command import run_pecia
from tests.shared.exact_pages import blank_pages, chinese_pages, english_pages, korean_page
from tests.shared.fixture_types import RunFleet
from tests.shared.hand_made_pdfs import text_pdf
from tests.shared.korean import korean_font

pytestmark = pytest.mark.gate


Pages = tuple[PageScore, ...]
LAYER = ("Arsenic 0.005 mg/l", "Batch O0l1I5S8B")
"""What no eye tells apart."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("drawn")
    foreign = [*chinese_pages(chinese_font()), korean_page(korean_font())]
    for page in (*english_pages(), *blank_pages(), *foreign):
        page.write(made)
    (made / "layer.pdf").write_bytes(text_pdf(LAYER))
    layer = Truth(kind="layer", pages=(TruePage(text="\n".join(LAYER)),))
    (made / "layer.json").write_text(layer.model_dump_json())
    return made


@pytest.fixture(scope="module")
def pages(run_fleet: RunFleet, folder: Path, tessdata: str) -> Pages:
    """What `pecia eval` says of every page that has something on it."""
    with run_fleet("accuracy", tessdata=tessdata) as fleet:
        ran = run_pecia("eval", folder, "--json", env=fleet.environment)
    assert ran.returncode == 0, ran.stderr
    return Report.model_validate_json(ran.stdout).pages


def below(least: float, shares: dict[str, Share]) -> dict[str, Share]:
    """Those that are not there or too small."""
    return {name: share for name, share in shares.items() if share.part < least * share.whole}


def test_no_page_is_ok_below_99_percent_of_its_words_nor_blank_with_any(pages: Pages) -> None:
    assert [page.file for page in pages if page.is_wrong_ok] == []
    assert [page.file for page in pages if page.is_wrong_blank] == []


def test_nothing_is_read_on_sheets_of_noise_dust_and_folds(pages: Pages) -> None:
    sheets = [page for page in pages if page.kind == "blank"]
    assert len(sheets) == 3
    assert {page.verdict for page in sheets} == {Verdict.BLANK}


def test_words_are_there_whatever_the_layout_and_the_contrast(pages: Pages) -> None:
    assert below(0.99, {page.file: page.found for page in pages}) == {}


def test_columns_letterheads_and_tables_are_read_in_order(pages: Pages) -> None:
    orders = {page.file: page.order for page in pages if page.found.whole}
    assert {file: order for file, order in orders.items() if order is None or order < 0.98} == {}


def test_cells_are_in_their_place_and_boxes_are_ticked_or_empty_as_they_are(pages: Pages) -> None:
    tables = {page.file: page.cells for page in pages if page.cells.whole}
    forms = {page.file: page.marks for page in pages if page.marks.whole}
    assert (len(tables), below(0.97, tables)) == (6, {})
    assert (len(forms), below(0.99, forms)) == (1, {})


def test_the_text_of_a_written_pdf_is_its_layer_to_the_character(pages: Pages) -> None:
    (page,) = (page for page in pages if page.kind == "layer")
    assert page.characters == (0, len(" ".join(LAYER)))
