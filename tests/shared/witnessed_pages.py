"""Drawn pages of three kinds, and what a model that lies about them would write: swapped digits, rows that are not
there, lines left out. Each word's place is that of its ink."""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pypdfium2
from numpy.typing import NDArray

from pecia_schemas.blocks import Box, DoubtReason
from pecia_schemas.results import Page
from pecia_workers.witness.tokens import tokens_of
from tests.shared.hand_made_pdfs import typeset, written_pdf

KINDS: Final = ("lab_result", "prescription", "invoice")
LETTER: Final = "letter"
"""A kind with names, phone numbers, ranges, dates of other writings, sides, denials, and a table with empty cells."""
OF_THE_TEXT: Final = (DoubtReason.DISAGREES, DoubtReason.NOT_ON_PAGE, DoubtReason.MISPLACED)
"""Reasons of doubts on what is written."""
DPI: Final = 150
_POINT: Any = DPI / 72  # typed as int where pages are rendered
_HEIGHT: Final = 842
_SIZE: Final = 11.0
_ASCENDER, _DESCENDER = 0.718, -0.207
"""Of Helvetica, by its size."""
_PITCH: Final = 18.0
_LEFT: Final = 60.0
_WIDTHS: Final = {
    sign: width / 1000
    for width, signs in {
        222: "ijl",
        278: "ft ./,:I",
        333: "r-()",
        500: "ckxyzsJv",
        611: "FTZ",
        667: "ABEKPSVXY",
        722: "CDHNRUw",
        778: "GOQ",
        833: "mM",
        889: "%",
    }.items()
    for sign in signs
}
"""Of Helvetica's signs, by its size; all others have that of a digit."""
_ANALYTES: Final = (  # noqa: SIM905  many
    "Sodium Potassium Chloride Calcium Glucose Creatinine Urea Albumin Bilirubin "
    "Ferritin Hemoglobin Leukocytes Platelets Magnesium Phosphate Lactate Cholesterol "
    "Triglycerides Lipase Amylase Troponin Fibrinogen"
).split()
_INVENTED_ANALYTES: Final = ("Zinc Copper Selenium Cortisol Insulin Prolactin Estradiol Ammonia").split()  # noqa: SIM905  many
_DRUGS: Final = (  # noqa: SIM905  many
    "Amoxicillin Ibuprofen Metformin Ramipril Bisoprolol Torasemide Pantoprazole "
    "Simvastatin Levothyroxine Prednisolone Allopurinol Amlodipine"
).split()
_INVENTED_DRUGS: Final = ("Digoxin Warfarin Morphine Lithium Clozapine Haloperidol").split()  # noqa: SIM905  many
_ARTICLES: Final = (  # noqa: SIM905  many
    "Gloves Syringes Compresses Cannulas Masks Catheters Bandages Thermometers Swabs Needles Scissors Tapes"
).split()
_INVENTED_ARTICLES: Final = ("Monitors Lamps Scales Stretchers Sensors Pumps").split()  # noqa: SIM905  many
_NAMES: Final = (
    *("Anna Schmidt", "Jonas Weber", "Clara Hoffmann", "Peter Novak", "Maria Lindner", "Karim Haddad"),
    *("Sofia Marino", "Erik Larsen", "Paula Becker", "Tomas Kral", "Irene Costa", "David Brenner"),
)
_PROSE: Final = (
    "The patient was admitted on {date} with acute chest pain that had",
    "started {n} hours before arrival at the emergency department.",
    "Blood pressure at discharge was {p}/{d} mmHg with a pulse of {h} per",
    "minute and a temperature of 36.{m} degrees without any medication.",
    "Please see your family doctor within {n} days and bring this letter.",
    "Coronary angiography revealed a stenosis of {h} percent, which was",
    "treated with one stent of {m}.{n} mm in diameter on the same day.",
    "The further course was without complication for {n} nights in ward {m}.",
)


@dataclass(frozen=True)
class Placed:
    """A word where it is drawn, in points from the left, and in pixels once it is."""

    text: str
    x: float
    cell: int = 0
    box: Box | None = None

    @property
    def tokens(self) -> list[str]:
        return [token.key for token in tokens_of(self.text)]


