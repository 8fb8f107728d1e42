"""Sample medical documents with known text, for `pecia demo` and measurements of accuracy.

A4 at 150 dots per inch, body text of 11 points. People, clinics and values are invented.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.bundles import DocumentKind
from pecia_schemas.states import Lane
from pecia_schemas.tasks import DocumentType


def accuracy(read: str, known: str) -> float:
    """Return 1 minus the character error rate, without white space: 1.0 is exact, 0.0 has nothing right.

    The rate is the edit distance divided by the known text's length; an empty known text matches only empty text.
    """
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415  comes with pecia[local]

    found, expected = "".join(read.split()), "".join(known.split())
    if not expected:
        return 0.0 if found else 1.0
    return max(0.0, 1 - Levenshtein.distance(found, expected) / len(expected))


Style = Literal["title", "heading", "body", "small", "rule"]


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, a table's row (more than one cell), or a rule (no cell)."""

    style: Style
    cells: tuple[str, ...] = ()


_RULED: Final = Block("rule")
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


def _head(rng: Random, title: str) -> tuple[Block, ...]:
    clinic = rng.choice(_CLINICS)
    born = f"{rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.{rng.randint(1940, 2005)}"
    name = (f"Patient: {rng.choice(_GIVEN)} {rng.choice(_FAMILY)}", f"Date of birth: {born}")
    record = (f"Record number: {rng.randint(100000, 999999)}", f"Date: {rng.randint(1, 28):02d}.03.2026")
    heading = (Block("title", (title,)), Block("small", (clinic,)))
    return (*heading, _RULED, Block("body", name), Block("body", record), _RULED)


