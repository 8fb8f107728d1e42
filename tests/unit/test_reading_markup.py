"""What a language model writes, as blocks."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.blocks import BlockKind, Table, plain_blocks, text_of
from pecia_workers.reading.markup import blocks_of

MARKUP = [
    *"#*_`~|<>&[]()!+-=\\\n $.:",
    *("\n\n", "\n| ", " | ", "|---|---|\n", "---\n", "- ", "1. ", "    ", "```", "```html\n", "$$", "**"),
    *("- [x] ", "<table>", "</table>", "<tr>", "<td>", "<td rowspan='9'>", "<td colspan=3>", "</td>", "<th>"),
    *("<caption>", "<b>", "</b>", "<br>", "<p>", "<h2>", "</h2>", "<li>", "<sup>", "</sup>", "<!--"),
    *("&lt;", "&amp;", "![", "]("),
]


def shown(text: str) -> list[tuple[BlockKind, str]]:
    return [(block.kind, block.text) for block in blocks_of(text)]


def only_table(text: str) -> Table:
    (table,) = [block.table for block in blocks_of(text) if block.table]
    return table


@given(st.lists(st.sampled_from(MARKUP) | st.integers(0, 999).map("w{} ".format), max_size=40))
def test_every_word_of_the_model_is_in_the_blocks(pieces: list[str]) -> None:
    text = "".join(pieces)
    words = re.findall(r"w\d+", re.compile(r"<!--.*?-->|\]\([^)\n]*\)", re.DOTALL).sub("", text))
    read = unicodedata.normalize("NFKC", text_of(blocks_of(text)))  # superscripts are digits again
    assert re.findall(r"w\d+", read) == words


@given(st.text())
def test_any_text_becomes_blocks(text: str) -> None:
    for block in blocks_of(text):
        assert block.text.strip()


def test_headings_paragraphs_lists_and_formulas_are_told_apart() -> None:
    text = "# Report\n\nTake **one** tablet\nof *Ibuprofen*.\n\n1. first\n   - inner\n2. second\n\n$$ a_1 = b_2 $$"
    assert shown(text) == [
        (BlockKind.HEADING, "Report"),
        (BlockKind.TEXT, "Take one tablet\nof Ibuprofen."),
        (BlockKind.LIST, "1. first\n  - inner\n2. second"),
        (BlockKind.FORMULA, "$$ a_1 = b_2 $$"),
    ]
    assert blocks_of("### Findings")[0].level == 3


@pytest.mark.parametrize(
    "text",
    [
        *("> 90 mmHg", "5*3*2", "<LOQ>", "a < b > c", "[1]: Smith", "$5 and $10_a_", "snake_case_name"),
        *("+ + +x", "CS\\?", "Q7\\\nX", "\\))s", "C:\\temp", "\\\\lab", "[^)t`l)C", "`\n` LDL", "10\\-5"),
    ],
)
def test_signs_of_the_page_are_not_taken_for_markup(text: str) -> None:
    assert text_of(blocks_of(text)) == text


def test_a_backslash_goes_where_it_keeps_a_sign_from_being_markup() -> None:
    written = "\\# 5\n\\- a\n1\\. b\n3\\.2 c\n\\*c\\* \\_d\\_ 5\\% \\$5 \\<5 \\`e\\` \\[f]"
    assert text_of(blocks_of(written)) == "# 5\n- a\n1. b\n3.2 c\n*c* _d_ 5% $5 <5 `e` [f]"


def test_letters_around_emphasis_stay_in_their_word() -> None:
    assert text_of(blocks_of("**진단**은 x10<sup>6</sup>/µL, H<sub>2</sub>O")) == "진단은 x10⁶/µL, H₂O"


def test_a_picture_is_told_by_its_words_without_its_file_and_boxes_are_ticked_or_empty() -> None:
    assert shown("![X-ray of a hand](page_1.png)") == [(BlockKind.FIGURE, "X-ray of a hand")]
    assert shown("- [x] Cup\n- [ ] Other") == [(BlockKind.LIST, "- ☑ Cup\n- ☐ Other")]


def test_a_table_of_pipes_keeps_empty_cells_and_rows_that_are_longer_than_its_heading() -> None:
    table = only_table("| Test | Value |\n|---|---|\n| K | | high |\n| a\\|b | 1<br>2 |\n| Na |")
    assert table.to_rows() == [["Test", "Value", ""], ["K", "", "high"], ["a|b", "1\n2", ""], ["Na", "", ""]]


def test_a_table_of_html_keeps_its_spans_and_its_caption() -> None:
    written = """<table border="1"><caption>Blood</caption>
    <tr><th rowspan="2">Test</th><th colspan=2>Value &amp; unit</th></tr>

    <tr><td>140</td><td></td></tr></table>"""

    table = only_table(written)

    assert [(c.row, c.column, c.row_span, c.column_span, c.text) for c in table.cells] == [
        (0, 0, 2, 1, "Test"),
        (0, 1, 1, 2, "Value & unit"),
        (1, 1, 1, 1, "140"),
        (1, 2, 1, 1, ""),
    ]
    assert shown(written) == [
        (BlockKind.CAPTION, "Blood"),
        (BlockKind.TABLE, "Test\tValue & unit\t\n\t140\t"),
    ]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
        min_size=1,
        max_size=5,
    )
)
def test_every_place_of_a_grid_belongs_to_one_cell(rows: list[list[tuple[int, int]]]) -> None:
    written = "".join(
        "<tr>" + "".join(f"<td rowspan={down} colspan={across}>x</td>" for down, across in row) + "</tr>"
        for row in rows
    )

    table = only_table(f"<table>{written}</table>")

    places = [
        (cell.row + down, cell.column + across)
        for cell in table.cells
        for down in range(cell.row_span)
        for across in range(cell.column_span)
    ]
    assert sorted(places) == [(row, column) for row in range(table.rows) for column in range(table.columns)]


@pytest.mark.parametrize(
    "text",
    ["<table><tr><td>a</td></tr>between<tr><td>b</td></tr>after</table>", "<table><td colspan=99999>a" * 3],
)
def test_a_table_that_is_not_understood_stays_as_it_was_written(text: str) -> None:
    broken = text.replace("<td>b", "stray<td>b")
    assert blocks_of(broken) == plain_blocks(broken)


def test_a_table_that_was_cut_off_keeps_the_cells_that_are_there() -> None:
    assert only_table("Before\n<table><tr><td>a<td>b<tr><td>c").to_rows() == [["a", "b"], ["c", ""]]


def test_html_without_markdown_is_read_as_well() -> None:
    text = "<html><body><h2>Head</h2><p>one<br>two</p><ul><li>first</li><li>second</li></ul></body></html>"
    assert shown(text) == [
        (BlockKind.HEADING, "Head"),
        (BlockKind.TEXT, "one\ntwo"),
        (BlockKind.LIST, "- first\n- second"),
    ]
