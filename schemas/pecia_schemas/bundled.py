"""What a read bundle returns: its pages, the documents that they are, and these as a FHIR R4B Bundle.

In FHIR, a value in doubt has no value but a reason why it is absent; what was read stands in its note. Nothing of a
document in conflict is in it unless that is asked for, and then without a patient.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from pecia_schemas.blocks import Box, Cell, Doubt, Table
from pecia_schemas.bundles import DocumentKind, DocumentPart, IdentitySign, Split
from pecia_schemas.results import BundledDocument, Document, Page


class Bundle(Document):
    """The result of `ReadBundle`: all pages of the bundle, and their split into documents."""

    split: Split | None = None
    """None if the split failed, or does not exist yet."""

    @property
    def revision(self) -> int:
        """Number of the last revision of the pages and documents; 0 if never revised."""
        last = self.split.revision if self.split else None
        return max(super().revision, last.number if last else 0)

    @cached_property
    def documents(self) -> tuple[BundledDocument, ...]:
        """The documents in order, each with its pages that were read; pages that failed are in its `failed`."""
        read = {page.number: page for page in self.pages}
        failed = {page.number: page for page in self.failed}
        return tuple(
            BundledDocument(
                part=part,
                pages=tuple(read[number] for number in part.pages if number in read),
                failed=tuple(failed[number] for number in part.pages if number in failed),
            )
            for part in (self.split.documents if self.split else ())
        )

    def to_fhir(self, *, with_conflicts: bool = False, recorded: datetime | None = None) -> Any:
        """Return the documents as a FHIR R4B Bundle of `fhir.resources`, which validates it: a pydantic model.

        `with_conflicts` includes documents whose patient is in conflict, without a patient. `recorded` is the time of
        creation, by default now. Raises `ImportError` without pecia[fhir].
        """
        return fhir_of(self.documents, with_conflicts=with_conflicts, recorded=recorded)


PLACE: Final = "urn:pecia:fhir:place"
"""URL of the extension with the page of a value, and its box in pixels."""
DOUBTED: Final = "urn:pecia:fhir:doubted"
"""URL of the extension that marks a document's text as doubtful."""
_ABSENT: Final = "http://terminology.hl7.org/CodeSystem/data-absent-reason"
_UCUM: Final = "http://unitsofmeasure.org"
_PLAIN_UNITS: Final = (
    "mmol/L umol/L nmol/L pmol/L g/L mg/L ug/L ng/L g/dL mg/dL ug/dL ng/mL pg/mL U/L kU/L mU/L % fL pg s mm/h mL/min "
    "mmol/mol"
)
_UNITS: Final = {unit.lower(): unit for unit in _PLAIN_UNITS.split()} | {
    "iu/l": "[IU]/L",
    "iu/ml": "[IU]/mL",
    "mmhg": "mm[Hg]",
    "/ul": "/uL",
    "/nl": "/nL",
    "10^9/l": "10*9/L",
    "10^12/l": "10*12/L",
    "x10^9/l": "10*9/L",
    "x10^12/l": "10*12/L",
}
"""Units as printed, in lower case, with their UCUM codes."""
_COLUMNS: Final = {
    "name": re.compile(r"test|analyte|parameter|examination|untersuchung|component", re.IGNORECASE),
    "value": re.compile(r"result|value|wert|ergebnis", re.IGNORECASE),
    "unit": re.compile(r"unit|einheit", re.IGNORECASE),
    "range": re.compile(r"ref|range|norm", re.IGNORECASE),
}
_NUMBER: Final = r"-?\d+(?:[.,]\d+)?"
_VALUE: Final = re.compile(rf"(<=|>=|<|>)?\s*({_NUMBER})\s*(.*)")
_RANGE: Final = re.compile(rf"({_NUMBER})\s*(?:-|\u2013|to|bis)\s*({_NUMBER})")
_THOUSANDS: Final = re.compile(r"\d,\d{3}$")


