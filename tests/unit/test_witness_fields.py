"""Where a page's fields stand, and how those of many pages become one object."""

import re
from typing import Any

import pytest
from pydantic import BaseModel, Field

from pecia_schemas.blocks import (
    Block,
    BlockKind,
    Box,
    Doubt,
    DoubtReason,
    Grounding,
    Line,
    MergeRule,
    Place,
    Source,
    Standing,
    Word,
)
from pecia_schemas.results import Document, Page, Verdict
from pecia_workers.reading.fields import closed, merge_rules
from pecia_workers.witness.leaves import with_grounded_fields
from pecia_workers.witness.tokens import WitnessText
from tests.shared.samples import page

LINES = (
    "Invoice 4711 Date 12.03.2024",
    "Gloves 20 1.50 30.00",
    "Masks 100 0.20 20.00",
    "Total 1,250.00 EUR",
    "Refills 2 Repeats 20",
    "Customer Eva Brandt",
)


def heard(lines: tuple[str, ...] = LINES, source: Source = Source.LAYER) -> WitnessText:
    placed = []
    for number, text in enumerate(lines):
        top = 40 * number
        words = [
            Word(
                text=word[0], box=Box(left=10 * word.start(), top=top, right=10 * word.end(), bottom=top + 20)
            )
            for word in re.finditer(r"\S+", text)
        ]
        whole = Box(left=0, top=top, right=10 * len(text) + 10, bottom=top + 20)
        placed.append(Line(text=text, box=whole, words=tuple(words)))
    return WitnessText(
        [Block(kind=BlockKind.TEXT, text="\n".join(lines), lines=tuple(placed), source=source)], source
    )


def grounded(fields: dict[str, Any]) -> Page:
    return with_grounded_fields(page(fields=fields), heard())


def leaves(fields: dict[str, Any]) -> dict[str, Grounding]:
    return {leaf.path: leaf for leaf in grounded(fields).grounding}


def top(leaf: Grounding) -> int:
    return leaf.places[0].box.top


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (1250, 3),
        (1250.0, 3),
        ("1250.00", 3),
        ("1250.00 EUR", 3),
        ("2024-03-12", 0),
        ("12.03.2024", 0),
        ("Eva Brandt", 5),
        ("eva brandt", 5),
        (0.2, 2),
        (4711, 0),
    ],
)
def test_a_value_agrees_in_whatever_way_it_is_written(value: object, row: int) -> None:
    leaf = leaves({"value": value})["/value"]
    assert (leaf.standing, leaf.witness, leaf.confidence) == (Standing.AGREES, Source.LAYER, 1.0)
    assert top(leaf) == 40 * row


@pytest.mark.parametrize(
    ("value", "standing", "other"),
    [
        (1280, Standing.NOT_ON_PAGE, None),
        ("Eva Brandl", Standing.DIFFERS, "Eva Brandt"),
        (7777.5, Standing.NOT_ON_PAGE, None),
        ("Haloperidol", Standing.NOT_ON_PAGE, None),
        ("2024-04-12", Standing.NOT_ON_PAGE, None),
    ],
)
def test_a_value_that_is_not_there_is_doubted(value: object, standing: Standing, other: str | None) -> None:
    result = grounded({"value": value})
    (leaf,) = result.grounding
    assert (leaf.standing, leaf.other) == (standing, other)
    (doubt,) = result.doubts
    differs = standing is Standing.DIFFERS
    assert doubt.reason is (DoubtReason.DISAGREES if differs else DoubtReason.NOT_ON_PAGE)
    assert (result.verdict is Verdict.REVIEW) is doubt.on_value


def standings(lines: tuple[str, ...], fields: dict[str, Any]) -> tuple[Verdict, dict[str, str | None]]:
    """Return the verdict, and what the witness reads where a leaf differs."""
    result = with_grounded_fields(page(fields=fields), heard(lines))
    doubtful = {one.path: one.other for one in result.grounding if one.standing is not Standing.AGREES}
    return result.verdict, doubtful


ANALYTES = ("Sodium 140 mmol/l", "Potassium 4.1 mmol/l", "Calcium 2.3", "mmol/l", "Urea", "22 mg/dl")


