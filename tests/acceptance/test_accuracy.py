"""Drawn pages whose truth is exact, through a whole fleet: how much the CPU engine reads, what a model's lies cost."""

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from pecia import Page, Prefer, ReadDocument, Verdict
from pecia.evaluation.metrics import Share
from pecia.evaluation.scores import PageScore, Report
from pecia.evaluation.truth import TruePage, Truth
from pecia_schemas.blocks import Source
from tests.shared.chat_server import Behaviour, serving
from tests.shared.chinese import chinese_font
from tests.shared.command import run_pecia
from tests.shared.exact_pages import blank_pages, chinese_pages, english_pages, korean_page
from tests.shared.fixture_types import RunFleet
from tests.shared.hand_made_pdfs import text_pdf
from tests.shared.korean import NothingThereError, absent, korean_font
from tests.shared.witnessed_pages import KINDS, Drawn, Score, drawn_page, lied_about

pytestmark = pytest.mark.gate


Pages = tuple[PageScore, ...]
LAYER = ("Arsenic 0.005 mg/l", "Batch O0l1I5S8B")
"""What no eye tells apart."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("drawn")
    try:
        foreign = [*chinese_pages(chinese_font()), korean_page(korean_font())]
    except NothingThereError as error:
        absent(error)
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


PAGES_OF_A_KIND = 17
READ_S = 3_000
FOUND, DOUBTED, PLACED = 0.99, 0.02, 0.97


@pytest.fixture(scope="module")
def lied() -> list[Drawn]:
    """Pages of three kinds, with 510 digits swapped, 102 rows made up and 102 lines left out."""
    return [
        lied_about(drawn_page(kind, seed), seed, swaps=10, inventions=2, omissions=2)
        for kind in KINDS
        for seed in range(PAGES_OF_A_KIND)
    ]


@pytest.fixture(scope="module", params=[Source.LAYER, Source.OCR])
def witnessed(request: pytest.FixtureRequest, lied: list[Drawn], run_fleet: RunFleet) -> Sequence[Page]:
    """What becomes of them, with either witness."""
    source: Source = request.param
    answers = {f"page {number}": page.markdown() for number, page in enumerate(lied)}
    # No more at a time than may wait for the CPU engine: none goes without.
    own = {"witness": source.value, "engine_connections": 4, "decode_processes": 1, "max_in_flight": 4}
    with (
        serving(Behaviour(answers=answers)) as server,
        run_fleet(f"witness-{source}", engine="openai", engine_url=server.url, **own) as fleet,
    ):
        jobs = fleet.client.submit_many(
            ReadDocument(
                page.pdf if source is Source.LAYER else _png(page),
                prefer=Prefer.PIXELS,
                prepare=(),
                instructions=f"page {number}",
            )
            for number, page in enumerate(lied)
        )
        jobs.wait(timeout=READ_S)
        read = [job.result(timeout=0).pages[0] for job in jobs]
    assert {page.witness and page.witness.source for page in read} == {source}
    return read


def _png(page: Drawn) -> bytes:
    file = io.BytesIO()
    Image.fromarray(page.pixels).save(file, "PNG")
    return file.getvalue()


def share(of: Counter[bool]) -> float:
    return of[True] / of.total()


@pytest.mark.timeout(READ_S + 600)
def test_lies_are_found_and_little_else_is_doubted(witnessed: Sequence[Page], lied: list[Drawn]) -> None:
    scores = {kind: Score() for kind in KINDS}
    for page, true in zip(witnessed, lied, strict=True):
        scores[true.kind].add(page, true)

    assert all(page.verdict.needs_review for page in witnessed)
    for score in scores.values():
        assert share(score.doubted) <= DOUBTED
        assert share(score.boxes) >= PLACED
        assert share(score.omissions) == 1
    assert share(sum((score.swaps for score in scores.values()), Counter())) >= FOUND
    assert share(sum((score.inventions for score in scores.values()), Counter())) >= FOUND
