"""Drawn pages full of values as medical records have them: codes, doses, dates, times, ranges, footnotes.

In eleven faces, three resolutions and five qualities of paper. People and values are invented.
"""

import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image

from tests.shared.hand_made_pdfs import box, document, stream

FACES: Final = (
    *("Helvetica", "Helvetica-Bold", "Helvetica-Oblique", "Times-Roman", "Times-Bold", "Times-Italic"),
    *("Courier", "Courier-Bold"),
)
"""Of every PDF viewer."""
RESOLUTIONS: Final = (110, 150, 200)
RAISED: Final = dict(zip("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", strict=True))
_WIDTH, _HEIGHT = 595, 842
_LOWERED: Final = {raised: sign for sign, raised in RAISED.items()}
_ANALYTES: Final = (
    *("HbA1c", "Vitamin B12", "Vitamin D 25-OH", "Free T4", "CA 19-9", "Sodium", "Potassium", "Creatinine"),
    *("C3 complement", "Lp(a)", "IgG1", "Factor VIII", "CD4 cells", "pO2", "pCO2", "Lactate", "INR", "Urea"),
)
_UNITS: Final = ("mmol/l", "mg/dl", "g/l", "µmol/l", "U/l", "mIU/l", "ng/ml", "%", "pg/ml", "mmol/mol")
_DRUGS: Final = (
    *("Ramipril", "Metformin", "Amoxicillin", "Ibuprofen", "Levothyroxine", "Insulin", "Bisoprolol"),
    *("Simvastatin", "Torasemide", "Pantoprazole", "Ciprofloxacin", "Digoxin"),
)
_SENTENCES: Final = (
    "The patient was admitted on {date} at {time} with chest pain.",
    "Blood pressure at discharge was {p}/{d} mmHg, pulse {h} per minute.",
    "Diagnosis {icd} was confirmed, {icd2} excluded by ultrasound.",
    "Creatinine rose from 0.{n} to {m}.{n} mg/dl within {h} hours.",
    "Next appointment {date} between {time} and {time2} in room {room}.",
    "The wound was closed with {n} stitches; review in {n}-{m2} days.",
    "Weight {p}.{n} kg, height 1{d} cm, BMI 2{n}.{m}, SpO2 9{n} % on air.",
    "Insurance number {insurance}, case {case}, phone {phone}.",
    "Since {year} under treatment in our clinic, last seen {iso}.",
)
_MONTHS: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905


@dataclass(frozen=True, kw_only=True)
class ValuePage:
    """A page as it was scanned, and what stands on it."""

    name: str
    pixels: NDArray[np.uint8]
    text: str
    """A row of the page a line, with two spaces between its cells."""


def value_pages(count: int, *, start: int = 0) -> Iterator[ValuePage]:
    """Draw pages, the same ones every time."""
    for seed in range(start, start + count):
        yield value_page(seed)


def value_page(seed: int) -> ValuePage:
    """Draw a page of any kind, face, size, resolution and quality."""
    rng = random.Random(f"values {seed}")  # noqa: S311  the same pages every time
    kind = (_lab, _prescription, _letter, _diagnoses)[seed % 4]
    face, dpi, quality = rng.choice(FACES), rng.choice(RESOLUTIONS), rng.choice(list(QUALITIES))
    size = rng.choice((9.0, 10.0, 11.0, 12.0))
    rows = list(kind(rng))
    pixels = QUALITIES[quality](_drawn(rows, face, size, dpi), np.random.default_rng(seed))
    name = f"{kind.__name__[1:]}-{face}-{size:g}pt-{dpi}dpi-{quality}-{seed}"
    return ValuePage(name=name, pixels=pixels, text="\n".join("  ".join(row) for row in rows))


