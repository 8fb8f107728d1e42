"""`pecia eval`: files whose content is known, and what came of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command import run_pecia
from hand_made_pdfs import text_pdf, typeset, written_pdf
from pecia import CaptionVideo, FailureCode, Page, ReadDocument, Verdict
from pecia.cli.evaluation import figures
from pecia.evaluation.scores import Report, hand_over, report
from pecia.evaluation.truth import Exhibit, TruthError, exhibits
from pecia.testing import FakeFleet
from pecia_schemas.media import HEAD_BYTES, sniff
from pecia_schemas.tasks import Prefer
from samples import page

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(8)
VIDEO = b"\x00\x00\x00\x18ftypmp42" + bytes(12)


def known_below(folder: Path) -> list[Exhibit]:
    files = [(path, sniff(path.read_bytes()[:HEAD_BYTES])) for path in sorted(folder.iterdir())]
    return list(exhibits(folder, [(path, media) for path, media in files if media]))


@pytest.fixture
def lay(tmp_path: Path) -> Callable[..., list[Exhibit]]:
    """Writes a file and its truth; returns what is known of the folder."""

    def write(name: str, suffix: str, known: str, content: bytes = PICTURE) -> list[Exhibit]:
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).with_suffix(suffix).write_text(known)
        return known_below(tmp_path)

    return write


def read(shown: list[Exhibit], *pages: str | Page | FailureCode) -> Report:
    with FakeFleet() as fleet:
        fleet.answers(ReadDocument, pages=pages)
        return report(shown, hand_over(fleet.client(), shown).wait())


def test_a_text_beside_a_file_is_its_truth_page_by_page(lay: Callable[..., list[Exhibit]]) -> None:
    (shown,) = lay("letter-12.png", ".txt", "first\fsecond")
    assert shown.kind == "letter"
    assert [one.text for one in shown.truth.pages] == ["first", "second"]


def test_rows_of_corners_and_text_with_commas_are_a_truth(lay: Callable[..., list[Exhibit]]) -> None:
    (shown,) = lay("receipt.png", ".csv", "1,2,3,2,3,4,1,4,12, JALAN TAMPOI\n1,5,3,5,3,7,1,7,TOTAL\n")
    assert shown.truth.pages[0].text == "12, JALAN TAMPOI\nTOTAL"


def test_a_json_knows_cells_and_names_its_kind(lay: Callable[..., list[Exhibit]]) -> None:
    table = {"rows": 1, "columns": 1, "cells": [{"row": 0, "column": 0, "text": "7"}]}
    known = {"kind": "lab", "pages": [{"text": "7", "tables": [table]}]}
    (shown,) = lay("a.png", ".json", json.dumps(known))
    assert shown.kind == "lab"
    assert shown.truth.pages[0].tables
    assert read([shown], "7").pages[0].cells == (0, 1)


def test_a_pdf_is_its_own_truth_by_its_pixels_and_a_file_without_one_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2", reason="pecia[local] brings what reads a PDF's text")
    (tmp_path / "report.pdf").write_bytes(text_pdf(["Haemoglobin 13.2"]))
    (tmp_path / "damaged.pdf").write_bytes(b"%PDF-1.7 and no more")
    (tmp_path / "scan.png").write_bytes(PICTURE)

    (shown,) = known_below(tmp_path)

    assert shown.truth.pages[0].text.split() == ["Haemoglobin", "13.2"]
    with FakeFleet() as fleet:
        hand_over(fleet.client(), [shown])
        (submitted,) = fleet.submitted
    assert isinstance(submitted.task, ReadDocument)
    assert submitted.task.prefer is Prefer.PIXELS


def test_a_pdf_is_compared_in_the_order_of_its_layout_and_in_that_of_its_file(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2", reason="pecia[local] brings what reads a PDF's text")
    footer, body = typeset(["Page 1 of 1"], top=60), typeset(["Discharge letter", "Anton Weiss"])
    (tmp_path / "letter.pdf").write_bytes(written_pdf(footer + body))
    shown = known_below(tmp_path)

    summary = read(shown, "Discharge letter\nAnton Weiss\nPage 1 of 1").kinds["all"]

    assert (summary.cer, summary.order) == (0, 1)
    assert summary.cer_in_file
    assert summary.cer_in_file > 0.5
    assert summary.order_in_file == pytest.approx(-1 / 3)


@pytest.mark.parametrize(("suffix", "known"), [(".json", '{"pages": 1}'), (".csv", "1,2,TOTAL")])
def test_a_truth_without_meaning_is_named(lay: Callable[..., list[Exhibit]], suffix: str, known: str) -> None:
    with pytest.raises(TruthError, match=f"scan{suffix}"):
        lay("scan.png", suffix, known)


def test_a_page_that_is_ok_or_blank_and_is_not_is_wrong(lay: Callable[..., list[Exhibit]]) -> None:
    shown = lay("scan.png", ".txt", "one two three")
    assert read(shown, "one two three").kinds["all"].wrong_ok == 0
    assert read(shown, "one two").kinds["all"].wrong_ok == 1
    assert read(shown, page(text="one two", verdict=Verdict.INCOMPLETE)).kinds["all"].wrong_ok == 0
    assert read(shown, page(text="", verdict=Verdict.BLANK)).kinds["all"].wrong_blank == 1
    (empty, _) = lay("empty.png", ".txt", "")
    assert read([empty], "l1").pages[0].is_wrong_ok


def test_a_page_that_failed_is_missing_whole(lay: Callable[..., list[Exhibit]]) -> None:
    found = read(lay("scan.png", ".txt", "one\ftwo"), "one", FailureCode.DAMAGED)
    assert [one.verdict for one in found.pages] == ["ok", "damaged"]
    assert found.kinds["all"].cer == 0.5


def test_a_truth_in_capitals_says_nothing_of_the_size_of_letters(lay: Callable[..., list[Exhibit]]) -> None:
    assert read(lay("receipt.png", ".txt", "TOTAL 9.20"), "Total 9.20").kinds["all"].cer == 0


def test_captions_are_held_against_the_reference_most_alike(lay: Callable[..., list[Exhibit]]) -> None:
    shown = lay("ward.mp4", ".txt", "A nurse enters the room.\nSomeone walks in.", VIDEO)
    with FakeFleet() as fleet:
        fleet.answers(CaptionVideo, text="a nurse enters a room")
        (score,) = report(shown, hand_over(fleet.client(), shown).wait()).captions
    assert score.rouge_l == pytest.approx(0.8)
    assert 0.5 < score.meteor < 1


def test_a_folder_without_a_truth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(PICTURE)
    ran = run_pecia("eval", tmp_path)
    assert ran.returncode == 2
    assert "has a truth beside it" in ran.stderr


def test_two_runs_stand_side_by_side_where_they_differ(lay: Callable[..., list[Exhibit]]) -> None:
    shown = lay("scan.png", ".txt", "one two")
    screen = figures(read(shown, "one two"), read(shown, "one"), width=200)
    assert "0.667 → 1.000" in screen
    assert "1.000 → 0.000" in screen
