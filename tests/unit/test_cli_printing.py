"""What the command says of results that are handed over: the heading of each page, and one line at the end."""

import pytest

from pecia import Document, FailureCode, ReadDocument
from pecia.cli import printing
from pecia.testing import FakeFleet
from pecia_schemas.blocks import Doubt, DoubtReason
from pecia_schemas.results import Page, Verdict
from tests.shared.limits import WAIT_S


def page(number: int, verdict: Verdict, *doubts: Doubt) -> Page:
    return Page(number=number, verdict=verdict, doubts=doubts, width=10, height=10, engine="cpu")


def test_the_last_line_says_how_many_want_a_look_and_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    hangul = Doubt(reason=DoubtReason.LANGUAGE_UNREAD, other="Hangul")
    unknown = Doubt(reason=DoubtReason.LANGUAGE_UNREAD, other="")
    pages = (
        page(1, Verdict.OK),
        page(2, Verdict.REVIEW),
        page(3, Verdict.UNREADABLE, hangul),
        page(4, Verdict.UNREADABLE, unknown),
        page(5, Verdict.UNREADABLE, hangul),
    )
    with FakeFleet() as fleet:
        client, tally = fleet.client(), printing.Tally(names=True)
        fleet.answers(ReadDocument, text="well")
        done = client.submit(ReadDocument(b"%PDF-1"), label="mixed.pdf").wait(WAIT_S)
        fleet.fails(ReadDocument, FailureCode.DAMAGED)
        failed = client.submit(ReadDocument(b"%PDF-2"), label="cut.pdf").wait(WAIT_S)
    tally.add(done, Document(pages=pages).pages)
    tally.end(done)
    tally.end(failed)
    tally.close("--batch ward-7")
    *named, closing = capsys.readouterr().err.splitlines()
    assert named == [
        "mixed.pdf, page 2: review",
        "mixed.pdf, page 3: language_unread: Hangul",
        "mixed.pdf, page 4: language_unread",
        "mixed.pdf, page 5: language_unread: Hangul",
    ]
    assert closing == (
        "pecia: 2 documents, 5 pages read: 4 need a review (2 language_unread: Hangul, 1 review, 1 language_unread), "
        "1 failed. Next: `pecia review --batch ward-7`, `pecia list --batch ward-7`, `pecia read --language ko`."
    )


def test_one_page_to_review_is_counted_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeFleet() as fleet:
        fleet.answers(ReadDocument, text="well")
        done = fleet.client().submit(ReadDocument(b"%PDF-1"), label="faint.pdf").wait(WAIT_S)
    tally = printing.Tally()
    tally.add(done, [page(1, Verdict.REVIEW)])
    tally.end(done)
    tally.close("--batch ward-7")
    assert capsys.readouterr().err == (
        "pecia: 1 document, 1 page read: 1 needs a review (1 review). Next: `pecia review --batch ward-7`.\n"
    )
