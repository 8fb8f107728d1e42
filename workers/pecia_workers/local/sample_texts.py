"""What the sample documents say: invented people, clinics and values, drawn by a seeded generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pecia_schemas.tasks import DocumentType

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

Style = Literal["title", "heading", "body", "small", "rule"]


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, a table's row (more than one cell), or a rule (no cell)."""

    style: Style
    cells: tuple[str, ...] = ()


_RULE: Final = Block("rule")
_GIVEN: Final = ("Alma", "Bruno", "Carla", "Dario", "Edna", "Farid", "Greta", "Hugo")
_FAMILY: Final = ("Sampleton", "Mockridge", "Testerman", "Fabricius", "Dummer", "Exemplar", "Placeholt")
_CLINICS: Final = ("Northgate Fictional Clinic", "Harbour Example Hospital", "Meadow Sample Practice")
_DRUGS: Final = (
    ("Amoxicillin 500 mg capsules", "Take one capsule three times a day for 7 days."),
    ("Metformin 850 mg tablets", "Take one tablet twice a day with meals."),
    ("Ramipril 5 mg tablets", "Take one tablet every morning."),
    ("Paracetamol 500 mg tablets", "Take two tablets when needed, no more than eight a day."),
    ("Atorvastatin 20 mg tablets", "Take one tablet at night."),
)
_DIAGNOSES: Final = (
    ("J18.9", "Pneumonia", "cough, fever and pain in the right side of the chest"),
    ("S52.5", "Fracture of the distal radius", "a fall on the outstretched left hand"),
    ("K35.8", "Acute appendicitis", "pain in the lower right abdomen with nausea"),
)
_ANALYTES: Final = (
    ("Haemoglobin", "g/dL", 12.0, 16.0),
    ("Leukocytes", "10^9/L", 4.0, 10.0),
    ("Platelets", "10^9/L", 150.0, 400.0),
    ("Sodium", "mmol/L", 136.0, 145.0),
    ("Potassium", "mmol/L", 3.5, 5.1),
    ("Creatinine", "mg/dL", 0.6, 1.2),
    ("Glucose", "mg/dL", 70.0, 110.0),
    ("Cholesterol", "mg/dL", 120.0, 200.0),
    ("Ferritin", "ng/mL", 30.0, 300.0),
    ("Thyrotropin", "mU/L", 0.4, 4.0),
)
_ROUNDS: Final = (
    "The patient slept well, took breakfast and reports less pain than on the day before.",
    "Wound is dry and clean, dressing changed, no sign of infection around the drain.",
    "Physiotherapy walked the corridor twice with the patient, without dizziness.",
    "Antibiotic given by vein as ordered, temperature falls, the patient drinks enough.",
    "Breath sounds are clear on both sides, cough is productive, sputum sent for culture.",
    "Family was informed about the plan, discharge is expected if the values stay stable.",
)


def _patient(rng: Random) -> tuple[Block, ...]:
    born = f"{rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.{rng.randint(1940, 2005)}"
    return (
        Block("body", (f"Patient: {rng.choice(_GIVEN)} {rng.choice(_FAMILY)}", f"Date of birth: {born}")),
        Block(
            "body",
            (f"Record number: {rng.randint(100000, 999999)}", f"Date: {rng.randint(1, 28):02d}.03.2026"),
        ),
    )


def _head(rng: Random, title: str) -> tuple[Block, ...]:
    return (
        Block("title", (title,)),
        Block("small", (rng.choice(_CLINICS),)),
        _RULE,
        *_patient(rng),
        _RULE,
    )


def _signature(rng: Random) -> tuple[Block, ...]:
    return (
        _RULE,
        Block("body", (f"Signed: Dr. {rng.choice(_GIVEN)} {rng.choice(_FAMILY)}",)),
        Block("small", ("This document is fictional and serves as a sample.",)),
    )


def _prescription(rng: Random) -> list[list[Block]]:
    medicines = [
        block
        for number, (drug, use) in enumerate(rng.sample(_DRUGS, 3), start=1)
        for block in (Block("heading", (f"{number}. {drug}",)), Block("body", (use,)))
    ]
    return [[*_head(rng, "Prescription"), *medicines, *_signature(rng)]]


def _diagnosis(rng: Random) -> list[list[Block]]:
    code, name, complaint = rng.choice(_DIAGNOSES)
    days = rng.randint(5, 21)
    body = (
        f"This is to certify that the patient named above was examined in our clinic because of {complaint}.",
        f"Diagnosis: {name} ({code}).",
        f"The patient needs treatment and rest for {days} days and is unable to work during this time.",
        "A control examination with imaging is planned at the end of this period.",
        "This certificate is issued at the request of the patient for the employer and the insurance.",
    )
    paragraphs = [Block("body", (text,)) for text in body]
    return [[*_head(rng, "Medical Certificate of Diagnosis"), *paragraphs, *_signature(rng)]]


def _lab_result(rng: Random) -> list[list[Block]]:
    rows = []
    for name, unit, low, high in _ANALYTES:
        value = rng.uniform(low * 0.8, high * 1.2)
        flag = "low" if round(value, 1) < low else "high" if round(value, 1) > high else "normal"
        rows.append(Block("body", (name, f"{value:.1f}", unit, f"{low:.1f} - {high:.1f}", flag)))
    header = Block("body", ("Test", "Result", "Unit", "Reference", "Rating"))
    return [[*_head(rng, "Laboratory Report"), header, _RULE, *rows, *_signature(rng)]]


def _chart(rng: Random) -> list[list[Block]]:
    pages = 4
    first = [*_head(rng, "Hospital Chart"), Block("heading", ("Course of the stay",))]
    sheets = [
        first,
        *([Block("heading", (f"Hospital Chart, continued, sheet {n}",)), _RULE] for n in range(2, pages + 1)),
    ]
    for number, sheet in enumerate(sheets, start=1):
        sheet += [block for day in range(3) for block in _round(rng, 3 * (number - 1) + day + 1)]
    sheets[-1] += _signature(rng)
    return sheets


def _round(rng: Random, day: int) -> tuple[Block, ...]:
    return (
        Block("heading", (f"Day {day}, round at {rng.randint(7, 9):02d}:{rng.randrange(0, 60, 5):02d}",)),
        Block(
            "body",
            (
                f"Pulse {rng.randint(58, 104)} per minute",
                f"Pressure {rng.randint(105, 150)}/{rng.randint(60, 95)}",
                f"Temperature {rng.uniform(36.2, 38.9):.1f} C",
            ),
        ),
        *(Block("body", (text,)) for text in rng.sample(_ROUNDS, 2)),
    )


WRITERS: Final[dict[DocumentType, Callable[[Random], list[list[Block]]]]] = {
    DocumentType.PRESCRIPTION: _prescription,
    DocumentType.DIAGNOSIS: _diagnosis,
    DocumentType.LAB_RESULT: _lab_result,
    DocumentType.CHART: _chart,
}
"""For each type of document: pages of blocks from a seeded generator."""