def fhir_of(
    documents: Iterable[BundledDocument], *, with_conflicts: bool = False, recorded: datetime | None = None
) -> Any:
    """Return a bundle's documents as a validated `fhir.resources.R4B.bundle.Bundle`.

    An `OperationOutcome` lists documents that are left out because their patient is in conflict. Raises `ImportError`
    without the extra `fhir`.
    """
    when = (recorded or datetime.now(UTC)).isoformat()
    entries: dict[str, dict[str, Any]] = {}
    left_out = []
    for document in documents:
        if with_conflicts or not document.part.has_conflict:
            for name, resource in _resources(document, when):
                entries.setdefault(name, {"fullUrl": name, "resource": resource})
        else:
            pages = ", ".join(map(str, document.part.pages))
            why = f"Document {document.part.number} (pages {pages}): its patient is in conflict."
            left_out.append({"severity": "warning", "code": "suppressed", "details": {"text": why}})
    if left_out:
        name = _id(str(left_out), "outcome")
        outcome = {"resourceType": "OperationOutcome", "issue": left_out}
        entries[name] = {"fullUrl": name, "resource": outcome}
    whole = {"type": "collection", "timestamp": when, "entry": list(entries.values())}
    return import_module("fhir.resources.R4B.bundle").Bundle.model_validate(whole)


def _resources(document: BundledDocument, when: str) -> Iterator[tuple[str, dict[str, Any]]]:
    part = document.part
    scope = f"{document.text}\0{part.number}"  # the same result has the same ids
    patient = None if part.has_conflict else _patient(part)
    subject: dict[str, Any] = {}
    if patient:
        person = _id(f"{part.patient}{patient}", "patient")
        yield person, patient
        subject = {"subject": {"reference": person}}
    paper = _id(scope, "document")
    yield paper, _reference(document, when) | subject
    targets, observations = [paper], []
    for number, observation in enumerate(_observations(document)):
        name = _id(scope, f"observation {number}")
        observations.append(name)
        yield name, observation | subject
    if observations:
        report = _id(scope, "report")
        targets += [report, *observations]
        report_of = {
            "resourceType": "DiagnosticReport",
            "status": "preliminary" if _is_doubted(document) else "final",
            "code": {"text": part.title or "Laboratory report"},
            "result": [{"reference": name} for name in observations],
            **({"effectiveDateTime": part.date.isoformat()} if part.date else {}),
            **subject,
        }
        yield report, report_of
    pages = ", ".join(map(str, part.pages))
    provenance = {
        "resourceType": "Provenance",
        "recorded": when,
        "target": [{"reference": name} for name in targets],
        "agent": [
            {"who": {"display": name}}
            for name in sorted({page.engine for page in document.pages}) or ["pecia"]
        ],
        "entity": [{"role": "source", "what": {"display": f"pages {pages} of the bundle"}}],
        "extension": [_place(number, None) for number in part.pages],
    }
    yield _id(scope, "provenance"), provenance


def _id(scope: str, what: str) -> str:
    return uuid5(NAMESPACE_URL, f"pecia {scope} {what}").urn


def _patient(part: DocumentPart) -> dict[str, Any] | None:
    """Return the undoubted parts of the identity as a patient, or None if no part is certain."""
    identity = part.identity
    clear = {place.sign for place in identity.places if not place.doubted}
    doubted = {place.sign for place in identity.places} - clear
    patient: dict[str, Any] = {}
    if identity.name and IdentitySign.NAME not in doubted:
        patient["name"] = [{"text": identity.name}]
    if identity.birth_date and IdentitySign.BIRTH_DATE not in doubted:
        patient["birthDate"] = identity.birth_date.isoformat()
    system = "http://terminology.hl7.org/CodeSystem/v2-0203"
    if numbers := [
        {"type": {"coding": [{"system": system, "code": code}]}, "value": number}
        for sign, code, known in (
            (IdentitySign.RECORD_NUMBER, "MR", identity.record_numbers),
            (IdentitySign.INSURANCE_NUMBER, "SN", identity.insurance_numbers),
        )
        for number in known
        if sign not in doubted
    ]:
        patient["identifier"] = numbers
    return {"resourceType": "Patient", **patient} if patient else None


def _reference(document: BundledDocument, when: str) -> dict[str, Any]:
    part, is_doubted = document.part, _is_doubted(document)
    text = base64.b64encode(document.text.encode()).decode()
    attachment: dict[str, Any] = {"contentType": "text/plain; charset=utf-8", "data": text}
    if part.title:
        attachment["title"] = part.title
    if part.language:
        attachment["language"] = part.language
    return {
        "resourceType": "DocumentReference",
        "status": "current",
        "docStatus": "preliminary" if is_doubted else "final",
        "type": {"text": part.kind.value},
        "date": when,
        "content": [{"attachment": attachment}],
        **({"extension": [{"url": DOUBTED, "valueBoolean": True}]} if is_doubted else {}),
    }


