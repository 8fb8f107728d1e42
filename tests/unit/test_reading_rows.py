"""Lists that go on over pages: what a cut answer keeps, and the rows of a page that its fields lack."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from pecia_schemas.blocks import Block, BlockKind, Box, Cell, DoubtReason, Line, Source, Table
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.results import Document, Page, PageFailure, Verdict
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.fields import Fields, closed, judge
from pecia_workers.reading.ladder import Reading
from pecia_workers.reading.rows import with_missing_fields
from tests.shared.samples import page

HEAD = ("Article", "Pieces", "Amount")


class Item(BaseModel):
    article: str
    pieces: int | None = None
    amount: float


class Invoice(BaseModel):
    number: str | None = None
    items: list[Item] = []
    total: float


SCHEMA = Invoice.model_json_schema()
ITEM = st.builds(
    Item,
    article=st.sampled_from(["Gloves", "Face mask", "Syringe 5 ml", "Pads, sterile", "붕대", "口罩"]),
    pieces=st.integers(1, 500),
    amount=st.integers(1, 400_000).map(lambda cents: cents / 100),
)
ITEMS = st.lists(ITEM, min_size=3, max_size=30)


def box(row: int) -> Box:
    return Box(left=50, top=100 + 20 * row, right=500, bottom=115 + 20 * row)


def shown(items: list[Item], *, ruled: bool) -> Block:
    rows = [HEAD, *((one.article, str(one.pieces), f"{one.amount:,.2f}") for one in items)]
    rows.append(("Total", "", f"{sum(one.amount for one in items):,.2f}"))
    if not ruled:
        lines = tuple(Line(text=" ".join(filter(None, row)), box=box(n)) for n, row in enumerate(rows))
        text = "\n".join(line.text for line in lines)
        return Block(kind=BlockKind.TEXT, text=text, lines=lines, source=Source.LAYER)
    cells = tuple(
        Cell(row=n, column=column, text=text, box=box(n))
        for n, row in enumerate(rows)
        for column, text in enumerate(row)
    )
    table = Table(rows=len(rows), columns=len(HEAD), cells=cells)
    return Block(kind=BlockKind.TABLE, text=table.text, table=table, source=Source.LAYER)


def answers(*texts: str, verdict: Verdict = Verdict.OK, schema: dict[str, Any] = SCHEMA) -> Fields:
    judged = judge(schema)
    readings = [
        Reading(
            engine="test", change=None, generation=judged(Generation(text=text, verdict=verdict)), seen=(1, 1)
        )
        for text in texts
    ]
    return Fields.of(readings, schema)


def read(
    number: int,
    fields: Fields,
    *blocks: Block,
    schema: dict[str, Any] = SCHEMA,
    verdict: Verdict = Verdict.OK,
) -> Page:
    known = page(number, blocks=blocks, fields=fields.values, fields_text=fields.text, verdict=verdict)
    return with_missing_fields(known, fields, schema)


def written(items: list[Item]) -> str:
    return Invoice(number="4711", items=items, total=sum(one.amount for one in items)).model_dump_json()


@given(ITEMS, st.data())
def test_an_answer_that_is_cut_keeps_its_rows_and_says_so(items: list[Item], data: st.DataObject) -> None:
    text = written(items)
    place = data.draw(st.integers(text.index('"items"'), len(text) - 1))

    fields = answers(text[:place], verdict=Verdict.TRUNCATED)

    assert fields.values
    rows = fields.values.get("items", [])
    whole = text[text.index("[") : place].count("}")
    assert rows == [one.model_dump() for one in items[:whole]]
    assert fields.cut == ("/items" if "[" in text[:place] and "]" not in text[:place] else "")
    cut = read(1, fields)
    assert cut.verdict is Verdict.TRUNCATED
    assert [(doubt.reason, doubt.text) for doubt in cut.doubts] == [(DoubtReason.MISSING_FIELDS, fields.cut)]


def test_of_cut_answers_the_longest_is_kept_and_a_whole_one_before_all() -> None:
    items = [Item(article="Gloves", pieces=number, amount=1) for number in range(9)]
    text = written(items)
    short, long = answers(text[:150], text[:300], verdict=Verdict.TRUNCATED), answers(text[:150], text)
    assert short.kept
    assert (short.kept.generation.text, [one.generation.text for one in short.others]) == (
        text[:300],
        [text[:150]],
    )
    assert (long.values, long.cut) == (json.loads(text), None)


@pytest.mark.parametrize(
    "text",
    ["", "[", '{"items": [', '{"items": [{"article": 1}, {"art', '{"number": 4711, "items": [{"', "Sure, he"],
)
def test_a_cut_answer_without_a_whole_row_or_against_the_schema_is_none(text: str) -> None:
    fields = answers(text, verdict=Verdict.TRUNCATED)
    assert (fields.values, fields.text) == (None, text)
    assert read(1, fields).verdict is Verdict.TRUNCATED


def test_a_page_of_which_no_answer_follows_the_schema_is_to_be_looked_at() -> None:
    result = read(1, answers('{"items": 7}'))
    assert (result.verdict, [doubt.text for doubt in result.doubts]) == (Verdict.REVIEW, [""])


@given(ITEMS, st.booleans(), st.randoms(use_true_random=False))
def test_rows_that_the_page_has_and_the_fields_lack_are_found(
    items: list[Item], ruled: bool, chance: random.Random
) -> None:
    unlike = list({(one.article, one.pieces, one.amount): one for one in items}.values())
    given = sorted(chance.sample(range(len(unlike)), chance.randint(1, len(unlike))))
    block = shown(unlike, ruled=ruled)

    result = read(1, answers(written([unlike[number] for number in given])), block)

    missing = [number for number in range(len(unlike)) if number not in given]
    found = [doubt for doubt in result.doubts if doubt.reason is DoubtReason.MISSING_FIELDS]
    kinds = {unlike[number].article.startswith("Syringe") for number in given}
    sure = [number for number in missing if ruled or unlike[number].article.startswith("Syringe") in kinds]
    if not missing:
        assert (found, result.verdict) == ([], Verdict.OK)
    elif ruled:
        [doubt] = found
        assert (doubt.text, doubt.on_value, result.verdict) == ("/items", True, Verdict.REVIEW)
        assert doubt.other
        assert len(doubt.other.split("\n")) == len(sure)
        assert doubt.box
        assert (doubt.box.top, doubt.box.bottom) == (box(1 + missing[0]).top, box(1 + missing[-1]).bottom)
    elif sure and given[0] < sure[0] < given[-1]:
        assert found


@pytest.mark.parametrize("ruled", [True, False])
def test_a_table_of_which_no_row_was_given_is_a_doubt(ruled: bool) -> None:
    items = [Item(article=name, pieces=5, amount=2) for name in ("Gloves", "Masks", "Pads")]
    empty = answers('{"items": [], "total": 6}')
    assert read(1, empty, shown(items, ruled=ruled)).verdict is Verdict.REVIEW
    assert read(1, empty, shown([], ruled=ruled)).verdict is Verdict.OK


def test_a_list_that_is_a_choice_of_rows_is_not_counted_and_the_model_does_not_see_it() -> None:
    class Chosen(BaseModel):
        items: list[Item] = Field([], json_schema_extra={"x-rows": "some"})

    schema, items = Chosen.model_json_schema(), [Item(article="Gloves", pieces=n, amount=n) for n in range(3)]
    fields = answers(Chosen(items=items[:1]).model_dump_json(), schema=schema)
    assert read(1, fields, shown(items, ruled=True), schema=schema).verdict is Verdict.OK
    assert "x-rows" not in json.dumps(closed(schema))


def test_a_table_of_other_things_is_not_counted() -> None:
    items = [Item(article=name, pieces=5, amount=2) for name in ("Gloves", "Masks", "Pads")]
    other = Table(
        rows=3, columns=4, cells=tuple(Cell(row=n % 3, column=n // 3, text=str(90 + n)) for n in range(12))
    )
    block = Block(kind=BlockKind.TABLE, text=other.text, table=other, source=Source.LAYER)
    assert read(1, answers(written(items)), shown(items, ruled=True), block).verdict is Verdict.OK


def test_a_document_names_the_pages_that_lack_rows() -> None:
    items = [Item(article="Gloves", pieces=number, amount=number + 0.5) for number in range(60)]
    parts = [items[first : first + 10] for first in range(0, 60, 10)]
    blocks = [shown(part, ruled=True) for part in parts]
    cut = answers(written(parts[1])[:200], verdict=Verdict.TRUNCATED)
    pages = (
        read(1, answers(written(parts[0])), blocks[0]),
        read(2, cut, blocks[1]),
        read(3, answers(written(parts[2][:4])), blocks[2]),
        page(4, fields={"items": []}),  # its own table was not understood
        read(6, answers(written(parts[5])), blocks[5]),
        page(7, blank=True, verdict=Verdict.BLANK),
    )
    failed = PageFailure(number=5, failure=Failure(code=FailureCode.DAMAGED, message="damaged"))

    document = Document(pages=pages, failed=(failed,))

    [leaf] = [leaf for leaf in document.grounding if leaf.lacking]
    assert (leaf.path, leaf.pages, leaf.lacking) == ("/items", (1, 2, 3, 6), (2, 3, 4, 5))
    assert document.fields
    assert len(document.fields["items"]) == 10 + written(parts[1])[:200].count("}") + 4 + 10
    assert [one.verdict for one in pages[1:3]] == [Verdict.TRUNCATED, Verdict.REVIEW]


def test_a_document_of_which_no_page_was_filled_names_them_all_and_a_whole_one_none() -> None:
    items = [Item(article="Gloves", pieces=number, amount=number) for number in range(6)]
    whole = Document(pages=tuple(read(n, answers(written(items[n : n + 3]))) for n in (1, 2)))
    assert not any(leaf.lacking for leaf in whole.grounding)
    none = Document(pages=(read(1, answers("{}")), read(2, answers("{}"))))
    assert [(leaf.path, leaf.lacking) for leaf in none.grounding] == [("", (1, 2))]
