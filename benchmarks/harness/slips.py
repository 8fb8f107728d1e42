"""Slips of medical words, numbers and codes by lot, as the small reader of `tests/engine/reader` knows them.

One line in three means nothing, so that it has to be read and cannot be guessed.
"""

# ruff: noqa: PLR2004  shares and sizes of what is drawn by lot

import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageFont

FONTS: Final = (
    *("Carlito-Regular", "DejaVuSans", "DejaVuSansCondensed", "DejaVuSansMono", "DejaVuSerif", "FreeSans"),
    *("FreeSerif", "LiberationMono-Regular", "LiberationSans-Bold", "LiberationSans-Regular"),
    *(
        "LiberationSansNarrow-Regular",
        "LiberationSerif-Bold",
        "LiberationSerif-Regular",
        "NotoSansMono-Regular",
    ),
)
"""Those that the reader was trained with."""
_SIZES: Final = (
    *((448, 448),) * 6,
    *((224, 448), (336, 448), (420, 420), (392, 448), (448, 308), (112, 448)),
)


def _listed(words: str) -> list[str]:
    return words.split("|" if "|" in words else None)


_NAMES: Final = _listed(
    "Anna Ben Clara David Elena Felix Grace Hugo Irene Jonas Karin Lukas Maria Nina Oscar Paula Quentin Rosa Samuel"
    " Tanya Ursula Victor Wanda Xenia Yusuf Zoe Adrian Beate Cyril Dora Emil Frida Georg Hanna Ivan Julia Kevin Laura"
    " Minho Jisoo Seoyeon Wei Ming Li Chen Ravi Priya Omar Leila Ines José René Zoé Andrés Günter Jürgen Núria"
)
_SURNAMES: Final = _listed(
    "Kim Lee Park Choi Jung Smith Jones Brown Miller Davis Garcia Lopez Meyer Weber Schmidt Fischer Rossi Bianchi"
    " Novak Kowalski Ivanov Petrov Tanaka Sato Wong Chan Nguyen Tran Patel Singh Khan Hassan Ali Muñoz Müller Núñez"
    " Andersen Nilsson Jensen Dubois Laurent Moreau O'Brien Murphy Walsh Fitzgerald Quigley Xu Zhang Zimmer Vaughn"
)
_DRUGS: Final = _listed(
    "Amoxicillin Ibuprofen Paracetamol Metformin Lisinopril Atorvastatin Omeprazole Amlodipine Losartan Simvastatin"
    " Levothyroxine Azithromycin Prednisone Warfarin Tramadol Gabapentin Sertraline Furosemide Insulin Salbutamol"
    " Cetirizine Clopidogrel Diazepam Doxycycline Enalapril Fluoxetine Hydrochlorothiazide Ketoconazole Loratadine"
    " Naproxen Pantoprazole Quetiapine Ranitidine Spironolactone Tamsulosin Valsartan Zolpidem Bisoprolol Codeine"
    " Digoxin Erythromycin Famotidine Glimepiride Heparin Morphine Nifedipine Ondansetron Propranolol Rivaroxaban"
    " Ciprofloxacin Allopurinol Baclofen Carvedilol Dexamethasone Apixaban Budesonide Mirtazapine Vancomycin Xarelto"
)
_FORMS: Final = _listed(
    "tablet tablets capsule capsules syrup drops cream ointment spray patch ampoule sachet inhaler gel"
)
_TIMES: Final = _listed(
    "once daily|twice daily|three times daily|every 8 hours|every 12 hours|at bedtime|before meals|after meals|"
    "in the morning|as needed|for 5 days|for 7 days|for 10 days|with water|with food|1-0-1|1-1-1|0-0-1|q8h|q12h|PRN|"
    "TID|BID"
)
_TESTS: Final = _listed(
    "Glucose Sodium Potassium Chloride Calcium Magnesium Creatinine Urea Albumin Bilirubin ALT AST GGT ALP LDH CRP"
    " Hemoglobin Hematocrit Platelets Leukocytes Erythrocytes MCV MCH MCHC RDW Neutrophils Lymphocytes Monocytes"
    " Eosinophils Basophils TSH FT3 FT4 HbA1c Cholesterol HDL LDL Triglycerides Ferritin Iron INR PT aPTT Fibrinogen"
    " D-dimer Troponin BNP Lipase Amylase Lactate pH pCO2 pO2 HCO3 ESR PSA Vitamin-D B12 Folate Zinc Phosphate"
)
_UNITS: Final = _listed(
    "mg/dL mmol/L g/dL g/L U/L IU/L ng/mL pg/mL µg/L µmol/L % fL pg mmHg mm/h mEq/L mg/L 10^9/L 10^12/L s kPa nmol/L"
)
_WORDS: Final = _listed(
    "patient reports mild pain in the left knee since yesterday no fever cough chest clear abdomen soft heart rate"
    " regular blood pressure stable follow up two weeks allergy to penicillin denied history of asthma diabetes and"
    " hypertension continue current medication review results next visit advised rest fluids return if worse swelling"
    " right hand x-ray shows fracture healing well stitches removed wound dry clean dressing changed daily referred"
    " cardiology surgery planned under general anaesthesia consent given discharge home with family oxygen saturation"
    " normal temperature weight height skin rash itching eyes ears nose throat lungs liver kidney spleen bladder"
    " acute chronic severe moderate slight improved unchanged without evidence infection viral bacterial specimen"
    " sample collected urine culture negative positive vaccine dose given today appointment doctor nurse ward room"
    " please keep this slip and bring it when you come again quickly before just over lazy fox jumps dizzy quiz"
)
_LABELS: Final = _listed(
    "Name|Patient|Date|DOB|Ward|Room|Doctor|Dr.|ID|Case No.|Sex|Age|Weight|Height|Tel|Ref|Diagnosis|Code|Unit|Result|"
    "Temp|Pulse|BP|SpO2|Resp|Dose|Route|Allergies|Notes|Phone|Insurance|Department|Sample|Time|Page|Signed|Total|Qty"
)
_TITLES: Final = _listed(
    "PRESCRIPTION|Prescription|LABORATORY REPORT|Laboratory report|MEDICAL CERTIFICATE|Diagnosis|DISCHARGE LETTER|"
    "Chart|Vital signs|MEDICATION|Medication plan|REFERRAL|Blood count|Clinical chemistry|Progress note|CITY HOSPITAL|"
    "Urinalysis"
)
_ICD: Final = "ABCDEFGHIJKLMNOPRSTZ"
_SIGNS: Final = "/-.,:;()+*#%=&<>?!'\"[]@_°±×–’µ$éüñ~^{}|\\`"  # noqa: RUF001  signs that look like others
_MARKS: Final = string.ascii_letters + string.digits
_AMOUNTS: Final = (0.5, 1, 2, 2.5, 5, 10, 20, 25, 40, 50, 75, 100, 125, 250, 400, 500, 600, 850, 1000)
_MEANINGLESS: Final = 0.33


