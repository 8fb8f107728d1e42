"""A bundle as FHIR: validated by the library, no value in doubt without its reason, no patient of a conflict."""

import datetime as dt
from collections import Counter
from typing import Any

import pytest

from pecia_schemas.blocks import Block, BlockKind, Box, Cell, Doubt, DoubtReason, Source, Table
from pecia_schemas.bundled import Bundle
from pecia_schemas.bundles import (
    BundleDoubt,
    BundleDoubtReason,
    Cut,
    DocumentKind,
    DocumentPart,
    Identity,
    Split,
)
from pecia_schemas.results import Page, Verdict

pytest.importorskip("fhir.resources", reason="pecia[fhir] is not installed")
ROWS = (
    ("Test", "Result", "Unit", "Reference"),
    ("Sodium", "141", "mmol/l", "135-145"),
    ("Potassium", "4,2", "mmol/l", "3,5 - 5,1"),
    ("Leucocytes", "6,100", "/µl", "4.0-10.0"),
    ("Urine", "negative", "", ""),
)


def box(row: int, column: int) -> Box:
    return Box(left=100 * column, top=20 * row, right=100 * column + 90, bottom=20 * row + 18)


def lab(number: int, *doubts: Doubt) -> Page:
    cells = tuple(
        Cell(row=row, column=column, text=text, box=box(row, column))
        for row, texts in enumerate(ROWS)
        for column, text in enumerate(texts)
    )
    table = Table(rows=len(ROWS), columns=4, cells=cells)
    block = Block(kind=BlockKind.TABLE, text=table.text, source=Source.OCR, table=table)
    verdict = Verdict.REVIEW if doubts else Verdict.OK
    return Page(
        number=number, blocks=(block,), verdict=verdict, doubts=doubts, width=1000, height=1000, engine="fake"
    )


def bundle(*doubts: Doubt, conflict: bool = False) -> Bundle:
    identity = Identity(name="Mary Quill", birth_date=dt.date(1961, 3, 14), record_numbers=("MRN-4",))
    doubted = (BundleDoubt(reason=BundleDoubtReason.IDENTITY_CONFLICT, pages=(2,)),) if conflict else ()
    parts = tuple(
        DocumentPart(
            number=number,
            pages=(number,),
            cut=Cut(page=number, probability=1),
            kind=DocumentKind.LAB_RESULT,
            kind_probability=1,
            identity=identity,
            patient=1,
            doubts=doubted if number == 2 else (),
        )
        for number in (1, 2)
    )
    return Bundle(pages=(lab(1, *doubts), lab(2)), split=Split(documents=parts))


def resources(whole: Any, kind: str) -> list[dict[str, Any]]:
    read = whole.model_dump(mode="json")["entry"]
    return [entry["resource"] for entry in read if entry["resource"]["resourceType"] == kind]


def test_the_documents_of_a_patient_share_their_patient() -> None:
    whole = bundle().to_fhir()
    kinds = Counter(entry["resource"]["resourceType"] for entry in whole.model_dump(mode="json")["entry"])
    assert kinds == {
        "Patient": 1,
        "DocumentReference": 2,
        "Observation": 8,
        "DiagnosticReport": 2,
        "Provenance": 2,
    }
    (patient,) = resources(whole, "Patient")
    assert (patient["name"][0]["text"], patient["birthDate"]) == ("Mary Quill", "1961-03-14")


def test_values_have_units_of_ucum_and_reference_ranges() -> None:
    sodium, potassium, leucocytes, urine = resources(bundle().to_fhir(), "Observation")[:4]
    assert (float(sodium["valueQuantity"]["value"]), sodium["valueQuantity"]["code"]) == (141, "mmol/L")
    assert [float(potassium["referenceRange"][0][end]["value"]) for end in ("low", "high")] == [3.5, 5.1]
    assert leucocytes["valueString"] == "6,100 /µl", "thousands, or a fraction"
    assert urine["valueString"] == "negative"
    assert sodium["extension"][0]["extension"][1]["valueString"] == "100,20,190,38"


def test_a_value_in_doubt_is_absent_for_a_reason() -> None:
    doubt = Doubt(reason=DoubtReason.DISAGREES, box=box(1, 1), text="141")
    whole = bundle(doubt).to_fhir()
    sodium, potassium = resources(whole, "Observation")[:2]
    assert "valueQuantity" not in sodium
    assert sodium["dataAbsentReason"]["coding"][0]["code"] == "unknown"
    assert "valueQuantity" in potassium
    assert [paper["docStatus"] for paper in resources(whole, "DocumentReference")] == ["preliminary", "final"]


def test_a_document_in_conflict_stays_out_or_has_no_patient() -> None:
    assert len(resources(bundle(conflict=True).to_fhir(), "DocumentReference")) == 1
    papers = resources(bundle(conflict=True).to_fhir(with_conflicts=True), "DocumentReference")
    assert ["subject" in paper for paper in papers] == [True, False]
