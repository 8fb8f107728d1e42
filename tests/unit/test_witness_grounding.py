"""What a page's text is worth beside a witness that may be wrong itself."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Cell,
    DoubtReason,
    Line,
    Source,
    Table,
    Word,
    plain_blocks,
)
from pecia_schemas.results import Page, Verdict
from pecia_workers.layout.lines import joined, words_of
from pecia_workers.protocol.base import Piece
from pecia_workers.witness.grounding import grounded
from pecia_workers.witness.second_look import pieces_in_question, with_readings
from pecia_workers.witness.tokens import WitnessText
from tests.shared.samples import page as sample_page

SURE: frozenset[str] = frozenset()
"""No word of which the model was unsure."""


def judged(written: str, seen: str, confidence: float = 0.97, unsure: frozenset[str] | None = None) -> Page:
    line = Line(text=seen, box=Box(left=0, top=0, right=10 * len(seen), bottom=20), confidence=confidence)
    block = Block(kind=BlockKind.TEXT, text=seen, lines=(line,), source=Source.OCR)
    page = sample_page(blocks=plain_blocks(written, source=Source.MODEL))
    return grounded(page, WitnessText([block], Source.OCR), unsure)


@pytest.mark.parametrize(
    ("confidence", "unsure", "verdict"),
    [
        (0.85, SURE, Verdict.OK),
        (0.95, SURE, Verdict.REVIEW),
        (0.85, frozenset({"PO4b"}), Verdict.REVIEW),
        (0.85, None, Verdict.REVIEW),
    ],
)
def test_signs_that_look_alike_are_the_models_where_it_is_sure_and_its_witness_is_not(
    confidence: float, unsure: frozenset[str] | None, verdict: Verdict
) -> None:
    page = judged("Sample PO4b of today", "Sample P04b of today", confidence, unsure)
    assert page.verdict is verdict
    assert bool(page.doubts) is (verdict is Verdict.REVIEW)


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("Sodium 146 mmol/l", "Sodium 148 mmol/l"),
        ("Ward 12 on Monday", "Ward 2 on Monday"),
        ("Seen by Dr. Brandt", "Seen by Dr. Brand"),
    ],
)
def test_however_unsure_a_witness_is_other_signs_stay_in_doubt(written: str, seen: str) -> None:
    assert judged(written, seen, 0.5, SURE).verdict is Verdict.REVIEW


@pytest.mark.parametrize(
    ("written", "seen", "verdict"),
    [
        ("SpO2 98 % at rest", "Sp02 98 % at rest", Verdict.OK),
        ("neoplasm of the tongue C02", "neoplasm of the tongue CO2", Verdict.REVIEW),
        ("Sodium 140 mmol/l", "Sodium 140 mmol/1", Verdict.OK),
        ("Take l tablet at noon", "Take 1 tablet at noon", Verdict.REVIEW),
        ("Take I tablet at noon", "Take 1 tablet at noon", Verdict.REVIEW),
    ],
)
def test_a_letter_is_no_digit_but_in_known_units_and_names(written: str, seen: str, verdict: Verdict) -> None:
    assert judged(written, seen).verdict is verdict


def test_a_negation_before_another_word_is_in_doubt() -> None:
    page = judged("He has no fever, and a cough since Monday", "He has fever, and no a cough since Monday")
    assert page.verdict is Verdict.REVIEW
    assert [(doubt.reason, doubt.text) for doubt in page.doubts] == [(DoubtReason.MISPLACED, "no")]


@pytest.mark.parametrize("seen", ["84-116", "84 -116", "84 - 116"])
def test_each_number_of_a_range_stands_on_its_own_ink(seen: str) -> None:
    font = ImageFont.load_default(24)
    page = Image.new("RGB", (200, 60), "white")
    ImageDraw.Draw(page).text((20, 15), "84 - 116", "black", font)
    true = [
        ImageDraw.Draw(page).textbbox((20 + font.getlength(before), 15), text, font)
        for before, text in (("", "84"), ("84 - ", "116"))
    ]
    line = Line(text=seen, box=Box(left=18, top=14, right=round(true[1][2]) + 2, bottom=42), confidence=0.97)
    block = Block(kind=BlockKind.TEXT, text=seen, lines=(line,), source=Source.OCR)
    text = WitnessText([block], Source.OCR, pixels=np.asarray(page))

    assert [one.box.left for one in text.seen] == pytest.approx([box[0] for box in true], abs=4)
    assert [one.box.right for one in text.seen] == pytest.approx([box[2] for box in true], abs=4)


@pytest.mark.parametrize(
    ("written", "seen", "verdict"),
    [
        ("Change *\u20130.5 mmol/l", "Change *-0.5 mmol/l", Verdict.OK),
        ("Change *\u20130.5 mmol/l", "Change * 0.5 mmol/l", Verdict.REVIEW),
        ("Open 13.00 \u2013 16.00 daily", "Open 13.00 - 16.00 daily", Verdict.OK),
    ],
)
def test_any_dash_that_touches_a_number_is_its_sign(written: str, seen: str, verdict: Verdict) -> None:
    assert judged(written, seen).verdict is verdict


def table(rows: list[list[str]], places: dict[str, tuple[int, int]] | None = None) -> Block:
    """Return a table of columns 200 wide; `places`: where words stand from left to right that do not fill a column."""
    at = {
        text: (places or {}).get(text, (200 * column, 200 * column + 100))
        for row in rows
        for column, text in enumerate(row)
    }
    cells, lines = [], []
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            top, (left, right) = 40 * number, at[text]
            cell = Box(left=200 * column, top=top, right=200 * column + 200, bottom=top + 40)
            cells.append(Cell(row=number, column=column, text=text, box=cell))
            if text:
                lines.append(Line(text=text, box=Box(left=left, top=top + 10, right=right, bottom=top + 30)))
    grid = Table(rows=len(rows), columns=len(rows[0]), cells=tuple(cells))
    return Block(kind=BlockKind.TABLE, text=grid.text, lines=tuple(lines), table=grid, source=Source.LAYER)


def read_from(block: Block, rows: list[list[str]]) -> Page:
    """Return a model's page of these rows, judged by a witness that has the table."""
    return grounded(sample_page(blocks=(table(rows),)), WitnessText([block], Source.LAYER))