@dataclass(frozen=True)
class Slip:
    """A picture and what it says."""

    pixels: NDArray[np.uint8]
    """Grey, height x width."""
    text: str


def slips(seed: int, count: int, fonts: Path, *, hardness: float = 0.0) -> Iterator[Slip]:
    """Yield slips, the same for the same seed and fonts; turned, blurred, pale and noisy by a `hardness` up to 1.

    `fonts`: a directory with the files of `FONTS`, however deep.
    """
    files = {path.stem: path for path in sorted(fonts.rglob("*.ttf"))}
    drawing = _Drawing(seed, [files[name] for name in FONTS])
    spoiling = np.random.default_rng(seed)
    for _ in range(count):
        slip = drawing.slip(*drawing.rng.choice(_SIZES))
        yield Slip(_spoilt(slip.pixels, spoiling, hardness), slip.text) if hardness else slip


class _Words:
    """Draws what stands on a line."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  the same slips every time

    def code(self, least: int = 1, most: int = 9) -> str:
        """Return letters, digits and signs by lot."""
        rng = self.rng
        kind, count = rng.random(), rng.randint(least, most)
        kinds = (
            (0.25, string.digits),
            (0.4, string.ascii_uppercase + string.digits),
            (0.7, string.ascii_lowercase),
            (0.85, _MARKS),
            (1.0, _MARKS + _SIGNS),
        )
        code = "".join(rng.choices(next(signs for share, signs in kinds if kind < share), k=count))
        return code.capitalize() if 0.6 <= kind < 0.7 else code

    def noise(self, length: int) -> str:
        line = self.code(1, max(1, min(9, length)))
        while len(line) < length - 1:
            line += " " + self.code(1, 9)
        return line[:length].rstrip()

    def number(self) -> str:
        rng = self.rng
        whole = rng.choice((10, 100, 1000, 10000))
        return rng.choice(
            (str(rng.randrange(whole)), f"{rng.random() * whole:.1f}", f"{rng.random() * 10:.2f}")
        )

    def date(self) -> str:
        y, m, d = self.rng.randint(1930, 2031), self.rng.randint(1, 12), self.rng.randint(1, 28)
        return self.rng.choice(
            (f"{y}-{m:02}-{d:02}", f"{d:02}.{m:02}.{y}", f"{m}/{d}/{y}", f"{d:02}/{m:02}/{y % 100:02}")
        )

    def person(self) -> str:
        first, last = self.rng.choice(_NAMES), self.rng.choice(_SURNAMES)
        return self.rng.choice(
            (f"{first} {last}", f"{last}, {first}", f"{first[0]}. {last}", f"Dr. {first} {last}")
        )

    def icd(self) -> str:
        rng = self.rng
        return f"{rng.choice(_ICD)}{rng.randint(0, 99):02}" + (
            f".{rng.randint(0, 9)}" if rng.random() < 0.7 else ""
        )

    def value(self) -> str:
        """Return what stands behind a label."""
        rng = self.rng
        kinds = (
            self.person,
            self.date,
            self.number,
            self.icd,
            self.code,
            lambda: f"{self.number()} {rng.choice(_UNITS)}",
            lambda: f"{rng.randint(80, 190)}/{rng.randint(40, 110)}",
            lambda: f"{rng.randint(340, 415) / 10} °C",
            lambda: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
            lambda: rng.choice(("M", "F", "yes", "no", "none", "normal", "positive", "negative")),
        )
        return rng.choice(kinds)()

    def dose(self) -> str:
        rng = self.rng
        amount = rng.choice(_AMOUNTS)
        unit = rng.choice(("mg", "mg", "mg", "ml", "µg", "g", "IU", "mg/ml"))
        parts = [self.drug(), f"{amount}{rng.choice(('', ' '))}{unit}"]
        if rng.random() < 0.5:
            parts.append(f"{rng.randint(1, 3)} {rng.choice(_FORMS)}")
        if rng.random() < 0.7:
            parts.append(rng.choice(_TIMES))
        return " ".join(parts)

    def drug(self) -> str:
        """Return a drug; one in three is none."""
        name = self.rng.choice(_DRUGS)
        if self.rng.random() < 0.33:
            at = self.rng.randint(2, len(name) - 2)
            name = name[:at] + self.rng.choice(_DRUGS)[-self.rng.randint(3, 6) :]
        return name

    def sentence(self, length: int) -> str:
        rng = self.rng
        words = [
            rng.choice(_WORDS) if rng.random() < 0.9 else self.code(2, 8) for _ in range(length // 5 + 2)
        ]
        words[0] = words[0].capitalize() if rng.random() < 0.6 else words[0]
        line = ""
        for word in words:
            if len(line) + len(word) + 1 > length:
                break
            line += (
                (" " if line else "") + word + (rng.choice((",", ";", ":")) if rng.random() < 0.06 else "")
            )
        return (line or words[0][:length]) + ("." if rng.random() < 0.3 else "")

    def line(self, length: int) -> str:
        """Return a line of at most about `length` characters."""
        rng = self.rng
        if rng.random() < _MEANINGLESS or length < 12:
            return self.noise(length)
        kind = rng.random()
        if kind < 0.25:
            return self.dose()
        if kind < 0.45:
            return f"{rng.choice(_LABELS)}: {self.value()}"
        if kind < 0.6:
            low = rng.random() * 100
            return f"{rng.choice(_TESTS)} {self.number()} {rng.choice(_UNITS)} {low:.1f}-{low * 1.6:.1f}"
        return rng.choice(_TITLES) if kind < 0.65 else self.sentence(length)

    def row(self, columns: int) -> list[str]:
        """Return the cells of a row of a table."""
        rng = self.rng
        if rng.random() < _MEANINGLESS:
            return [self.code(1, 7) for _ in range(columns)]
        low = rng.random() * 100
        cells = [
            rng.choice(_TESTS) if rng.random() < 0.7 else rng.choice(_LABELS),
            self.number(),
            rng.choice(_UNITS),
        ]
        return [*cells, f"{low:.1f}-{low * 1.5:.1f}"][:columns] if columns != 2 else [cells[0], self.value()]


class _Drawing:
    """Draws slips, a letter at a time."""

    def __init__(self, seed: int, fonts: Sequence[Path]) -> None:
        self.words, self.fonts = _Words(seed), fonts
        self.rng = random.Random(seed + 1)  # noqa: S311  the same slips every time

    def slip(self, height: int, width: int) -> Slip:
        rng = self.rng
        page = np.full((height, width), 255, np.uint8)
        path, size = rng.choice(self.fonts), rng.randint(17, 30)
        pitch = size * rng.uniform(1.2, 1.9)
        margin = rng.randint(3, max(4, min(40, width // 8)))
        fit = max(1, int((height - 8) / pitch))
        count = rng.randint(1, min(12, fit))
        if rng.random() < 0.4:
            count = min(12, fit)
        top = rng.uniform(2, max(3, height - count * pitch - 2))
        lines: list[str] = []
        begins: list[float] = []
        rows = 0
        for number in range(count):
            y = top + number * pitch
            if rows == 0:
                begins, rows = [], rng.randint(1, 4)
                if count > 2 and rng.random() < 0.35:
                    columns, rows = rng.randint(2, 4), rng.randint(2, 8)
                    across = (width - 2 * margin) / columns
                    begins = sorted(margin + across * k + rng.randint(-8, 8) for k in range(columns))
                    begins[0] = margin
                    if rng.random() < 0.3:
                        page[max(0, int(y) - 2), margin : width - margin] = 90
            rows -= 1
            is_heading = number == 0 and rng.random() < 0.2
            font = _font(rng.choice(self.fonts) if is_heading else path, size)
            cells = self._cells(begins, margin, width)
            parts: list[str] = []
            for index, (x, cell) in enumerate(cells):
                is_last = index + 1 == len(cells)
                end = width - 4 if is_last else cells[index + 1][0] - 6
                while cell and (x + sum(map(font.getlength, cell)) > end or cell[-1] == " "):
                    cell = cell[:-1]  # noqa: PLW2901  as much of it as there is room for
                if not cell and is_last and not parts:
                    cell = rng.choice("abcdefghkmnxyz0123456789")  # noqa: PLW2901  no line is empty
                if cell:
                    _draw(page, font, (x, y), cell)
                    parts.append(cell)
            lines.append(" ".join(parts))
        return Slip(page, "\n".join(lines))

    def _cells(self, begins: Sequence[float], margin: int, width: int) -> list[tuple[float, str]]:
        if begins:
            return list(zip(begins, self.words.row(len(begins)), strict=False))
        length = self.rng.randint(3, 46)
        indent = self.rng.randint(0, width // 4) if self.rng.random() < 0.15 else 0
        return [(margin + indent, self.words.line(length))]


def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _draw(page: NDArray[np.uint8], font: ImageFont.FreeTypeFont, at: tuple[float, float], text: str) -> None:
    x, y = at
    for letter in text:
        mask, (right, down) = font.getmask2(letter, "L", anchor="la")
        ink = 255 - np.asarray(mask, np.uint8).reshape(mask.size[1], mask.size[0])
        left, top = int(x + 0.5) + int(right), int(y) + int(down)
        if ink.size and left >= 0 and top >= 0:
            part = page[top : top + ink.shape[0], left : left + ink.shape[1]]
            np.minimum(part, ink[: part.shape[0], : part.shape[1]], out=part)
        x += font.getlength(letter)


def _spoilt(pixels: NDArray[np.uint8], rng: np.random.Generator, hardness: float) -> NDArray[np.uint8]:
    """Return the picture turned by up to a degree, blurred, pale, darker at one side, and noisy."""

    def lot(low: float, high: float) -> float:
        return float(rng.uniform(low, high)) * hardness

    height, width = pixels.shape
    angle = math.radians(lot(-1, 1)) * (rng.random() < 0.7)
    scale = 1 + lot(-0.04, 0.02)
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    x, y = width / 2 + lot(-3, 3), height / 2 + lot(-3, 3)
    inverse = (cos, sin, width / 2 - cos * x - sin * y, -sin, cos, height / 2 + sin * x - cos * y)
    picture = Image.fromarray(pixels).transform(
        (width, height), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR, fillcolor=255
    )
    blurred = picture.filter(ImageFilter.Kernel((3, 3), (1, 2, 1, 2, 4, 2, 1, 2, 1)))
    image = np.asarray(Image.blend(picture, blurred, max(0.0, lot(-0.6, 1))), np.float64) / 255
    paper, ink = 1 - lot(0, 0.2), lot(0, 0.42)
    image = ink + (paper - ink) * image + np.linspace(-0.5, 0.5, width) * lot(-0.1, 0.1)
    image += rng.standard_normal(image.shape) * lot(0, 0.06)
    return (image.clip(0, 1) * 255).round().astype(np.uint8)