@dataclass(frozen=True)
class Row:
    """One line of the page, or row of its table."""

    y: float
    words: tuple[Placed, ...]
    table: bool = False

    def written(self) -> str:
        """As a model writes it in Markdown."""
        if not self.table:
            return " ".join(word.text for word in self.words)
        cells: dict[int, list[str]] = {number: [] for number in range(self.words[-1].cell + 1)}
        for word in self.words:
            cells[word.cell].append(word.text)
        return "| " + " | ".join(" ".join(words) for words in cells.values()) + " |"


@dataclass
class Drawn:
    """A page, what is on it, and what is written about it."""

    kind: str
    rows: list[Row]
    pdf: bytes
    pixels: NDArray[np.uint8]
    answer: list[Row] = field(default_factory=list)
    swapped: list[tuple[Row, Placed]] = field(default_factory=list)
    """Words as they are written with another digit."""
    invented: list[Row] = field(default_factory=list)
    omitted: list[Row] = field(default_factory=list)

    def markdown(self) -> str:
        text, in_table = "", False
        for row in self.answer or self.rows:
            if row.table and not in_table:
                columns = row.written().count("|") - 1
                text += f"\n{row.written()}\n|{'---|' * columns}\n"
            else:
                text += ("\n" if in_table and not row.table else "") + row.written() + "\n"
            in_table = row.table
        return text


def drawn_page(kind: str, seed: int) -> Drawn:
    rng = random.Random(f"{kind} {seed}")  # noqa: S311  the same pages every time
    rows = list(_placed(list(_content(kind, rng))))
    pdf = written_pdf(_drawing(rows))
    with pypdfium2.PdfDocument(pdf) as document:
        bitmap = document[0].render(scale=_POINT, rev_byteorder=True, fill_color=(255, 255, 255, 255))
        pixels = np.ascontiguousarray(bitmap.to_numpy()[:, :, :3])
    ink = pixels.min(axis=2) < 160
    inked = [replace(row, words=tuple(_with_box(row, word, ink) for word in row.words)) for row in rows]
    return Drawn(kind, inked, pdf, pixels)


def _content(kind: str, rng: random.Random) -> Iterator[list[str]]:
    """Yield the rows as lists of cells; a line of prose is one cell."""
    date = f"{rng.randint(10, 28)}.{rng.randint(10, 12)}.20{rng.randint(10, 25)}"
    number = f"{rng.randint(1000, 9999)}-{rng.randint(100, 999)}"
    if kind == "lab_result":
        yield [f"Laboratory report of {date}"]
        yield [f"Patient: Eva Brandt, born {rng.randint(10, 28)}.05.19{rng.randint(30, 99)}, case {number}"]
        yield ["Analyte", "Result", "Unit", "Reference"]
        for name in rng.sample(_ANALYTES, 16):
            yield lab_row(name, rng)
    elif kind == "prescription":
        yield [f"Prescription {number} of {date}"]
        yield ["Patient: Anton Huber"]
        for name in rng.sample(_DRUGS, 7):
            yield [drug_line(name, rng)]
        yield from _prose(rng, date)
    elif kind == LETTER:
        yield from _letter(rng)
    else:
        yield [f"Invoice {number}"]
        yield [f"Date: {date} Customer: {rng.randint(10000, 99999)}"]
        yield ["Article", "Code", "Pieces", "Price", "Amount"]
        for name in rng.sample(_ARTICLES, 9):
            yield article_row(name, rng)
        yield [
            f"Total {rng.randint(1000, 9999)}.{rng.randint(10, 99)} EUR, due within {rng.randint(10, 60)} days."
        ]
        yield from _prose(rng, date)


def _letter(rng: random.Random) -> Iterator[list[str]]:
    doctor, nurse, patient = rng.sample(_NAMES, 3)
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2011, 2025)
    side, other = rng.sample(["left", "right"], 2)
    yield [
        f"Letter of {year}-{month:02}-{day:02}, phone 0{rng.randint(211, 989)} {_digits(rng)} {_digits(rng)}"
    ]
    yield [f"Patient: {patient}, seen by Dr. {doctor}"]
    yield [
        f"There was no fever, and the {side} lung was clear at {rng.randint(10, 23)}:{rng.randint(10, 59)}."
    ]
    yield [f"He denies pain in the {other} knee. The wound was dry without swelling."]
    yield [f"Give {rng.randint(2, 9)} - {rng.randint(10, 20)} drops of Torasemide 2.5 mg, not with milk."]
    yield ["Drug", "Morning", "Noon", "Evening", "Note"]
    for name in rng.sample(_DRUGS, 6):
        times = [str(rng.choice([5, 10, 25, 40])), "", f"{rng.randint(1, 9)}.5"]
        rng.shuffle(times)
        yield [name, *times, "tablets"]
    yield [f"The {other} hip has not been examined; control in {rng.randint(2, 9)} weeks."]
    yield [f"Next visit on {day:02}.{month:02}.{year + 1} with {nurse}, ward {rng.randint(2, 9)}."]


