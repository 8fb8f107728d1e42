from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from PIL import Image, ImageDraw

from drawn_pages import synthetic_page, turned
from pecia_workers.media.preparation import prepare

pytest.importorskip("rapidocr", reason="pecia[local] brings the classifier")

pytestmark = pytest.mark.gate

PAGES: Final = 24


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


def test_an_upright_page_comes_back_pixel_for_pixel(came_back_upright: dict[int, list[bool]]) -> None:
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
