"""A model whose weights were drawn by lot writes noise: a witness finds nothing of it on the page."""

import pytest

from fleets import READY_S
from offline import MOST_TOKENS
from pecia import Client, DoubtReason, GenerationOptions, Prefer, ReadDocument, Witness
from pecia_workers.local.fleet import LocalFleet
from witnessed_pages import KINDS, drawn_page

pytestmark = pytest.mark.xdist_group("fleet")


def test_nothing_of_noise_is_on_the_page_and_nothing_is_ok(fleet: tuple[LocalFleet, Client]) -> None:
    jobs = fleet[1].submit_many(
        ReadDocument(
            drawn_page(kind, seed).pdf,
            prefer=Prefer.PIXELS,
            witness=Witness.LAYER,
            options=GenerationOptions(max_output_tokens=MOST_TOKENS),
        )
        for kind in KINDS
        for seed in range(2)
    )
    pages = [document.pages[0] for document in jobs.results(timeout=READY_S)]

    for page in pages:
        assert page.verdict.needs_review
        assert page.witness
        assert page.witness.agrees <= 0.05 * page.witness.words
        assert page.witness.only_witness > 0
        assert DoubtReason.NOT_ON_PAGE in {doubt.reason for doubt in page.doubts} or not page.witness.words
