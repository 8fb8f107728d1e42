"""Drawn pages of many layouts, and forty of them as they lie on a scanner's glass: turned, askew, in four formats."""

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.media.pages import PageImage

SENTENCE: Final = (
    "the patient was seen in clinic with cough and fever for three days blood pressure normal heart rate regular Lungs"
    " Clear No Edema Plan Continue Tablets daily review 2026 12.5 mg/dL 140/90 mmHg Dr. Sampleton Ward ANTIBIOTIC"
)
WORDS: Final = SENTENCE.split()
KOREAN_SENTENCE: Final = (
    "환자는 삼 일간 기침과 발열로 내원하였으며 혈압은 정상이고 맥박은 규칙적이다 폐음은 깨끗하고 부종은 없다"
    " 처방한 약을 하루 두 번 식후에 복용하고 다음 주에 검사 결과를 확인한다 2026 12.5 mg/dL 140/90 내과 외래"
)
KOREAN_WORDS: Final = KOREAN_SENTENCE.split()
SIZES: Final = ((8.27, 11.69), (11.69, 8.27), (8.5, 11), (5.8, 8.3), (8.27, 5.8), (3.2, 9))


class Sheet:
    """A page of one layout, drawn with everything else at random."""

    def __init__(self, seed: int, korean: Path | None = None) -> None:
        """`korean`: the font of a Korean page."""
        self.rng = random.Random(seed)  # noqa: S311  the same pages every time
        self.dpi = self.rng.choice([100, 150, 150, 200])
        size = SIZES[self.rng.choice([0, 0, 0, 1, 2, 3, 4, 5])]
        self.image = Image.new(
            "L", (int(size[0] * self.dpi), int(size[1] * self.dpi)), self.rng.choice([255, 235])
        )
        self.draw = ImageDraw.Draw(self.image)
        size_px = self.rng.choice([9, 10, 11, 12, 14]) * self.dpi / 72
        self.font = ImageFont.truetype(korean, size_px) if korean else ImageFont.load_default(size_px)
        self.vocabulary = KOREAN_WORDS if korean else WORDS
        self.pitch = round(size_px * self.rng.choice([1.25, 1.5, 1.8]))
        self.margin = int(self.dpi * 0.6)
        self.width = self.image.width - 2 * self.margin
        self.ink = self.rng.choice([0, 30, 70])
        self.y = self.margin

    def words(self, count: int) -> str:
        return " ".join(self.rng.choice(self.vocabulary) for _ in range(count))

    def put(self, text: str, left: float, width: float) -> None:
        while " " in text and self.font.getlength(text) > width:
            text = text.rsplit(" ", 1)[0]
        self.draw.text((self.margin + left, self.y), text, fill=self.ink, font=self.font)

    def prose(self) -> None:
        self.put(self.words(self.rng.choice([20, 20, 20, 8])), 0, self.width)

    def capitals(self) -> None:
        self.put(self.words(self.rng.choice([20, 9])).upper(), 0, self.width)

    def two_columns(self) -> None:
        for column in range(2):
            self.put(self.words(12), column * self.width * 0.53, self.width * 0.47)

    def cells(self) -> None:
        for column in range(4):
            is_word = self.rng.random() < 0.6
            text = self.rng.choice(self.vocabulary) if is_word else f"{self.rng.uniform(0, 200):.1f}"
            self.put(text, column * self.width / 4, self.width / 4 - 8)

    def ruled_cells(self) -> None:
        self.cells()
        right = self.margin + self.width
        self.draw.line((self.margin - 4, self.y - 3, right, self.y - 3), fill=self.ink)
        for column in range(5):
            x = self.margin - 6 + column * self.width / 4
            self.draw.line((x, self.y - 3, x, self.y + self.pitch - 3), fill=self.ink, width=2)

    def numbers(self) -> None:
        for column in range(4):
            self.put(f"{self.rng.uniform(0, 2000):.2f}", column * self.width / 4, self.width)

    def form(self) -> None:
        self.put(self.rng.choice(self.vocabulary).title() + ":", 0, self.width * 0.35)
        box = (self.margin + self.width * 0.4, self.y - 2, self.margin + self.width, self.y + self.pitch - 4)
        self.draw.rectangle(box, outline=self.ink, width=2)
        if self.rng.random() < 0.7:
            self.put(self.words(4), self.width * 0.42, self.width * 0.56)
        self.y += self.pitch // 2

    def few_lines(self) -> None:
        self.prose()
        if self.y > self.margin + 2 * self.pitch:
            self.y = self.image.height

    def filled_with(self, row: Callable[[], None]) -> NDArray[np.uint8]:
        while self.y < self.image.height - self.margin - self.pitch:
            row()
            self.y += self.pitch
        noise = np.random.default_rng(self.rng.randrange(1000)).normal(
            0, self.rng.choice([0, 4, 8]), (self.image.height, self.image.width)
        )
        grey = (np.asarray(self.image, dtype=np.float32) + noise).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, np.newaxis], 3, axis=2)