def _lab(rng: random.Random) -> Iterator[list[str]]:
    yield ["Laboratory report", "", f"Order {_case(rng)}"]
    yield ["Sample taken", _date(rng), _time(rng)]
    yield ["Test", "LOINC", "Result", "Reference"]
    for name in rng.sample(_ANALYTES, 14):
        low = rng.choice((0.1, 0.5, 3.5, 10, 60, 135))
        high = round(low * rng.choice((1.2, 1.5, 4)), 1)
        value = f"{rng.uniform(low / 2, high * 1.5):.{rng.choice((0, 1, 2))}f}"
        note = rng.choice(("", "", "", "¹", "²", "³"))
        loinc = f"{rng.randrange(100, 99999)}-{rng.randrange(10)}"
        yield [name, loinc, f"{value}{note} {rng.choice(_UNITS)}", f"{low:g}-{high:g}"]
    yield [f"Leukocytes {rng.uniform(3, 12):.1f} x 10⁹/l, erythrocytes {rng.uniform(3, 6):.2f} x 10¹²/l"]
    yield ["¹ haemolytic  ² repeated  ³ by another laboratory"]


def _prescription(rng: random.Random) -> Iterator[list[str]]:
    yield ["Medication plan", "", f"printed {_date(rng)} {_time(rng)}"]
    yield ["Drug", "ATC", "Dose", "Schedule"]
    for name in rng.sample(_DRUGS, 11):
        dose = rng.choice(
            ("2.5 mg", "5 mg", "10 mg", "50 mg", "110 mg", "0.5 mg", "850 mg", "1000 mg", "75 µg", "1.25 mg")
        )
        more = rng.choice(
            (dose, dose, f"{dose.split()[0]}/12.5 mg", f"{rng.randrange(1, 40)} I.U.", f"{dose} O.D.")
        )
        schedule = rng.choice(
            ("1-0-1", "1-0-0", "0-0-1", "½-0-½", "every 8 h", "2 x 1 daily", "q12h", "1 tab. bid")
        )
        yield [name, _atc(rng), more, schedule]
    yield [f"Allergies: none known since {rng.randrange(1950, 2026)}. Lot {_lot(rng)}, exp. {_iso(rng)[:7]}"]
    yield [
        f"Infusion {rng.randrange(10, 500)} ml at {rng.randrange(5, 150)} ml/h, {rng.randrange(10, 40)} drops/min"
    ]


def _letter(rng: random.Random) -> Iterator[list[str]]:
    yield [f"Ward {rng.randrange(1, 12)}B, room {_room(rng)}", "", f"Born {_date(rng)}"]
    for sentence in [*_SENTENCES, *rng.sample(_SENTENCES, 6)]:
        yield [
            sentence.format(
                date=_date(rng), time=_time(rng), time2=_time(rng), iso=_iso(rng), room=_room(rng),
                p=rng.randrange(100, 190), d=rng.randrange(50, 99), h=rng.randrange(10, 120),
                n=rng.randrange(1, 10), m=rng.randrange(1, 9), m2=rng.randrange(10, 15),
                icd=_icd(rng), icd2=_icd(rng), year=rng.randrange(1980, 2026), case=_case(rng),
                insurance=f"{rng.choice('ABIOSZ')}{rng.randrange(10**8, 10**9)}",
                phone=f"0{rng.randrange(10, 99)}-{rng.randrange(1000, 9999)} {rng.randrange(10, 99)}",
            )
        ]  # fmt: skip


def _diagnoses(rng: random.Random) -> Iterator[list[str]]:
    yield ["Diagnoses and procedures", "", f"Case {_case(rng)}"]
    yield ["ICD-10", "Date", "OPS", "Price"]
    for _ in range(13):
        ops = f"{rng.randrange(1, 10)}-{rng.randrange(100, 999)}.{rng.choice('0123456789abx')}{rng.randrange(10)}"
        price = f"{rng.randrange(1, 9)},{rng.randrange(100, 999)}.{rng.randrange(10, 99)}"
        yield [_icd(rng), _date(rng), ops, rng.choice((price, price[2:]))]
    yield [
        f"Stage T{rng.randrange(1, 4)}N{rng.randrange(0, 3)}M0, grade G{rng.randrange(1, 4)}, level L4/L5, {_lot(rng)}"
    ]
    yield [f"Total area {rng.randrange(10, 99)}.{rng.randrange(10)} cm², volume {rng.randrange(10, 99)} cm³"]


def _icd(rng: random.Random) -> str:
    code = f"{rng.choice('ABCDEFGIIJKLMNORSSTZ')}{rng.randrange(10)}{rng.randrange(10)}"
    return rng.choice((code, f"{code}.{rng.randrange(10)}", f"{code}.{rng.randrange(10)}{rng.randrange(10)}"))


