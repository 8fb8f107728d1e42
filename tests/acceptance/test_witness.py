"""A model that swaps digits, makes rows up and leaves lines out, through a whole fleet: what of it is found."""

import io
from collections import Counter
from collections.abc import Sequence

import pytest
from PIL import Image

from chat_server import Behaviour, serving
from fixture_types import RunFleet
from pecia import Page, Prefer, ReadDocument
from pecia_schemas.blocks import Source
from witnessed_pages import KINDS, Drawn, Score, drawn_page, lied_about

pytestmark = pytest.mark.gate

PAGES_OF_A_KIND = 17
READ_S = 3_000
FOUND, DOUBTED, PLACED = 0.99, 0.02, 0.97


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    """Pages of three kinds, with 510 digits swapped, 102 rows made up and 102 lines left out."""
    return [
        lied_about(drawn_page(kind, seed), seed, swaps=10, inventions=2, omissions=2)
        for kind in KINDS
        for seed in range(PAGES_OF_A_KIND)
    ]


@pytest.fixture(scope="module", params=[Source.LAYER, Source.OCR])
def pages(request: pytest.FixtureRequest, drawn: list[Drawn], run_fleet: RunFleet) -> Sequence[Page]:
    """What becomes of them, with either witness."""
    source: Source = request.param
    answers = {f"page {number}": page.markdown() for number, page in enumerate(drawn)}
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
            for number, page in enumerate(drawn)
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
def test_lies_are_found_and_little_else_is_doubted(pages: Sequence[Page], drawn: list[Drawn]) -> None:
    scores = {kind: Score() for kind in KINDS}
    for page, true in zip(pages, drawn, strict=True):
        scores[true.kind].add(page, true)

    assert all(page.verdict.needs_review for page in pages)
    for score in scores.values():
        assert share(score.doubted) <= DOUBTED
        assert share(score.boxes) >= PLACED
        assert share(score.omissions) == 1
    assert share(sum((score.swaps for score in scores.values()), Counter())) >= FOUND
    assert share(sum((score.inventions for score in scores.values()), Counter())) >= FOUND
