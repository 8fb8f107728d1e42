"""`pecia eval`: files whose content is known, what came of them, and what counts as right."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import cast

import pytest

from pecia import Bundle, CaptionVideo, FailureCode, Page, ReadBundle, ReadDocument, Verdict
from pecia.cli.evaluation import figures
from pecia.evaluation import metrics
from pecia.evaluation.metrics import BundleSummary
from pecia.evaluation.scores import Report, hand_over, report
from pecia.evaluation.truth import Exhibit, TruthError, exhibits
from pecia.testing import FakeFleet
from pecia_schemas.blocks import Box, Cell, Mark, MarkKind, MarkState, Table
from pecia_schemas.bundles import (
    BundleDoubt,
    BundleDoubtReason,
    Cut,
    DocumentKind,
    DocumentPart,
    Identity,
    Split,
)
from pecia_schemas.media import HEAD_BYTES, sniff
from pecia_schemas.tasks import Prefer
from tests.shared.command import run_pecia
from tests.shared.hand_made_pdfs import text_pdf, typeset, written_pdf
from tests.shared.samples import page

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


def test_a_text_or_rows_of_corners_beside_a_file_are_its_truth(lay: Callable[..., list[Exhibit]]) -> None:
    (letter,) = lay("letter-12.png", ".txt", "first\fsecond")
    assert (letter.kind, [one.text for one in letter.truth.pages]) == ("letter", ["first", "second"])
    rows = "1,2,3,2,3,4,1,4,12, JALAN TAMPOI\n1,5,3,5,3,7,1,7,TOTAL\n"
    _, receipt = lay("receipt.png", ".csv", rows)
    assert receipt.truth.pages[0].text == "12, JALAN TAMPOI\nTOTAL"


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
    (_, lost, _) = lay("lost.png", ".txt", "one\ftwo")
    found = read([lost], "one", FailureCode.DAMAGED)
    assert [one.verdict for one in found.pages] == ["ok", "damaged"]
    assert found.kinds["all"].cer == 0.5
    (_, _, receipt, _) = lay("receipt.png", ".txt", "TOTAL 9.20")
    assert read([receipt], "Total 9.20").kinds["all"].cer == 0, "capitals say nothing of the size of letters"


def test_captions_are_held_against_the_reference_most_alike(lay: Callable[..., list[Exhibit]]) -> None:
    shown = lay("ward.mp4", ".txt", "A nurse enters the room.\nSomeone walks in.", VIDEO)
    with FakeFleet() as fleet:
        fleet.answers(CaptionVideo, text="a nurse enters a room")
        (score,) = report(shown, hand_over(fleet.client(), shown).wait()).captions
    assert score.rouge_l == pytest.approx(0.8)
    assert 0.5 < score.meteor < 1


def test_a_bundle_is_measured_by_its_cuts_kinds_and_patients(lay: Callable[..., list[Exhibit]]) -> None:
    mary, john = {"name": "Mary Quill", "birth_date": "1961-03-14"}, {"name": "John Feather"}
    known = [
        {"pages": "1-2", "kind": "lab_result", "patient": "mary", "identity": mary},
        {"pages": "3", "kind": "letter", "patient": "john", "identity": john},
        {"pages": "4-5", "kind": "letter", "patient": "mary", "identity": {}},
    ]
    (shown,) = lay("pile.pdf", ".json", json.dumps({"documents": known}))

    def part(number: int, kind: str, name: str | None, *pages: int, doubted: bool = False) -> DocumentPart:
        doubts = [BundleDoubt(reason=BundleDoubtReason.IDENTITY_CONFLICT, pages=pages)] if doubted else []
        born = date(1961, 3, 14) if name == "Quill, Mary" else None
        return DocumentPart(
            number=number,
            pages=pages,
            cut=Cut(page=pages[0], probability=1),
            kind=DocumentKind(kind),
            kind_probability=1,
            identity=Identity(name=name, birth_date=born),
            doubts=tuple(doubts),
        )

    def scored(*parts: DocumentPart) -> dict[str, object]:
        with FakeFleet() as fleet:
            pages = tuple(page(number, text="text") for number in range(1, 6))
            fleet.answers(ReadBundle, Bundle(pages=pages, split=Split(documents=parts)))
            found = report([shown], hand_over(fleet.client(), [shown]).wait())
        assert Report.model_validate_json(found.model_dump_json(exclude={"kinds", "bundled"})) == found
        assert "right whole" in figures({"bundles": cast("BundleSummary", found.bundled)}, {})
        return cast("BundleSummary", found.bundled).model_dump(exclude={"bundles"})

    right = dict.fromkeys(("recall", "precision", "whole", "kinds", "identities"), 1)
    lab, letter = part(1, "lab_result", "Quill, Mary", 1, 2), part(2, "letter", "John Feather", 3)
    assert scored(lab, letter, part(3, "letter", None, 4, 5)) == {**right, "untold": 0, "false_conflicts": 0}
    joined = part(2, "invoice", "John Feather", 3, 4)
    assert scored(lab, joined, part(3, "letter", None, 5, doubted=True)) == {
        "recall": 0.5,
        "precision": 0.5,
        "whole": 0,
        "kinds": 1 / 3,
        "identities": 2 / 3,
        "untold": 1 / 3,
        "false_conflicts": 1 / 3,
    }


def test_a_folder_without_a_truth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(PICTURE)
    ran = run_pecia("eval", tmp_path)
    assert ran.returncode == 2
    assert "has a truth beside it: write NAME.txt" in ran.stderr


def test_two_runs_stand_side_by_side_where_they_differ(lay: Callable[..., list[Exhibit]]) -> None:
    shown = lay("scan.png", ".txt", "one two")
    screen = figures(read(shown, "one two").kinds, read(shown, "one").kinds, width=200)
    assert "0.667 → 1.000" in screen
    assert "1.000 → 0.000" in screen


# ruff: noqa: RUF001  signs that look alike are its subject


BOX = Box(left=0, top=0, right=1, bottom=1)
LINES = ("Haemoglobin 13.2", "Sodium 139 mmol/L", "Ferritin is low", "Please repeat")


def table(*rows: tuple[str, ...]) -> Table:
    cells = tuple(
        Cell(row=row, column=column, text=text)
        for row, texts in enumerate(rows)
        for column, text in enumerate(texts)
    )
    return Table(rows=len(rows), columns=len(rows[0]), cells=cells)


def checkbox(label: str, state: MarkState) -> Mark:
    return Mark(kind=MarkKind.CHECKBOX, box=BOX, state=state, label=label)


@pytest.mark.parametrize(
    ("read", "true"),
    [
        ("the ﬁrst\nline", "the first line"),
        ("“13–15”", '"13-15"'),
        ("血压，正常 。", "血压,正常。"),
        ("Name ______ date", "Name date"),
        ("□ Cough ◉ never", "☐ Cough ☑ never"),
    ],
)
def test_signs_that_look_alike_and_white_space_are_no_errors(read: str, true: str) -> None:
    assert metrics.character_errors(read, true).part == 0
    assert metrics.character_errors("10 6/µL", "10⁶/µL").part > 0


def test_characters_in_another_order_are_errors_and_words_are_found() -> None:
    read, true = "left right\nleft right", "left left right right"
    assert metrics.character_errors(read, true).part > 0
    assert metrics.found(metrics.words(read), metrics.words(true)) == (4, 4)


def test_every_chinese_sign_is_a_word_and_a_lost_space_between_number_and_unit_loses_none() -> None:
    assert metrics.words("血压 128/82 mmHg，正常") == ["血", "压", "128/82", "mmHg", "正", "常"]
    assert metrics.words("5mg, 12 % (<0.9) 3-5") == metrics.words("5 mg, 12% ( < 0.9 ) 3 - 5")


def test_numbers_dates_and_times_are_right_as_wholes() -> None:
    read, true = (metrics.words(f"12.5 mg at 10:30 on 22.{month}.2026") for month in (1, 11))
    assert metrics.found(metrics.numeric(read), metrics.numeric(true)) == (2, 3)


def test_of_what_is_in_doubt_it_is_told_what_is_wrong_and_what_is_right() -> None:
    read, true = ["12", "140", "140", "9"], ["12", "140", "14"]
    assert metrics.doubted(read, true, ["140", "9", "12"]) == ((2, 2), (1, 2))
    assert metrics.doubted(read, read, []) == ((0, 0), (0, 4))


def test_lines_in_order_have_a_tau_of_1_from_the_end_of_minus_1_and_alone_none() -> None:
    true = "\n".join(LINES)
    assert metrics.order(true, true) == 1
    assert metrics.order("\n".join(reversed(LINES)), true) == -1
    assert metrics.order("Ferritin is low\nsomething else", true) is None
    read = "Haemog1obin 13.2 Ferritin is low\nSodium 139 mmol/L Please repeat"
    assert metrics.order(read, true) == pytest.approx(4 / 6), "a wrong character and neighbours hide no line"


def test_empty_cells_count_and_lines_of_a_cell_may_be_joined() -> None:
    true = table(("Test", "Result"), ("Cholesterol,\ntotal", ""))
    assert metrics.cells([table(("Test", "Result"), ("Cholesterol, total", ""))], [true]) == (4, 4)


def test_a_cell_in_another_column_or_with_another_span_is_wrong() -> None:
    true = table(("Potassium", "", "3.5 - 5.1"))
    spanned = Cell(row=0, column=0, column_span=2, text="Potassium")
    read = Table(rows=1, columns=3, cells=(spanned, Cell(row=0, column=2, text="3.5 - 5.1")))
    assert metrics.cells([table(("Potassium", "3.5 - 5.1"))], [true]) == (1, 3)
    assert metrics.cells([read], [true]) == (1, 3)
    first, second = table(("a", "b")), table(("c", "d"))
    assert metrics.cells([second, first], [first, second]) == (4, 4), "with the one most alike"
    assert metrics.cells([second], [first, second]) == (2, 4)


def test_a_mark_is_right_if_its_state_is_and_one_too_many_is_wrong() -> None:
    true = [checkbox("Shortness of breath", MarkState.TICKED), checkbox("Fever", MarkState.EMPTY)]
    read = [checkbox("Fever", MarkState.TICKED), checkbox("Shortnes of breath", MarkState.TICKED)]
    assert metrics.marks(true, true) == (2, 2)
    assert metrics.marks(read, true) == (1, 2)
    assert metrics.marks([*true, checkbox("Logo", MarkState.EMPTY)], true) == (2, 3)


def test_blank_last_pages_count_and_a_truth_of_nothing_is_refused(lay: Callable[..., list[Exhibit]]) -> None:
    (shown,) = lay("a.png", ".txt", "one\f\f\f")
    assert [page.text for page in shown.truth.pages] == ["one", "", ""]
    for name, suffix, known, content in (("b.mp4", ".txt", " \n", VIDEO), ("b.png", ".json", "{}", PICTURE)):
        with pytest.raises(TruthError, match=f"b{suffix}.*it has no"):
            lay(name, suffix, known, content)