def test_a_witness_that_lists_a_row_in_another_order_has_its_cells_in_their_places() -> None:
    rows = [["Analyte", "Today", "Before"], ["Sodium", "140", "138"], ["Calcium", "2.31", "2.28"]]
    block = table(rows)
    shuffled = block.model_copy(update={"lines": block.lines[::-1]})
    assert read_from(shuffled, rows).verdict is Verdict.OK
    swapped = [rows[0], ["Sodium", "138", "140"], rows[2]]
    assert read_from(shuffled, swapped).verdict is Verdict.REVIEW


def test_lines_of_a_cell_may_follow_each_other_in_another_order_than_the_witness_lists_them() -> None:
    places = {"Surname": (0, 0), "Suffix": (300, 0), "Doe": (0, 40), "Jr": (300, 40)}
    words = {
        text: Word(text=text, box=Box(left=x, top=y, right=x + 100, bottom=y + 20), confidence=0.97)
        for text, (x, y) in places.items()
    }

    def verdict(*listed: str) -> Verdict:
        row = [Line(text=text, box=words[text].box, words=(words[text],)) for text in listed]
        page = sample_page(blocks=plain_blocks("Surname Suffix Doe Jr", source=Source.MODEL))
        return grounded(page, WitnessText([block_of(joined(row))], Source.OCR)).verdict

    assert verdict("Surname", "Doe", "Suffix", "Jr") is Verdict.OK
    assert verdict("Suffix", "Surname", "Doe", "Jr") is Verdict.REVIEW


def test_a_head_may_stand_amid_the_columns_that_it_spans() -> None:
    body = [["Sodium", "140", "138", "7"], ["Calcium", "2.31", "2.28", "8"], ["Iron", "11.9", "12.4", "9"]]
    rows = [["Report", "", "", ""], ["", "in 2023", "", ""], *body]
    block = table(rows, {"in 2023": (420, 480)})  # above the middle of 200 to 700
    assert read_from(block, rows).verdict is Verdict.OK
    moved = [rows[0], rows[1], *body[:2], ["Iron", "12.4", "", "9"]]
    assert read_from(block, moved).verdict is not Verdict.OK


def test_a_head_stands_above_the_middle_of_the_columns_that_it_is_given() -> None:
    body = [["Sodium", "140", "71", "138", "72"], ["Iron", "11", "73", "12", "74"]]
    rows = [["", "in 2023", "", "in 2024", ""], *body]
    block = table(rows, {"in 2023": (300, 400), "in 2024": (700, 800)})  # of columns at 250, 450, 650 and 850
    assert read_from(block, rows).verdict is Verdict.OK
    for moved in (["", "", "in 2023", "in 2024", ""], ["", "in 2023", "in 2024", "", ""]):
        assert read_from(block, [moved, *body]).verdict is Verdict.REVIEW


