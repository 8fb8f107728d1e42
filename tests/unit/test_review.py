"""Whatever is corrected, a page stays a page: its text is what was written, and lines and words are where they were."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pecia import Page, Verdict
from pecia.review.correcting import Decision, revised
from pecia.review.layout import shown, tokens_of, words_of
from pecia_schemas.blocks import Block, BlockKind, Box, Cell, Line, Source, Table, Word

WORDS = st.sampled_from(["500", "50", "mg", "mg,", "7", "Sodium", "a"])
ROWS = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4)
WRITTEN = st.text(alphabet="5a \n", max_size=4)


def word(text: str, row: int, column: int) -> Word:
    box = Box(left=50 * column, top=20 * row, right=50 * column + 40, bottom=20 * row + 12)
    return Word(text=text, box=box, confidence=0.5)


@st.composite
def pages(draw: st.DrawFn) -> Page:
    """Draw a page of a text, some of whose words have no place, and of a table."""
    rows = draw(ROWS)
    lines = []
    for number, row in enumerate(rows):
        words = tuple(word(one, number, place) for place, one in enumerate(row) if draw(st.booleans()))
        if words:
            box = Box(left=0, top=20 * number, right=300, bottom=20 * number + 12)
            lines.append(Line(text=" ".join(row), box=box, words=words))
    text = "\n".join(" ".join(row) for row in rows)
    plain = Block(kind=BlockKind.TEXT, text=text, lines=tuple(lines), source=Source.MODEL)
    cells = draw(st.lists(st.sampled_from(["", "500", "7 mg", "a\n7"]), min_size=4, max_size=4))
    table = Table(
        rows=2,
        columns=2,
        cells=tuple(Cell(row=n // 2, column=n % 2, text=one) for n, one in enumerate(cells)),
    )
    grid = Block(kind=BlockKind.TABLE, text=table.text, table=table, source=Source.MODEL)
    return Page(number=1, blocks=(plain, grid), verdict=Verdict.OK, width=300, height=200, engine="test")


@given(pages(), st.lists(st.tuples(st.integers(0, 30), WRITTEN), max_size=4))
def test_a_page_is_whole_after_every_correction(page: Page, corrections: list[tuple[int, str]]) -> None:
    for number, (which, text) in enumerate(corrections, 1):
        view = shown(page)
        pieces = [piece for block in view["blocks"] for piece in block.get("tokens") or block["cells"]]
        if not pieces:
            break
        piece = pieces[which % len(pieces)]
        before = page.text.split()
        decision = Decision(target=piece["target"], text=text)

        page = revised(page, decision, number=number, by="eva", at=datetime.now(UTC))

        assert page.revision
        assert page.revision.correction
        assert page.revision.correction.before == piece["text"]
        assert len(page.text.split()) == len(before) - len(piece["text"].split()) + len(text.split())
        assert Page.model_validate_json(page.stored_json()) == page
        for block in page.blocks:
            assert block.text == (block.table.text if block.table else block.text)
            assert all(one.line is not None for one in tokens_of(block) if one.box)
            for line in block.lines:
                placed = [line.words[at].text for at in dict.fromkeys(words_of(line)) if at is not None]
                assert placed == [one.text for one in line.words]


@given(pages(), st.integers(0, 30))
def test_a_correction_keeps_the_place_of_the_word_and_all_others(page: Page, which: int) -> None:
    tokens = tokens_of(page.blocks[0])
    place = which % len(tokens)

    after = revised(
        page,
        Decision(target=f"b0t{place}-{place + 1}", text="corrected"),
        number=1,
        by="eva",
        at=datetime.now(UTC),
    )

    now = tokens_of(after.blocks[0])
    assert [one.text for one in now] == [
        "corrected" if number == place else one.text for number, one in enumerate(tokens)
    ]
    assert now[place].box == tokens[place].box


def test_each_of_many_equal_values_has_its_own_place() -> None:
    """In a chart of thousands, among text of which no line has a place."""
    box = Box(left=0, top=0, right=9, bottom=9)
    row = Line(text="0 - 0", box=box)
    text = "\n".join("0 - 0 and" if number % 7 else "0 - 0" for number in range(2_000))
    block = Block(kind=BlockKind.TEXT, text=text, lines=(row,) * 2_000, source=Source.MODEL)
    found = [[token.line for token in tokens_of(block) if token.text == one] for one in ("0", "-", "and")]
    assert found[0] == [number for number in range(2_000) for _ in range(2)]
    assert found[1] == [*range(2_000)]
    assert set(found[2]) == {None}
