"""Answers of each format as blocks; their shapes are those that the models' makers show."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.blocks import Block, BlockKind, Box, text_of
from pecia_schemas.results import Verdict
from pecia_workers.engines.reader_cards import AnswerFormat
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.answers import answer_blocks, with_blocks
from pecia_workers.reading.ladder import judged
from pecia_workers.reading.markup import blocks_of
from tests.shared.answers import ANSWERS, PAGE, FormatAnswer

WIDTH, HEIGHT = PAGE
MARKUP = [
    *("<doctag>", "<text>", "</text>", "<loc_1>", "<otsl>", "</otsl>", "<fcel>", "<ucel>", "<lcel>", "<nl>"),
    *("<unordered_list>", "<list_item>", "</list_item>", "</unordered_list>", "<formula>", "<title>"),
    *('[{"bbox": [1, 2, 3, 4], "category": "Text", "text": "', '"}', ", ", "]", "{", "}", "\\"),
    *('<div data-bbox="1 2 3 4" data-label="Table">', "</div>", "<table>", "<td>", "</table>", "<p>"),
    *("<|ref|>text<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>", "<|det|>", "<page_number>", "</page_number>"),
    *("![text](1,2,3,4) ", "![table+](1,2,3,4) "),
    *("---\n", "primary_language: en\n", "# ", "| ", "$$"),
]


def blocks(answer: AnswerFormat, text: str, seen: tuple[int, int] = PAGE) -> tuple[Block, ...]:
    return answer_blocks(answer, text, PAGE, seen)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.format))
def test_an_answer_of_each_format_becomes_its_blocks(answer: FormatAnswer) -> None:
    found = blocks(answer.format, answer.text)
    assert [(block.kind, block.text) for block in found] == list(answer.blocks)
    assert [block.box is not None for block in found] == [answer.has_places] * len(found)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (AnswerFormat.DOCTAGS, "<text><loc_50><loc_100><loc_250><loc_150>Na 140</text>"),
        (AnswerFormat.HTML, '<div data-bbox="100 200 500 300" data-label="Text"><p>Na 140</p></div>'),
        (AnswerFormat.GROUNDED, "<|ref|>text<|/ref|><|det|>[[100, 200, 500, 300]]<|/det|>\nNa 140"),
        (AnswerFormat.LAYOUT, '[{"bbox": [50, 100, 250, 150], "category": "Text", "text": "Na 140"}]'),
        (AnswerFormat.LAYOUT_1000, '[{"bbox": [100, 200, 500, 300], "category": "text", "text": "Na 140"}]'),
        (AnswerFormat.MARKED, "![text](100,200,500,300) Na 140"),
    ],
)
def test_a_place_is_told_in_pixels_of_the_page(answer: AnswerFormat, text: str) -> None:
    (block,) = blocks(answer, text, seen=(500, 500))
    assert (block.text, block.box) == (
        "Na 140",
        Box(left=WIDTH // 10, top=HEIGHT // 5, right=WIDTH // 2, bottom=HEIGHT * 3 // 10),
    )


@pytest.mark.parametrize("place", [[9e9, 0, 1, 1], [5, 5, 5, 9], [1, 2], ["a", 1, 2, 3], None])
def test_a_place_that_cannot_be_is_none(place: object) -> None:
    text = json.dumps([{"bbox": place, "category": "Text", "text": "Na 140"}])
    (block,) = blocks(AnswerFormat.LAYOUT, text)
    assert (block.text, block.box) == ("Na 140", None)


@pytest.mark.parametrize("answer", AnswerFormat)
def test_markdown_from_a_model_of_another_format_is_read_as_markdown(answer: AnswerFormat) -> None:
    found = blocks(answer, "# Report\n\nDose {5} mg [a]")
    assert [(block.kind, block.text) for block in found] == [
        (BlockKind.HEADING, "Report"),
        (BlockKind.TEXT, "Dose {5} mg [a]"),
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (AnswerFormat.LAYOUT, '[{"bbox": [1, 2, 3, 4], "category": "Text", "text": "Take \\"one\\" tab'),
        (AnswerFormat.LAYOUT, r'[{"category": "Text", "text": "Take \"one\" tab"}, {"bbox": [1, 2'),
        (AnswerFormat.DOCTAGS, '<doctag><text><loc_1><loc_2><loc_3><loc_4>Take "one" tab'),
        (AnswerFormat.HTML, '<div data-bbox="1 2 3 4" data-label="Text"><p>Take "one" tab'),
    ],
)
def test_an_answer_that_was_cut_off_keeps_its_last_words(answer: AnswerFormat, text: str) -> None:
    assert text_of(blocks(answer, text)) == 'Take "one" tab'


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r'"a \( x \) b"', r"a \( x \) b"),
        ('"a\nb"', "a b"),
        ('["a", 7]', r'["a", 7]'),
        ('"a" b', 'a" b'),
        (r'"a "b" \alpha c"', r'a "b" \alpha c'),
    ],
    ids=["a formula", "a bare line break", "a list", "broken", "bare quotation marks"],
)
@pytest.mark.parametrize(
    "element",
    ['{{"bbox": [1, 2, 3, 4], "category": "Text", "text": {}}}', '{{"text": {}, "category": "Text"}}'],
    ids=["text last", "text first"],
)
def test_an_element_that_is_no_json_costs_no_other(written: str, text: str, element: str) -> None:
    answer = ", ".join(element.format(one) for one in ('"first"', written, '"last"'))
    first, *between, last = blocks(AnswerFormat.LAYOUT, f"[{answer}]")
    assert (first.text, last.text) == ("first", "last")
    assert " ".join(text_of(between).split()) == text


@pytest.mark.parametrize(
    "last", ['{"category": "Text", "text": "w4"}', '{"category": "Text", "text": "w4', '{"b": "w4"}', "w4"]
)
def test_words_beside_the_elements_are_kept_in_their_order(last: str) -> None:
    answer = f'w1 [{{"category": "Text", "text": "w2"}}, w3 {last}'
    assert re.findall(r"w\d", text_of(blocks(AnswerFormat.LAYOUT, answer))) == ["w1", "w2", "w3", "w4"]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_what_stands_for_a_picture_in_html_is_text(quote: str) -> None:
    html = f'<div data-bbox="1 2 3 4" data-label="Image"><img alt={quote}Chest X-ray{quote}/></div>'
    assert text_of(blocks(AnswerFormat.HTML, html)) == "Chest X-ray"


@pytest.mark.parametrize("answer", AnswerFormat)
@given(st.lists(st.sampled_from(MARKUP) | st.integers(0, 999).map("w{} ".format), max_size=30))
def test_any_answer_becomes_blocks_of_text(answer: AnswerFormat, pieces: list[str]) -> None:
    for block in blocks(answer, "".join(pieces)):
        assert block.text.strip()


@given(st.lists(st.sampled_from(MARKUP[:16]) | st.integers(0, 999).map("w{} ".format), max_size=30))
def test_no_word_between_doctags_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    words = re.findall(r"w\d+", text)
    assert sorted(re.findall(r"w\d+", text_of(blocks(AnswerFormat.DOCTAGS, text)))) == sorted(words)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (AnswerFormat.MARKDOWN, "<table><tr><td>Na</td><td>140</td></tr></table>"),
        (AnswerFormat.DOCTAGS, "<text><loc_140><loc_1><loc_2><loc_3>Na 140</text>"),
        (AnswerFormat.HTML, '<div data-bbox="140 1 140 3" data-label="Text">Na 140</div>'),
        (AnswerFormat.GROUNDED, "<|ref|>text<|/ref|><|det|>[[140, 1, 140, 3]]<|/det|>\nNa 140"),
        (AnswerFormat.LAYOUT, '[{"bbox": [140, 1, 140, 3], "category": "Text", "text": "Na 140"}]'),
    ],
)
@pytest.mark.parametrize("unsure", ["markup", "text"])
def test_a_doubt_is_about_the_text_never_about_a_place(answer: AnswerFormat, text: str, unsure: str) -> None:
    at = text.rindex("140")
    doubtful = {at} if unsure == "text" else {text.index("140")} - {at}
    tokens = tuple((letter, -2.0 if place in doubtful else 0.0) for place, letter in enumerate(text))
    read = judged(with_blocks(answer, PAGE, Generation(text=text, verdict=Verdict.OK, tokens=tokens)))
    assert [doubt.text for doubt in read.doubts] == ["140"] * (unsure == "text")


@pytest.mark.parametrize("bare", [False, True], ids=["in a table", "as an element model writes them"])
def test_cells_of_a_table_go_on_to_the_right_and_down(bare: bool) -> None:
    cells = "<ched>Test<lcel><nl><fcel>Na<fcel>140<nl><ucel><fcel>141<nl>"
    (block,) = blocks(AnswerFormat.DOCTAGS, cells if bare else f"<otsl>{cells}</otsl>")
    assert block.table
    spans = [(cell.text, cell.row_span, cell.column_span) for cell in block.table.cells]
    assert spans == [("Test", 1, 2), ("Na", 2, 1), ("140", 1, 1), ("141", 1, 1)]


def test_a_list_in_a_list_keeps_its_marks_and_has_the_place_of_all() -> None:
    tags = (
        "<ordered_list>\n<list_item><loc_50><loc_50><loc_100><loc_60>First"
        "<unordered_list>\n<list_item>inner</list_item></unordered_list></list_item>\n"
        "<list_item><loc_40><loc_70><loc_90><loc_80>Second</list_item>\n</ordered_list>"
    )
    (block,) = blocks(AnswerFormat.DOCTAGS, tags)
    assert (block.kind, block.text) == (BlockKind.LIST, "1. First\n  - inner\n2. Second")
    assert block.box == Box(left=80, top=140, right=200, bottom=224)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (AnswerFormat.LAYOUT, "[]"),
        (AnswerFormat.DOCTAGS, "<doctag></doctag>"),
        (AnswerFormat.MARKDOWN, "```markdown\n```"),
        (AnswerFormat.MARKDOWN, "<!-- image -->"),
        (AnswerFormat.MARKDOWN, "![](page-1.png)"),
    ],
)
def test_an_answer_of_markup_alone_is_unreadable(answer: AnswerFormat, text: str) -> None:
    read = judged(with_blocks(answer, PAGE, Generation(text=text, verdict=Verdict.OK)))
    assert (text_of(read.blocks or blocks_of(read.text)), read.verdict) == ("", Verdict.UNREADABLE)
