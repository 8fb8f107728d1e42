from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.media.preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

pytest.importorskip("rapidocr", reason="pecia[local] brings the classifier")

SENTENCE: Final = (
    "the patient was seen in clinic with cough and fever for three days blood pressure normal heart rate regular Lungs"
    " Clear No Edema Plan Continue Tablets daily review 2026 12.5 mg/dL 140/90 mmHg Dr. Sampleton Ward ANTIBIOTIC"
)
WORDS: Final = SENTENCE.split()
SIZES: Final = ((8.27, 11.69), (11.69, 8.27), (8.5, 11), (5.8, 8.3), (8.27, 5.8), (3.2, 9))
PAGES: Final = 40


class Sheet:
    """A page of one layout, drawn with everything else at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  the same pages every time
        self.dpi = self.rng.choice([100, 150, 150, 200])
        size = SIZES[self.rng.choice([0, 0, 0, 1, 2, 3, 4, 5])]
        self.image = Image.new(
            "L", (int(size[0] * self.dpi), int(size[1] * self.dpi)), self.rng.choice([255, 235])
        )
        self.draw = ImageDraw.Draw(self.image)
        size_px = self.rng.choice([9, 10, 11, 12, 14]) * self.dpi / 72
        self.font = ImageFont.load_default(size_px)
        self.pitch = round(size_px * self.rng.choice([1.25, 1.5, 1.8]))
        self.margin = int(self.dpi * 0.6)
        self.width = self.image.width - 2 * self.margin
        self.ink = self.rng.choice([0, 30, 70])
        self.y = self.margin

    def words(self, count: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(count))

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
            text = self.rng.choice(WORDS) if self.rng.random() < 0.6 else f"{self.rng.uniform(0, 200):.1f}"
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
        self.put(self.rng.choice(WORDS).title() + ":", 0, self.width * 0.35)
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


def synthetic_page(seed: int) -> NDArray[np.uint8]:
    sheet = Sheet(seed)
    layouts = (
        sheet.prose,
        sheet.capitals,
        sheet.two_columns,
        sheet.cells,
        sheet.ruled_cells,
        sheet.numbers,
        sheet.form,
        sheet.few_lines,
    )
    return sheet.filled_with(layouts[seed % len(layouts)])


def turned(page: NDArray[np.uint8], degrees: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.rot90(page, -degrees // 90))


@pytest.fixture(scope="module")
def came_back_upright() -> dict[int, list[bool]]:
    """For each angle, whether each page, turned by it, came back as it was drawn."""
    outcome: dict[int, list[bool]] = {0: [], 90: [], 180: [], 270: []}
    for seed in range(PAGES):
        page = synthetic_page(seed)
        for degrees, upright in outcome.items():
            prepared = prepare(turned(page, degrees))
            upright.append(prepared.rotation == -degrees % 360 and np.array_equal(prepared.pixels, page))
    return outcome


def test_an_upright_page_is_never_turned(came_back_upright: dict[int, list[bool]]) -> None:
    assert all(came_back_upright[0])


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_turned_pages_come_back_upright(came_back_upright: dict[int, list[bool]], degrees: int) -> None:
    assert sum(came_back_upright[degrees]) >= PAGES - 1


@pytest.mark.parametrize("degrees", [0, 180])
def test_a_scan_that_lies_slightly_askew_is_judged_all_the_same(degrees: int) -> None:
    image = Image.fromarray(synthetic_page(8)).rotate(1.0, expand=True, fillcolor=(255, 255, 255))

    assert prepare(turned(np.array(image), degrees)).rotation == -degrees % 360


def test_a_picture_without_letters_stays_as_it_is() -> None:
    image = Image.new("RGB", (800, 1000), "white")
    ImageDraw.Draw(image).ellipse((100, 100, 700, 900), outline="black", width=9)

    assert prepare(np.array(image)).rotation == 0
