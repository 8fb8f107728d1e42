import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pecia_workers.media.decoding import prepare

A4 = (1240, 1754)


def sheet(paper: int = 255) -> Image.Image:
    return Image.new("L", A4, paper)


def scanned(image: Image.Image, noise: float = 0.0, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    grey = np.asarray(image, dtype=np.float32) + rng.normal(0, noise, (image.height, image.width))
    return np.repeat(grey.clip(0, 255).astype(np.uint8)[:, :, np.newaxis], 3, axis=2)


def write(image: Image.Image, text: str, points: float = 11, ink: int = 30) -> Image.Image:
    font = ImageFont.load_default(points * 150 / 72)
    ImageDraw.Draw(image).text((500, 800), text, fill=ink, font=font)
    return image


@pytest.mark.parametrize("noise", [0, 6, 12])
@pytest.mark.parametrize("paper", [255, 215, 180])
def test_an_empty_sheet_is_blank_under_noise_and_a_grey_cast(paper: int, noise: float) -> None:
    assert prepare(scanned(sheet(paper), noise)).blank


@pytest.mark.parametrize("seed", range(6))
def test_specks_of_dust_do_not_fill_a_page(seed: int) -> None:
    image = sheet(245)
    draw = ImageDraw.Draw(image)
    rng = np.random.default_rng(seed)
    for x, y, size in rng.integers((0, 0, 1), (*A4, 5), (40, 3)).tolist():
        draw.ellipse((x, y, x + size, y + size), fill=0)
    assert prepare(scanned(image, 5, seed)).blank


@pytest.mark.parametrize(
    "edges",
    [((0, 0, A4[0], 14), (A4[0] - 22, 0, *A4)), ((0, 0, 45, A4[1]),)],
    ids=["two", "wider than the paper is estimated over"],
)
def test_the_dark_edge_a_scanner_leaves_is_no_writing(edges: tuple[tuple[int, int, int, int], ...]) -> None:
    image = sheet(240)
    for edge in edges:
        ImageDraw.Draw(image).rectangle(edge, fill=30)
    assert prepare(scanned(image, 4)).blank


def test_one_line_near_the_edge_of_the_page_is_writing() -> None:
    image = sheet()
    text = "This page is left empty on purpose. " * 3
    ImageDraw.Draw(image).text((60, A4[1] - 60), text, fill=0, font=ImageFont.load_default(24))
    assert not prepare(scanned(image)).blank


def test_light_that_falls_off_to_one_side_is_no_writing() -> None:
    shade = np.linspace(250, 150, A4[0])[np.newaxis, :].repeat(A4[1], axis=0)
    assert prepare(scanned(Image.fromarray(shade.astype(np.uint8)), 4)).blank


@pytest.mark.parametrize("text", ["END", "Page 2", "See overleaf.", "normal", "Dr. Dummer"])
@pytest.mark.parametrize("points", [9, 11, 14])
def test_one_short_printed_line_is_enough_not_to_be_blank(text: str, points: float) -> None:
    assert not prepare(scanned(write(sheet(245), text, points), 6)).blank


def test_faint_print_and_light_print_on_dark_ground_are_seen() -> None:
    assert not prepare(scanned(write(sheet(250), "Copy of a copy", ink=150), 4)).blank
    assert not prepare(scanned(write(sheet(30), "Radiograph of the left hand", ink=230))).blank


@pytest.mark.parametrize(("contrast", "noise"), [(30, 6), (20, 6), (12, 3), (8, 1)])
def test_print_hardly_darker_than_its_paper_and_its_noise_is_seen(contrast: int, noise: float) -> None:
    image = sheet(235)
    for top in range(200, 900, 50):
        text, font = "Copy of a copy of a letter", ImageFont.load_default(24)
        ImageDraw.Draw(image).text((150, top), text, fill=235 - contrast, font=font)
    assert not prepare(scanned(image, noise)).blank


@pytest.mark.parametrize("noise", [2, 10, 30])
def test_noise_that_jpeg_has_smeared_is_no_writing(noise: float) -> None:
    file = io.BytesIO()
    Image.fromarray(scanned(sheet(240), noise)).save(file, "JPEG", quality=60)
    assert prepare(np.array(Image.open(file))).blank


@pytest.mark.parametrize("top", [0.01, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("size", [(1080, 20_000), (20_000, 640), (4_000, 400)])
def test_a_line_is_seen_on_a_page_of_any_length(size: tuple[int, int], top: float) -> None:
    image, font = Image.new("RGB", size, "white"), ImageFont.load_default(28)
    assert prepare(np.array(image)).blank
    place = (size[0] * (top if size[0] > size[1] else 0.3), size[1] * (0.3 if size[0] > size[1] else top))
    ImageDraw.Draw(image).text(place, "Total due 4711", fill="black", font=font, anchor="mm")
    assert not prepare(np.array(image)).blank


def test_a_drawing_without_letters_is_not_blank() -> None:
    image = sheet()
    ImageDraw.Draw(image).ellipse((400, 500, 800, 900), outline=0, width=3)
    assert not prepare(scanned(image)).blank


def test_a_photograph_that_fills_its_page_is_not_blank() -> None:
    coarse = np.random.default_rng(16).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    assert not prepare(coarse.repeat(28, axis=0).repeat(28, axis=1)).blank


def test_a_picture_of_a_few_pixels_does_not_break_the_test() -> None:
    assert prepare(np.full((1, 1, 3), 255, dtype=np.uint8)).blank
    chequered = np.indices((20, 20)).sum(axis=0, keepdims=True).T.repeat(3, 2).astype(np.uint8) % 2 * 255
    assert not prepare(chequered).blank