def test_a_value_beside_an_empty_cell_needs_one_other_to_show_its_column() -> None:
    rows = [["29", "30", "31", ""], ["22", "23", "24", "25"]]
    assert read_from(table(rows), rows).verdict is Verdict.OK
    assert read_from(table(rows[::-1]), [rows[1], ["29", "30", "", "31"]]).verdict is Verdict.REVIEW


def test_of_equal_values_each_has_its_own_place() -> None:
    rows = [["", "air", "water"], ["Iron", "1", "1"], ["Zinc", "1", "1"], ["Lead", "1", "1"]]
    order = [  # a witness that lists a value with the row above
        [(0, 1), (0, 2)],
        [(1, 0), (1, 1), (1, 2)],
        [(2, 0), (2, 1), (3, 1), (2, 2)],
        [(3, 0), (3, 2)],
    ]

    def seen(row: int, column: int) -> Line:
        box = Box(left=200 * column, top=40 * row, right=200 * column + 100, bottom=40 * row + 20)
        text = rows[row][column]
        return Line(text=text, box=box, words=(Word(text=text, box=box, confidence=0.97),))

    blocks = [block_of(joined([seen(*place) for place in line])) for line in order]
    page = sample_page(blocks=(table(rows),))
    assert grounded(page, WitnessText(blocks, Source.OCR)).verdict is Verdict.OK
    wrong = sample_page(blocks=(table([*rows[:2], ["Zinc", "2", "1"], rows[3]]),))
    assert grounded(wrong, WitnessText(blocks, Source.OCR)).verdict is not Verdict.OK


@pytest.mark.parametrize(
    ("written", "seen", "verdict"),
    [
        ("rates.\u00b9\u00b2 They rose", "rates. They rose", Verdict.OK),
        ("\u00b9\u00b3 The age", "3 The age", Verdict.OK),
        ("\u00b9\u00b3 The age", "8 The age", Verdict.REVIEW),
        ("of 5 m\u00b2 then", "of 5 m then", Verdict.REVIEW),
        *(
            (f"of 5.1 10{power}/l then", "of 5.1 10/l then", Verdict.REVIEW)
            for power in "\u00b9\u00b2\u00b3\u2070\u2074\u2075\u2076\u2077\u2078\u2079"
        ),
    ],
)
def test_the_number_of_a_note_is_no_value_and_a_power_is(written: str, seen: str, verdict: Verdict) -> None:
    rest = (
        " with the methodology described in the report of the other year and its tables, as the authors say"
    )
    assert judged(written + rest, seen + rest).verdict is verdict


def test_what_is_missed_is_looked_for_where_the_rest_of_its_line_stands() -> None:
    text = "Issue of March 2011"
    line = Line(text=text, box=Box(left=0, top=100, right=10 * len(text), bottom=120), confidence=0.97)
    witness = WitnessText([block_of(line)], Source.OCR)
    page = sample_page(blocks=plain_blocks("Issue of March 2011 13", source=Source.MODEL))
    piece = Piece(corners=(0.0,) * 8, words=tuple(word.box for word in words_of(line)))
    assert grounded(page, witness).verdict is Verdict.REVIEW

    again, gap = pieces_in_question(page, witness, [piece])
    assert (again, gap.is_gap) == (piece, True)
    assert gap.words == piece.words
    (alone,) = pieces_in_question(page, witness, [])  # it was read where nothing was detected
    assert alone.words == piece.words

    def verdict(text: str) -> Verdict:
        box = line.box.model_copy(update={"left": line.box.right + 20, "right": line.box.right + 40})
        found = Line(text=text, box=box, words=(Word(text=text, box=box, confidence=0.9),))
        blocks = with_readings([block_of(line)], [gap], [found])
        return grounded(page, WitnessText(blocks, Source.OCR)).verdict

    assert (verdict("13"), verdict("18")) == (Verdict.OK, Verdict.REVIEW)
    clean = sample_page(blocks=plain_blocks("Issue of March 2011", source=Source.MODEL))
    assert pieces_in_question(clean, witness, [piece]) == ()


def block_of(line: Line) -> Block:
    return Block(kind=BlockKind.TEXT, text=line.text, lines=(line,), source=Source.OCR)