def _atc(rng: random.Random) -> str:
    letters = [rng.choice("ABCDGHJLMNPRSV"), *(rng.choice("ABCDEFGHIKX") for _ in range(2))]
    return f"{letters[0]}{rng.randrange(1, 17):02d}{letters[1]}{letters[2]}{rng.randrange(1, 30):02d}"


def _date(rng: random.Random) -> str:
    year, month, day = rng.randrange(1930, 2027), rng.randrange(1, 13), rng.randrange(1, 29)
    return rng.choice(
        (
            f"{day:02d}.{month:02d}.{year}",
            f"{year}-{month:02d}-{day:02d}",
            f"{month:02d}/{day:02d}/{year}",
            f"{day} {_MONTHS[month - 1]} {year}",
            f"{day:02d}-{_MONTHS[month - 1].upper()}-{year}",
        )
    )


def _iso(rng: random.Random) -> str:
    return f"{rng.randrange(2000, 2030)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"


def _room(rng: random.Random) -> str:
    return f"{rng.choice('BIOSZL')}{rng.randrange(1, 60)}"


def _case(rng: random.Random) -> str:
    return f"{rng.randrange(10**7, 10**8)}-{rng.randrange(10)}"


def _lot(rng: random.Random) -> str:
    return "".join(rng.choice("ABIOSZ0123456789") for _ in range(7))


_COLUMNS: Final = (50, 205, 320, 450)


def _drawn(rows: Sequence[Sequence[str]], face: str, size: float, dpi: int) -> NDArray[np.uint8]:
    """Draw rows of cells; raised signs are small ones of the same face."""
    content: list[bytes] = []
    for number, row in enumerate(rows):
        for x, cell in zip(_COLUMNS, row, strict=False):
            y = _HEIGHT - 70 - number * size * 2.1
            content.append(b"BT 1 0 0 1 %g %g Tm %b ET" % (x, y, b" ".join(_runs(cell, size))))
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /%b /Encoding /WinAnsiEncoding >>" % face.encode()
    page = box(_WIDTH, _HEIGHT) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >>"
    scale: Any = dpi / 72
    with pypdfium2.PdfDocument(document([page], [stream(b"\n".join(content)), font])) as pdf:
        bitmap = pdf[0].render(scale=scale, rev_byteorder=True, fill_color=(255, 255, 255, 255))
        return np.ascontiguousarray(bitmap.to_numpy()[:, :, :3])


def _runs(cell: str, size: float) -> Iterator[bytes]:
    for sign in cell:
        lowered = _LOWERED.get(sign)
        escaped = (lowered or sign).encode("cp1252").replace(b"\\", b"\\\\")
        escaped = escaped.replace(b"(", b"\\(").replace(b")", b"\\)")
        small, rise = (0.62 * size, 0.36 * size) if lowered else (size, 0)
        yield b"/F %g Tf %g Ts (%b) Tj" % (small, rise, escaped)


def _scanned(pixels: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Soften, darken the paper and add the noise of a scanner."""
    soft = cv2.GaussianBlur(pixels, (0, 0), 0.7).astype(np.float32)
    grey = 40 + soft * (195 / 255) + random.normal(0, 5, pixels.shape[:2])[:, :, np.newaxis]
    return grey.clip(0, 255).astype(np.uint8)


def _as_jpeg(pixels: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=int(random.integers(35, 60)))
    return np.asarray(Image.open(file)).copy()


def _copied(pixels: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Make it black and white, as a fax is, with a ragged threshold."""
    soft = cv2.GaussianBlur(pixels, (0, 0), 0.5)[:, :, 0] + random.normal(0, 12, pixels.shape[:2])
    return np.repeat(
        np.where(soft < random.integers(140, 190), 0, 255).astype(np.uint8)[:, :, None], 3, axis=2
    )


QUALITIES: Final[dict[str, Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]]] = {
    "clean": lambda pixels, _random: pixels,
    "scan": _scanned,
    "jpeg": _as_jpeg,
    "fax": _copied,
    "faint": lambda pixels, _random: (120 + pixels * (135 / 255)).astype(np.uint8),
}
