"""Print on the back of a page that shines through is never read as text; pale print of the page itself is."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from pecia_schemas.blocks import DoubtReason
from tests.shared.drawn_pages import WORDS
from tests.shared.ocr import ReadPixels, ocr_process

pytestmark = pytest.mark.gate

SIZE, PITCH, PRINT, PAPER = (1100, 900), 56, 24, 245
STAMP = "Received 12 March 2024 dose 250 mg"


Read = Callable[[NDArray[np.uint8]], tuple[list[str], int]]


@pytest.fixture(scope="module")
def ocr() -> Iterator[ReadPixels]:
    with ocr_process() as read:
        yield read


@pytest.fixture
def read(ocr: ReadPixels) -> Read:
    """What returns the lines of a page, and how many doubts there are but for words that are hard to read."""

    def read(pixels: NDArray[np.uint8]) -> tuple[list[str], int]:
        result = ocr(pixels)
        others = [doubt for doubt in result.doubts if doubt.reason is not DoubtReason.LOW_CONFIDENCE]
        return [line for block in result.blocks for line in block.text.split("\n")], len(others)

    return read


def lines_of(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)  # noqa: S311  the same pages every time
    return [" ".join(rng.choices(WORDS, k=8)) for _ in range(count)]


def ink_of(lines: list[str], top: int = 60) -> Image.Image:
    image = Image.new("L", SIZE)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text(
            (60, top + number * PITCH), line, fill=255, font=ImageFont.load_default(PRINT)
        )
    return image


def page(
    front: list[str], back: list[str], *, shines: int, blur: float = 1.5, below: int = 0, pale: int = 0
) -> NDArray[np.uint8]:
    """Draw a page, its back so many levels darker than the paper, and so many pixels below its own lines."""
    mirrored = ink_of(back, 60 + below).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    stamp = ink_of([*[""] * 13, STAMP], 70) if pale else ink_of([])
    layers = ((ink_of(front), 210), (mirrored.filter(ImageFilter.GaussianBlur(blur)), shines), (stamp, pale))
    ink = np.maximum.reduce([np.asarray(layer, float) / 255 * levels for layer, levels in layers])
    return np.repeat((PAPER - ink).astype(np.uint8)[:, :, np.newaxis], 3, axis=2)


@pytest.mark.parametrize("blur", [0.7, 1.4, 2.1])
@pytest.mark.parametrize(("shines", "below"), [(35, 28), (60, 14), (95, 28), (50, 0)])
def test_the_back_of_a_page_is_not_read(read: Read, shines: int, below: int, blur: float) -> None:
    front, back = lines_of(shines, 10), lines_of(below + 100, 13)
    pixels = page(front, back, shines=shines, below=below, blur=blur)
    assert read(pixels) == (front, 0)


@pytest.mark.parametrize("shines", [0, 30])
@pytest.mark.parametrize("pale", [50, 80, 120])
def test_pale_print_of_the_page_itself_is_read(read: Read, pale: int, shines: int) -> None:
    front = lines_of(pale, 6)
    text, doubts = read(page(front, lines_of(1, 10), shines=shines, below=20, pale=pale))
    assert [line.replace(" ", "") for line in text] == [line.replace(" ", "") for line in [*front, STAMP]]
    assert doubts == 0


@pytest.mark.parametrize("shines", [25, 50, 80])
def test_a_page_with_print_on_its_back_alone_has_no_text(read: Read, shines: int) -> None:
    assert read(page([], lines_of(shines, 12), shines=shines)) == ([], 0)


def test_a_page_that_is_mirrored_itself_is_not_without_text(read: Read) -> None:
    text, doubts = read(page([], lines_of(7, 12), shines=210, blur=0))
    assert text
    assert doubts


def test_words_that_look_alike_in_the_mirror_are_read(read: Read) -> None:
    words = ["AMA TOTO 808", "MAXIMA 101 HOXOH", "OTTO AVIVA 181 WOW"]
    assert read(page(words, [], shines=0)) == (words, 0)
    assert read(page([*words, *lines_of(3, 4)], [], shines=0))[0][: len(words)] == words