def _is_doubted(document: BundledDocument) -> bool:
    return bool(
        document.part.doubts or document.failed or any(page.verdict.needs_review for page in document.pages)
    )


def _observations(document: BundledDocument) -> Iterator[dict[str, Any]]:
    """Yield an observation for each row of a laboratory document's tables; other documents have none."""
    if document.part.kind is not DocumentKind.LAB_RESULT:
        return
    date = document.part.date
    for page in document.pages:
        for table in page.tables:
            for observation in _rows(page, table):
                yield observation | ({"effectiveDateTime": date.isoformat()} if date else {})


def _rows(page: Page, table: Table) -> Iterator[dict[str, Any]]:
    head = {cell.column: cell.text for cell in table.cells if cell.row == 0}
    columns = {
        what: next((column for column, text in sorted(head.items()) if pattern.search(text)), None)
        for what, pattern in _COLUMNS.items()
    }
    if columns["name"] is None or columns["value"] is None:
        return
    for row in range(1, table.rows):
        cells = {cell.column: cell for cell in table.cells if cell.row == row}
        known = {what: cells.get(column) for what, column in columns.items() if column is not None}
        name, value = known.get("name"), known.get("value")
        if name and value and name.text.strip() and value.text.strip():
            yield _observation(page, name, value, known.get("unit"), known.get("range"))


def _observation(
    page: Page, name: Cell, value: Cell, unit: Cell | None, normal: Cell | None
) -> dict[str, Any]:
    doubts = [
        cell for cell in (name, value, unit) if cell and any(_is_on(doubt, cell) for doubt in page.doubts)
    ]
    about: dict[str, Any] = {
        "resourceType": "Observation",
        "status": "preliminary" if doubts else "final",
        "code": {"text": name.text.strip()},
        "extension": [_place(page.number, value.box)],
    }
    if doubts:
        reason = {"coding": [{"system": _ABSENT, "code": "unknown"}], "text": "The reading is in doubt."}
        return about | {
            "dataAbsentReason": reason,
            "note": [{"text": f"Read, in doubt: {value.text.strip()}"}],
        }
    if normal and normal.text.strip() and not any(_is_on(doubt, normal) for doubt in page.doubts):
        about["referenceRange"] = [_range(normal.text.strip(), unit)]
    return about | _value(value.text.strip(), unit.text.strip() if unit else "")


def _value(text: str, unit: str) -> dict[str, Any]:
    """Return a quantity with a UCUM unit, or text if the unit is unknown or a comma may separate thousands."""
    found = _VALUE.fullmatch(text)
    printed = unit or (found[3].strip() if found else "")
    code = _ucum(printed)
    if not found or not code or _THOUSANDS.search(found[2]) or (unit and found[3].strip()):
        return {"valueString": f"{text} {unit}".strip()}
    quantity = {"value": found[2].replace(",", "."), "unit": printed, "system": _UCUM, "code": code}
    return {"valueQuantity": quantity | ({"comparator": found[1]} if found[1] else {})}


def _ucum(printed: str) -> str | None:
    return _UNITS.get(printed.lower().replace("μ", "u").replace("µ", "u"))


def _range(text: str, unit: Cell | None) -> dict[str, Any]:
    code = _ucum(unit.text.strip()) if unit else None
    found = _RANGE.search(text)
    if not found or any(_THOUSANDS.search(limit) for limit in found.groups()):
        return {"text": text}
    of = {"system": _UCUM, "code": code, "unit": code} if code else {}
    low, high = ({"value": limit.replace(",", "."), **of} for limit in found.groups())
    return {"low": low, "high": high, "text": text}


def _is_on(doubt: Doubt, cell: Cell) -> bool:
    """Return whether a doubt concerns a cell. A doubt without a place concerns every cell with matching text."""
    if doubt.box is None or cell.box is None:
        return not doubt.text or doubt.text in cell.text or cell.text in doubt.text
    one, other = doubt.box, cell.box
    across = one.left < other.right and other.left < one.right
    return across and one.top < other.bottom and other.top < one.bottom


def _place(page: int, box: Box | None) -> dict[str, Any]:
    said: list[dict[str, Any]] = [{"url": "page", "valueInteger": page}]
    if box:
        said.append({"url": "box", "valueString": f"{box.left},{box.top},{box.right},{box.bottom}"})
    return {"url": PLACE, "extension": said}