def synthetic_page(seed: int, korean: Path | None = None) -> NDArray[np.uint8]:
    """A page whose layout is that of the seed by eight."""
    sheet = Sheet(seed, korean)
    layouts = (
        *(sheet.prose, sheet.capitals, sheet.two_columns, sheet.cells),
        *(sheet.ruled_cells, sheet.numbers, sheet.form, sheet.few_lines),
    )
    return sheet.filled_with(layouts[seed % len(layouts)])


def turned(page: NDArray[np.uint8], degrees: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.rot90(page, -degrees // 90))


SLOPES: Final = (0.0, 1.2, -2.5, 4.0, -6.0, 0.8, -1.7, 9.0, -9.5, 0.0)
"""Degrees, clockwise."""
CASES: Final = 40
NEEDED: Final = 38
_ORIENTATIONS: Final = {0: 1, 90: 6, 180: 3, 270: 8}
"""What EXIF says of a picture that is to be turned so far clockwise."""
_KOREAN: Final = (0, 3, 7)
_AFAR: Final = (100, 100)
_MIDDLE: Final = slice(4, 96)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One page in a file, and what becomes of it if all goes well."""

    name: str
    path: Path
    drawn: NDArray[np.uint8]
    """As it was before it was laid on the glass."""
    slope: float
    rotation: int
    """By which it is to be turned after the file itself has had its say."""

    def residual(self, page: PageImage) -> float:
        """Degrees by which the prepared page's lines still slope."""
        return abs(self.slope + page.skew)

    def came_back(self, page: PageImage) -> bool:
        """Whether it stands upright and level, by what is told of it and by what is seen."""
        told = page.rotation == self.rotation and self.residual(page) < 0.5
        return told and likeness(page.pixels, self.drawn) > 0.5


def askew_pages(directory: Path, korean: Path | None = None) -> Iterator[Case]:
    """Draw forty pages, three of ten Korean if there is a font; most have noise."""
    for number in range(CASES):
        drawn = synthetic_page(number, korean if number % 10 in _KOREAN else None)
        slope = SLOPES[number * 7 % len(SLOPES)]
        quarter = 90 * (number // 2 % 4)
        lying = Image.fromarray(drawn).rotate(
            -slope, expand=True, fillcolor="white", resample=Image.Resampling.BICUBIC
        )
        form = ("png", "jpeg", "exif", "pdf")[number // 3 % 4]
        path = directory / f"{number}.{form}"
        path.write_bytes(_encoded(Image.fromarray(turned(np.asarray(lying), -quarter)), form, quarter))
        told = form in ("exif", "pdf")
        name = f"{number}: layout {number % 8}, {form}, turned by {quarter}, slope {slope:g}"
        yield Case(name=name, path=path, drawn=drawn, slope=slope, rotation=0 if told else quarter)


def _encoded(image: Image.Image, form: str, quarter: int) -> bytes:
    file = io.BytesIO()
    if form == "pdf":
        image.save(file, "PDF", resolution=150)
        with pypdfium2.PdfDocument(file.getvalue()) as document:
            document[0].set_rotation(quarter)
            saved = io.BytesIO()
            document.save(saved)
            return saved.getvalue()
    exif = Image.Exif()
    if form == "exif":
        exif[0x0112] = _ORIENTATIONS[quarter]
    image.save(file, "PNG" if form == "png" else "JPEG", exif=exif)
    return file.getvalue()


def likeness(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """How much two pages look alike from afar, their middles laid upon each other: 1 for the same, 0 for any two."""
    height, width = other.shape[:2]
    left, top = (one.shape[1] - width) // 2, (one.shape[0] - height) // 2
    pages = (Image.fromarray(one).crop((left, top, left + width, top + height)), Image.fromarray(other))
    seen = [np.asarray(page.convert("L").resize(_AFAR)).astype(float)[_MIDDLE, _MIDDLE] for page in pages]
    return float(np.corrcoef(seen[0].ravel(), seen[1].ravel())[0, 1])