def test_a_value_beside_the_name_of_another_item_is_doubted() -> None:
    swapped = [{"name": "Sodium", "value": 4.1}, {"name": "Potassium", "value": 140}, {"name": "Urea"}]
    verdict, doubtful = standings(ANALYTES, {"rows": swapped})
    assert verdict is Verdict.REVIEW
    assert doubtful == {"/rows/0/value": "Potassium 4.1", "/rows/1/value": "Sodium 140"}


def test_values_beside_or_after_their_own_name_are_not_doubted() -> None:
    rows = [
        {"name": name, "value": value, "unit": unit}
        for name, value, unit in (
            ("Sodium", 140, "mmol/l"),
            ("Potassium", 4.1, "mmol/l"),
            ("Calcium", 2.3, None),
            ("Urea", 22, "mg/dl"),
        )
    ]
    assert standings(ANALYTES, {"rows": rows}) == (Verdict.OK, {"/rows/2/unit": None})
    wrapped = ("Takes Ramipril 5 mg, Metformin", "850 mg, Bisoprolol 2.5 mg and", "Torasemide 10 mg")
    drugs = {"Ramipril": 5, "Metformin": 850, "Bisoprolol": 2.5, "Torasemide": 10}
    items = [{"drug": drug, "dose": f"{dose} mg"} for drug, dose in drugs.items()]
    assert standings(wrapped, {"drugs": items}) == (Verdict.OK, {})


@pytest.mark.parametrize(
    ("line", "value", "other"),
    [
        ("No allergy to penicillin", "penicillin", "No allergy to penicillin"),
        ("Patient denies chest pain", "chest pain", "denies chest pain"),
        ("Keine Allergie gegen Penicillin", "Keine Allergie", None),
        ("No fever, penicillin allergy", "penicillin allergy", None),
        ("PAS positive material", "positive material", None),
        ("Pas de fièvre", "fièvre", "Pas de fièvre"),
        ("Not applicable          penicillin", "penicillin", None),
        ("No. 4711", "4711", None),
    ],
)
def test_a_text_that_the_page_denies_is_doubted(line: str, value: str, other: str | None) -> None:
    verdict, doubtful = standings((line,), {"value": value})
    assert (verdict is Verdict.REVIEW, doubtful) == ((True, {"/value": other}) if other else (False, {}))


@pytest.mark.parametrize(
    ("lines", "value", "agrees"),
    [
        (("12.03.2024",), "2024-12-03", False),
        (("12. 03. 2024",), "2024-12-03", False),
        (("12/03/2024",), "2024-12-03", True),
        (("12/03/2024.",), "2024-03-12", True),
    ],
)
def test_a_date_is_read_in_the_order_of_the_page(lines: tuple[str, ...], value: str, agrees: bool) -> None:
    assert (standings(lines, {"value": value})[0] is Verdict.OK) == agrees


def test_null_and_truth_values_are_on_no_page() -> None:
    result = grounded({"a": None, "b": True})
    assert [leaf.standing for leaf in result.grounding] == [None, None]
    assert (result.doubts, result.verdict) == ((), Verdict.OK)


