"""What is on a page: blocks, and the text, lines and tables that derive from them."""

from __future__ import annotations

import json

import pytest

from pecia_schemas import Block, BlockKind, Box, Cell, Line, Page, Table, Verdict
from pecia_schemas.blocks import Source, mean_confidence, plain_blocks, text_of

BOX = Box(left=20, top=10, right=400, bottom=40)
TABLE = Table(
    rows=2,
    columns=3,
    cells=(
        Cell(row=0, column=0, column_span=2, text="Blood, venous"),
        Cell(row=0, column=2, text="mmol/L"),
        Cell(row=1, column=0, text="Potassium"),
        Cell(row=1, column=1, text=""),
        Cell(row=1, column=2, text='3.5 "low"\n5.1'),
    ),
)
STORED_BEFORE_BLOCKS = """
{"number": 2, "text": "Hb 12\\nNa 140", "verdict": "ok", "confidence": 0.9, "width": 600, "height": 800,
 "engine": "rapidocr", "lines": [
   {"text": "Hb 12", "box": {"left": 20, "top": 10, "right": 400, "bottom": 40}, "confidence": 0.95},
   {"text": "Na 140", "box": {"left": 20, "top": 50, "right": 400, "bottom": 80}, "confidence": 0.85}]}
"""


def line(text: str, confidence: float | None = None) -> Line:
    return Line(text=text, box=BOX, confidence=confidence)


def test_a_page_that_was_stored_before_pages_had_blocks_is_read() -> None:
    page = Page.model_validate(json.loads(STORED_BEFORE_BLOCKS))

    assert page.text == "Hb 12\nNa 140"
    assert [(one.text, one.confidence) for one in page.lines] == [("Hb 12", 0.95), ("Na 140", 0.85)]
    assert [(block.kind, block.source) for block in page.blocks] == [(BlockKind.TEXT, Source.OCR)]
    assert (page.coverage, page.doubts, page.source) == (None, (), Source.OCR)
    assert Page.model_validate_json(page.model_dump_json()) == page


def test_a_text_that_was_stored_without_lines_is_a_models() -> None:
    about = {"number": 1, "verdict": "ok", "width": 1, "height": 1, "engine": "vllm"}

    assert Page.model_validate(about | {"text": "# Report"}).blocks == plain_blocks("# Report")
    assert Page.model_validate(about | {"text": "", "lines": []}).blocks == ()


def test_text_lines_and_tables_derive_from_the_blocks() -> None:
    blocks = (
        Block(
            kind=BlockKind.TITLE,
            text="Report\nof Ada",
            lines=(line("Report"), line("of Ada")),
            source=Source.OCR,
        ),
        Block(kind=BlockKind.FIGURE, text="", source=Source.OCR),
        Block(kind=BlockKind.TABLE, text="Na\t140", lines=(line("Na 140"),), table=TABLE, source=Source.OCR),
    )
    page = Page(number=1, blocks=blocks, verdict=Verdict.OK, width=1, height=1, engine="test")

    assert page.text == text_of(blocks) == "Report\nof Ada\n\nNa\t140"
    assert [one.text for one in page.lines] == ["Report", "of Ada", "Na 140"]
    assert page.tables == (TABLE,)


def test_a_table_keeps_its_empty_cells_and_quotes_what_csv_wants_quoted() -> None:
    assert TABLE.to_rows() == [["Blood, venous", "", "mmol/L"], ["Potassium", "", '3.5 "low"\n5.1']]
    assert TABLE.to_csv() == '"Blood, venous",,mmol/L\r\nPotassium,,"3.5 ""low""\n5.1"\r\n'


def test_confidence_is_weighted_by_length_and_unknown_ones_do_not_count() -> None:
    assert mean_confidence([line("123", 0.9), line("1", 0.5), line("exact")]) == pytest.approx(0.8)
    assert mean_confidence([]) is mean_confidence([line("exact")]) is mean_confidence([line("", 1.0)]) is None
