"""What is on a page: blocks, and the text, lines and tables that derive from them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Cell,
    Doubt,
    DoubtReason,
    Line,
    Mark,
    MarkKind,
    MarkState,
    Source,
    Table,
    Word,
    mean_confidence,
    plain_blocks,
    text_of,
)
from pecia_schemas.results import Page, Verdict

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
WORDS = st.text(max_size=5) | st.sampled_from(["혈압", "5", "mg\n"])
CONFIDENCES = st.none() | st.floats(0, 1)
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


@st.composite
def spoken_lines(draw: st.DrawFn) -> Line:
    box = Box(left=draw(st.integers(-9, 99)), top=draw(st.integers(0, 99)), right=400, bottom=140)
    words = tuple(
        Word(text=text, box=box.model_copy(update={"right": 120 + number}), confidence=confidence)
        for number, (text, confidence) in enumerate(draw(st.lists(st.tuples(WORDS, CONFIDENCES), max_size=4)))
    )
    told = draw(st.sampled_from([" ", "", "-"])).join(word.text for word in words)
    return Line(text=told, box=box, confidence=draw(CONFIDENCES), words=words)


@given(st.lists(st.lists(spoken_lines(), max_size=3), max_size=3), st.booleans())
def test_a_page_is_stored_and_read_back_whole(blocks: list[list[Line]], derived: bool) -> None:
    page = Page(
        number=1,
        blocks=tuple(
            Block(
                kind=BlockKind.TABLE,
                text="\n".join(line.text for line in lines) if derived else "Na\t140",
                lines=tuple(lines),
                table=TABLE,
                marks=(Mark(kind=MarkKind.CHECKBOX, box=BOX, state=MarkState.EMPTY, label="Cup"),),
                source=Source.BOTH,
            )
            for lines in blocks
        ),
        doubts=(Doubt(reason=DoubtReason.DISAGREES, text="5 mg", other="6 mg", on_value=True),),
        verdict=Verdict.REVIEW,
        coverage=0.5,
        width=600,
        height=800,
        engine="test",
    )

    assert Page.model_validate_json(page.stored_json()) == page


def test_no_text_is_stored_twice() -> None:
    words = tuple(Word(text=text, box=BOX, confidence=0.987) for text in ("Blood", "pressure"))
    lines = tuple(Line(text="Blood pressure", box=BOX, words=words) for _ in range(2))
    blocks = plain_blocks("Blood pressure\nBlood pressure", lines, source=Source.OCR)
    page = Page(number=1, blocks=blocks, verdict=Verdict.OK, width=1, height=1, engine="test")
    stored = page.stored_json()
    assert stored.count("pressure") == 2
    assert "[8,0,0,380,30,987]" in stored


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