def _digits(rng: random.Random) -> str:
    return str(rng.randint(1000, 9999))


def _prose(rng: random.Random, date: str) -> Iterator[list[str]]:
    most = {"n": (2, 9), "m": (1, 9), "p": (110, 160), "d": (60, 95), "h": (50, 99)}
    for line in rng.sample(_PROSE, 6):
        yield [line.format(date=date, **{name: rng.randint(*ends) for name, ends in most.items()})]


def lab_row(name: str, rng: random.Random) -> list[str]:
    low, result = rng.randint(1, 90), f"{rng.uniform(1, 200):.1f}"
    unit = rng.choice(["mmol/l", "mg/dl", "U/l", "g/l"])
    return [name, result, unit, f"{low} - {low + rng.randint(5, 90)}"]


def drug_line(name: str, rng: random.Random) -> str:
    dose = rng.choice([2.5, 5, 10, 25, 40, 75, 100, 125, 500, 850])
    return f"{name} {dose} mg, {rng.randint(1, 4)} tablets for {rng.randint(5, 90)} days"


def article_row(name: str, rng: random.Random) -> list[str]:
    pieces, price = rng.randint(2, 300), rng.uniform(0.2, 40)
    code = f"{rng.choice('ABCDEFGH')}{rng.choice('KLMNPR')}{rng.randint(100, 999)}"
    return [name, code, str(pieces), f"{price:.2f}", f"{pieces * price:.2f}"]


def _placed(content: Sequence[list[str]]) -> Iterator[Row]:
    y = _HEIGHT - 70.0
    for cells in content:
        words = []
        for number, cell in enumerate(cells):
            x = _LEFT + number * 100
            for text in cell.split():
                words.append(Placed(text, x, number))
                x += (sum(_WIDTHS.get(sign, 0.556) for sign in text) + 0.278) * _SIZE
        yield Row(y, tuple(words), table=len(cells) > 1)
        y -= _PITCH * (1.0 if len(cells) > 1 else 1.2)


def _drawing(rows: Sequence[Row]) -> bytes:
    places = [(word, row.y + 1.5 * _SIZE) for row in rows for word in row.words]
    return b"".join(typeset([word.text], size=_SIZE, left=word.x, top=y) for word, y in places)


def _with_box(row: Row, word: Placed, ink: NDArray[np.bool_]) -> Placed:
    """Return the word with its place: as wide as its ink, as high as its font."""
    following = min((other.x for other in row.words if other.x > word.x), default=595.0)
    left, right = int((word.x - 1) * _POINT), int((following - 1) * _POINT)
    top, bottom = ((_HEIGHT - row.y - part * _SIZE) * _POINT for part in (_ASCENDER, _DESCENDER))
    across = np.flatnonzero(ink[int(top) : int(bottom), left:right].any(axis=0))
    place = Box(
        left=left + int(across[0]), top=round(top), right=left + int(across[-1]) + 1, bottom=round(bottom)
    )
    return replace(word, box=place)


def lied_about(page: Drawn, seed: int, *, swaps: int, inventions: int, omissions: int) -> Drawn:
    """Return the page with an answer in which so much is not true."""
    rng = random.Random(f"lies {seed}")  # noqa: S311  the same lies every time
    answer: list[Row] = list(page.rows)
    body = list(page.rows[3:])
    omitted = rng.sample(body, omissions)
    candidates = [
        (row, place)
        for row in page.rows
        if row not in omitted
        for place, word in enumerate(row.words)
        if any(map(str.isdigit, word.text))
    ]
    swapped: list[tuple[Row, Placed]] = []
    for row, place in rng.sample(candidates, swaps):
        number = next(n for n, one in enumerate(answer) if one.y == row.y)
        word = answer[number].words[place]
        false = replace(word, text=_swapped(word.text, rng))
        words = tuple(false if n == place else one for n, one in enumerate(answer[number].words))
        answer[number] = replace(answer[number], words=words)
        swapped.append((row, false))
    answer = [row for row in answer if all(row.y != one.y for one in omitted)]
    invented = [_invented(page.kind, rng) for _ in range(inventions)]
    for row in invented:
        places = [n for n, one in enumerate(answer) if n > 2 and one.table == row.table]
        answer.insert(rng.choice(places), row)
    return replace(page, answer=answer, swapped=swapped, invented=invented, omitted=omitted)