def test_of_equal_numbers_that_of_the_row_or_beside_the_label_is_meant() -> None:
    found = leaves(
        {
            "refills": 2,
            "repeats": 20,
            "items": [{"article": "Gloves", "pieces": 20}, {"article": "Masks", "amount": 20.0}],
        }
    )

    rows = {path: top(leaf) // 40 for path, leaf in found.items()}
    assert rows == {
        "/refills": 4,
        "/repeats": 4,
        "/items/0/article": 1,
        "/items/0/pieces": 1,
        "/items/1/article": 2,
        "/items/1/amount": 2,
    }


class Item(BaseModel):
    article: str
    amount: float


class Invoice(BaseModel):
    number: str | None = None
    total: float | None = Field(None, json_schema_extra={"x-merge": "sum"})
    date: str | None = Field(None, json_schema_extra={"x-merge": "first"})
    remarks: str | None = Field(None, json_schema_extra={"x-merge": "all"})
    items: list[Item] = []


def test_rules_stand_in_the_schema_and_the_model_does_not_see_them() -> None:
    schema = Invoice.model_json_schema()
    assert merge_rules(schema) == {
        "/total": MergeRule.SUM,
        "/date": MergeRule.FIRST,
        "/remarks": MergeRule.ALL,
    }
    assert "x-merge" not in str(closed(schema))


def standing(path: str, value: object, standing: Standing, number: int) -> Grounding:
    place = Place(page=number, box=Box(left=0, top=number, right=9, bottom=9))
    return Grounding(path=path, value=value, standing=standing, places=(place,), pages=(number,))


def test_pages_become_one_object_by_their_rules_and_keep_their_conflicts() -> None:
    rules = merge_rules(Invoice.model_json_schema())
    filled: list[tuple[Any, ...]] = [
        ("4711", 10.5, None, "urgent", [{"article": "Gloves", "amount": 1.5}]),
        ("4712", None, "1.2.", "urgent", []),
        ("4711", 2, "3.4.", "late", [{"article": "Masks", "amount": 2.5}]),
    ]
    pages = [
        page(number, fields=dict(zip(Invoice.model_fields, values, strict=True)), merge=rules)
        for number, values in enumerate(filled, 1)
    ]
    document = Document(pages=tuple(pages))

    assert document.fields == {
        "number": "4711",
        "total": 12.5,
        "date": "1.2.",
        "remarks": ["urgent", "late"],
        "items": [{"article": "Gloves", "amount": 1.5}, {"article": "Masks", "amount": 2.5}],
    }
    found = {leaf.path: leaf for leaf in document.grounding}
    assert found["/number"].pages == (1, 3)
    assert [(one.value, one.pages) for one in found["/number"].conflicts] == [("4712", (2,))]
    assert found["/total"].pages == (1, 3)
    assert found["/items/1/article"].pages == (3,)
    assert document.model_validate_json(document.model_dump_json()).fields == document.fields


def test_true_is_not_one_where_all_values_are_kept() -> None:
    pages = [page(fields={"ticked": value}, merge={"/ticked": MergeRule.ALL}) for value in (1, True, 1)]
    fields = Document(pages=tuple(pages)).fields
    assert fields is not None
    assert list(map(type, fields["ticked"])) == [int, bool]


def test_each_of_all_values_has_the_pages_and_the_best_standing_of_those_that_repeat_it() -> None:
    names = [
        ("A1", Standing.NOT_ON_PAGE),
        ("B2", Standing.NOT_ON_PAGE),
        ("A1", Standing.AGREES),
        (["B2"], None),
    ]
    pages = [
        page(
            number,
            fields={"code": value},
            grounding=(standing("/code", value, found, number),) if found else (),
            merge={"/code": MergeRule.ALL},
        )
        for number, (value, found) in enumerate(names, start=1)
    ]
    document = Document(pages=tuple(pages))
    assert document.fields == {"code": ["A1", "B2", "B2"]}
    leaves = [(leaf.path, leaf.value, leaf.pages, leaf.standing) for leaf in document.grounding]
    assert leaves == [
        ("/code/0", "A1", (1, 3), Standing.AGREES),
        ("/code/1", "B2", (2,), Standing.NOT_ON_PAGE),
        ("/code/2", "B2", (4,), None),
    ]


def test_a_value_is_written_as_on_the_page_that_its_grounding_is_of() -> None:
    leaves = (standing("/name", "EVE", Standing.NOT_ON_PAGE, 1), standing("/name", "Eve", Standing.AGREES, 2))
    document = Document(
        pages=tuple(
            page(number, fields={"name": leaf.value}, grounding=(leaf,))
            for number, leaf in enumerate(leaves, 1)
        )
    )
    assert document.fields == {"name": document.grounding[0].value} == {"name": "Eve"}


def test_a_value_that_a_witness_read_too_stands_before_others() -> None:
    document = Document(
        pages=(
            page(1, fields={"dose": 5}, grounding=(standing("/dose", 5, Standing.NOT_ON_PAGE, 1),)),
            page(2, fields={"dose": 5}, grounding=(standing("/dose", 5, Standing.NOT_ON_PAGE, 2),)),
            page(3, fields={"dose": 50}, grounding=(standing("/dose", 50, Standing.AGREES, 3),)),
        )
    )

    (leaf,) = document.grounding
    assert document.fields == {"dose": 50}
    assert (leaf.standing, leaf.places[0].page) == (Standing.AGREES, 3)
    assert [one.value for one in leaf.conflicts] == [5]


def test_a_document_without_fields_has_none() -> None:
    plain = Document(pages=(page(),))
    assert (plain.fields, plain.grounding) == (None, ())


def test_a_doubt_says_what_it_is_about() -> None:
    (doubt,) = grounded({"dose": 777.25}).doubts
    assert doubt == Doubt(reason=DoubtReason.NOT_ON_PAGE, text="777.25", on_value=True)