def _signature(rng: Random) -> tuple[Block, ...]:
    return (
        _RULED,
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
    return [[*_head(rng, "Laboratory Report"), header, _RULED, *rows, *_signature(rng)]]


def _chart(rng: Random) -> list[list[Block]]:
    first = [*_head(rng, "Hospital Chart"), Block("heading", ("Course of the stay",))]
    further = [f"Hospital Chart, continued, sheet {n}" for n in (2, 3, 4)]
    sheets = [first, *([Block("heading", (title,)), _RULED] for title in further)]
    for day in range(3 * len(sheets)):
        when = f"{rng.randint(7, 9):02d}:{rng.randrange(0, 60, 5):02d}"
        measured = (
            f"Pulse {rng.randint(58, 104)} per minute",
            f"Pressure {rng.randint(105, 150)}/{rng.randint(60, 95)}",
            f"Temperature {rng.uniform(36.2, 38.9):.1f} C",
        )
        sheets[day // 3] += [
            Block("heading", (f"Day {day + 1}, round at {when}",)),
            Block("body", measured),
            *(Block("body", (text,)) for text in rng.sample(_ROUNDS, 2)),
        ]
    sheets[-1] += _signature(rng)
    return sheets


WRITERS: Final[dict[DocumentType, Callable[[Random], list[list[Block]]]]] = {
    DocumentType.PRESCRIPTION: _prescription,
    DocumentType.DIAGNOSIS: _diagnosis,
    DocumentType.LAB_RESULT: _lab_result,
    DocumentType.CHART: _chart,
}
"""Writers for each type of document: pages of blocks from a seeded generator."""


DPI: Final = 150
_A4: Final = (1240, 1754)
_MARGIN: Final = 120
_POINTS: Final = {"title": 16, "heading": 13, "body": 11, "small": 10}
_PAPER, _PRINT, _RULE = "white", (20, 20, 24), (120, 120, 120)
_LEADING: Final = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """One drawn page and its text."""

    image: Image.Image = field(repr=False)
    lines: tuple[str, ...]
    """Lines from top to bottom, left to right; a table's row is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDocument:
    """A document whose text is known."""

    name: str
    document_type: DocumentType
    pages: tuple[SamplePage, ...]

    @property
    def text(self) -> str:
        """The complete known text, a form feed between pages."""
        return "\f".join("\n".join(page.lines) for page in self.pages)


def sample_document(kind: DocumentType, seed: int = 0) -> SampleDocument:
    """Return a document of that type; different seeds give different people and values."""
    pages = WRITERS[kind](random.Random(f"{kind}{seed}"))  # noqa: S311  made-up content, no secret
    return SampleDocument(
        name=f"{kind}-{seed}", document_type=kind, pages=tuple(draw_page(blocks) for blocks in pages)
    )


def sample_pile() -> SampleDocument:
    """Return scans of three documents of two patients, with a separator sheet after the first."""
    (one,), (other,), (third,) = (
        write(random.Random(name))  # noqa: S311  as above
        for write, name in ((_prescription, "one"), (_diagnosis, "other"), (_diagnosis, "third"))
    )
    third[3:5] = one[3:5]  # the same patient
    pages = (one, [Block("title", ("SEPARATOR",))], other, third)
    return SampleDocument(
        name="pile", document_type=DocumentType.MIXED, pages=tuple(draw_page(blocks) for blocks in pages)
    )


PILED: Final = (
    ((1,), DocumentKind.PRESCRIPTION, 1),
    ((3,), DocumentKind.DIAGNOSIS, 2),
    ((4,), DocumentKind.DIAGNOSIS, 1),
)
"""The documents of the pile: pages, kind, patient."""


def draw_page(blocks: Iterable[Block]) -> SamplePage:
    """Return the page with these blocks from top to bottom."""
    image = Image.new("RGB", _A4, _PAPER)
    pen, lines, y = ImageDraw.Draw(image), list[str](), float(_MARGIN)
    width = _A4[0] - 2 * _MARGIN
    for block in blocks:
        if block.style == "rule":
            pen.line((_MARGIN, y, _A4[0] - _MARGIN, y), fill=_RULE, width=2)
            y += 14
            continue
        font = ImageFont.load_default(_POINTS[block.style] * DPI / 72)
        if not isinstance(font, ImageFont.FreeTypeFont):
            raise TypeError("This Pillow was built without FreeType, so it cannot draw text at a size.")
        is_row = len(block.cells) > 1
        rows = [block.cells]
        if not is_row:  # one text, on as many lines as it takes
            rows, line = [], ""
            for word in block.cells[0].split():
                longer = f"{line} {word}".strip()
                if line and font.getlength(longer) > width:
                    rows.append((line,))
                    longer = word
                line = longer
            rows.append((line,))
        for row in rows:
            for column, cell in enumerate(row):
                pen.text((_MARGIN + column * width / len(row), y), cell, fill=_PRINT, font=font)
            lines.append(" ".join(row))
            y += font.size * _LEADING
        y += 0 if is_row else font.size * 0.4
    return SamplePage(image=image, lines=tuple(lines))


def write_png(document: SampleDocument, path: Path) -> None:
    """Write the first page as a PNG."""
    document.pages[0].image.save(path, "PNG", dpi=(DPI, DPI))


def write_pdf(document: SampleDocument, path: Path) -> None:
    """Write all pages as a scanned PDF: pictures, no text layer."""
    first, *others = (page.image for page in document.pages)
    first.save(path, "PDF", resolution=DPI, save_all=True, append_images=others, quality=90)


def write_scan(document: SampleDocument, path: Path, *, degrees: int = 90, seed: int = 0) -> None:
    """Write the first page as a noisy JPEG, turned clockwise by a multiple of 90 degrees."""
    turned = document.pages[0].image.rotate(-degrees, expand=True)
    noise = np.random.default_rng(seed).normal(0, 6, (turned.height, turned.width, 1))
    grey_cast = np.asarray(turned, dtype=np.float32) * 0.94 + noise
    Image.fromarray(grey_cast.clip(0, 255).astype(np.uint8)).save(path, "JPEG", quality=85, dpi=(DPI, DPI))


def write_damaged_png(document: SampleDocument, path: Path) -> None:
    """Write the first half of the first page's PNG, like an interrupted upload."""
    write_png(document, path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A document and its expected result."""

    title: str
    path: Path
    document_type: DocumentType
    lane: Lane
    text: str | None
    """Its text, a form feed between pages; None for the unreadable document."""
    least: float = 0.99
    """Least accuracy of its text."""
    documents: tuple[tuple[tuple[int, ...], DocumentKind, int], ...] = ()
    """Documents of a bundle: pages, kind, patient."""
    misread: bool = False
    """Whether the engine is known to misread it, so that the page must need review."""

    def accuracy(self, read: str) -> float:
        """Return the accuracy of a reading: 1.0 is exact."""
        return accuracy(read, self.text or "")


class _Sketch(NamedTuple):
    title: str
    name: str
    document_type: DocumentType
    seed: int
    write: Callable[[SampleDocument, Path], None]
    lane: Lane


# In the order in which the demo hands them over: bulk first, the urgent one last.
_SKETCHES: Final = (
    _Sketch("hospital chart", "chart.pdf", DocumentType.CHART, 0, write_pdf, Lane.BULK),
    _Sketch("diagnosis certificate", "diagnosis.png", DocumentType.DIAGNOSIS, 0, write_png, Lane.BULK),
    _Sketch("lab result", "lab.png", DocumentType.LAB_RESULT, 0, write_png, Lane.BULK),
    _Sketch("scan turned by 90°", "turned.jpg", DocumentType.DIAGNOSIS, 1, write_scan, Lane.NORMAL),
    _Sketch("damaged upload", "damaged.png", DocumentType.LAB_RESULT, 1, write_damaged_png, Lane.NORMAL),
    _Sketch("pile of scans", "pile.pdf", DocumentType.MIXED, 0, write_pdf, Lane.NORMAL),
    _Sketch(
        "prescription, sent last", "prescription.png", DocumentType.PRESCRIPTION, 0, write_png, Lane.URGENT
    ),
)


def write_exhibits(directory: Path) -> list[Exhibit]:
    """Write the exhibits that the directory lacks; existing files are kept."""
    exhibits = []
    for sketch in _SKETCHES:
        is_pile = sketch.document_type is DocumentType.MIXED
        document = sample_pile() if is_pile else sample_document(sketch.document_type, sketch.seed)
        path = directory / sketch.name
        if not path.exists():
            sketch.write(document, path)
        text = document.text if path.suffix == ".pdf" else document.text.partition("\f")[0]
        exhibit = Exhibit(
            title=sketch.title,
            path=path,
            document_type=sketch.document_type,
            lane=sketch.lane,
            text=None if sketch.write is write_damaged_png else text,
            documents=PILED if is_pile else (),
        )
        exhibits.append(exhibit)
    return exhibits
