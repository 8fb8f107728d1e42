"""What can be asked for with `fields=`."""

from typing import Any

import pytest
from pydantic import BaseModel

from pecia import InvalidOptionError, ReadDocument
from pecia.asking import check
from samples import page


class Drug(BaseModel):
    name: str
    dose: str | None = None


class Prescription(BaseModel):
    patient: str
    drugs: list[Drug]


class Section(BaseModel):
    title: str
    sections: "list[Section]" = []


@pytest.mark.parametrize("fields", [None, Prescription, Section, {"type": "object"}])
def test_a_model_or_the_schema_of_an_object_is_taken(fields: Any) -> None:
    check(ReadDocument(b"", fields=fields))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "no JSON schema.*type"),
        ({}, "an object"),
        ({"type": "array"}, "an object"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/a"}}}, "one schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}, "does not hold"),
        ({"type": "object", "patternProperties": {"(a+)+": {}}}, "patternProperties"),
        ({"type": "object", "description": "\0"}, "NUL"),
        ({"type": "object", "description": "\ud800"}, "must be JSON"),
        ({"type": "object", "enum": [{1}]}, "must be JSON"),
        ({"type": "object", "description": "long " * 4000}, "at most"),
    ],
)
def test_what_no_answer_could_be_held_to_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOptionError, match=why):
        check(ReadDocument(b"", fields=schema))


def test_fields_come_back_as_the_model_they_were_asked_for_with() -> None:
    found = page(fields={"patient": "Ada", "drugs": [{"name": "Aspirin"}]}).fields_as(Prescription)
    assert found == Prescription(patient="Ada", drugs=[Drug(name="Aspirin")])
    assert page().fields_as(Prescription) is None