def _swapped(text: str, rng: random.Random) -> str:
    place = rng.choice([n for n, sign in enumerate(text) if sign.isdigit()])
    digit = rng.choice([one for one in "0123456789" if one != text[place]])
    return text[:place] + digit + text[place + 1 :]


def _invented(kind: str, rng: random.Random) -> Row:
    if kind == "lab_result":
        cells = lab_row(rng.choice(_INVENTED_ANALYTES), rng)
    elif kind == "prescription":
        cells = [drug_line(rng.choice(_INVENTED_DRUGS), rng)]
    else:
        cells = article_row(rng.choice(_INVENTED_ARTICLES), rng)
    words = [Placed(text, 0, number) for number, cell in enumerate(cells) for text in cell.split()]
    return Row(-1, tuple(words), table=len(cells) > 1)


@dataclass
class Score:
    """How many lies were found, of how many; so too values that were called doubtful though they were not touched."""

    swaps: Counter[bool] = field(default_factory=Counter)
    inventions: Counter[bool] = field(default_factory=Counter)
    omissions: Counter[bool] = field(default_factory=Counter)
    doubted: Counter[bool] = field(default_factory=Counter)
    boxes: Counter[bool] = field(default_factory=Counter)

    def add(self, page: Page, drawn: Drawn) -> None:
        """Compare what a page's result says with what was done to it."""
        doubted: Counter[str] = Counter()
        for doubt in page.doubts:
            if doubt.reason in OF_THE_TEXT and doubt.on_value:
                doubted.update(token.key for token in tokens_of(doubt.text))
        for _, word in drawn.swapped:
            self.swaps[_taken(doubted, word.tokens, most=False)] += 1
        for row in drawn.invented:
            self.inventions[_taken(doubted, _numbers(*row.words), most=True)] += 1
        written, lies = (
            [word for row in rows for word in row.words] for rows in (drawn.answer, drawn.invented)
        )
        touched = len(_numbers(*lies, *(word for _, word in drawn.swapped)))
        wrongly = sum(count for key, count in doubted.items() if any(map(str.isdigit, key)))
        self.doubted[True] += wrongly
        self.doubted[False] += len(_numbers(*written)) - touched - wrongly
        missing = [
            doubt.box for doubt in page.doubts if doubt.reason is DoubtReason.ONLY_WITNESS and doubt.box
        ]
        for row in drawn.omitted:
            self.omissions[any(_within(word.box, box) for word in row.words[:1] for box in missing)] += 1
        found = [word.box for line in page.lines for word in line.words]
        false = {(row.y, word.x) for row, word in drawn.swapped}
        for row in drawn.answer:
            for word in row.words:
                if word.box and (row.y, word.x) not in false and re.search(r"\w", word.text):
                    self.boxes[max((_overlap(word.box, box) for box in found), default=0.0) >= 0.7] += 1


def _numbers(*words: Placed) -> list[str]:
    return [key for word in words for key in word.tokens if any(map(str.isdigit, key))]


def _taken(doubted: Counter[str], keys: list[str], *, most: bool) -> bool:
    """Return whether these are doubted, all or any, and count them as found."""
    there = [key for key in keys if doubted[key]]
    doubted.subtract(there)
    return len(there) == len(keys) if most else bool(there)


def _within(word: Box | None, box: Box) -> bool:
    return word is not None and _common(word, box) > 0.5 * _area(word)


def _overlap(one: Box, other: Box) -> float:
    common = _common(one, other)
    return common / (_area(one) + _area(other) - common)


def _common(one: Box, other: Box) -> int:
    across = min(one.right, other.right) - max(one.left, other.left)
    down = min(one.bottom, other.bottom) - max(one.top, other.top)
    return max(0, across) * max(0, down)


def _area(box: Box) -> int:
    return (box.right - box.left) * (box.bottom - box.top)
