"""What becomes of a decoded page before an engine sees it, step by step."""

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pecia_schemas.results import Page, Timings, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import Preparation
from pecia_workers.media.decoding import load_page, prepare
from pecia_workers.media.pages import Limits, PageImage, Plan
from pecia_workers.reading.page import _moved
from tests.shared.command import ran
from tests.shared.drawn_pages import NEEDED, askew_pages, synthetic_page, turned

pytest.importorskip("rapidocr", reason="pecia[local] brings the classifier")

pytestmark = pytest.mark.gate

LEVEL = Plan(steps=(Preparation.DESKEW,))


def askew(page: NDArray[np.uint8], slope: float) -> NDArray[np.uint8]:
    image = Image.fromarray(page).rotate(
        -slope, expand=True, fillcolor="white", resample=Image.Resampling.BICUBIC
    )
    return np.asarray(image)


def in_black(page: NDArray[np.uint8]) -> float:
    """How much of a page is black over eight pixels or more, which no letter is."""
    return float((np.asarray(Image.fromarray(page).convert("L").reduce(8)) < 100).sum())


def test_of_forty_pages_turned_and_askew_at_least_thirty_eight_come_back_upright(tmp_path: Path) -> None:
    limits = Limits.of(WorkerSettings())
    lost = [
        case.name for case in askew_pages(tmp_path) if not case.came_back(load_page(case.path, 0, limits))
    ]
    assert len(lost) <= 40 - NEEDED, lost


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_pages_that_lie_turned_come_back_pixel_for_pixel(degrees: int) -> None:
    pages = [synthetic_page(seed) for seed in range(24)]
    wrong = 0
    for page in pages:
        prepared = prepare(turned(page, degrees))
        is_upright = prepared.rotation == -degrees % 360
        assert np.array_equal(prepared.pixels, page) is is_upright
        wrong += not is_upright
    assert wrong <= (degrees > 0)


@pytest.mark.parametrize("slope", [-10, -3.3, 0.7, 5.2])
def test_a_page_askew_is_turned_back_by_as_much(slope: float) -> None:
    page = prepare(askew(synthetic_page(5), slope), LEVEL)
    assert page.skew == pytest.approx(-slope, abs=0.2)
    assert page.rotation == 0


def test_nothing_is_cut_off_a_page_that_is_levelled() -> None:
    slanted = askew(synthetic_page(5), 4).copy()
    slanted[:80, :80] = slanted[-80:, -80:] = 0
    levelled = prepare(slanted, LEVEL)
    assert levelled.skew
    assert in_black(levelled.pixels) == pytest.approx(in_black(slanted), rel=0.1)


def test_a_levelled_page_is_no_larger_than_its_ink_needs() -> None:
    page = Image.new("RGB", (1240, 1754), "white")
    page.paste(Image.fromarray(synthetic_page(5)).resize((500, 700)), (370, 500))
    assert prepare(np.asarray(page.rotate(6, fillcolor="white")), LEVEL).pixels.shape == (1754, 1240, 3)


@pytest.mark.parametrize("slope", [0.15, -12.0, 30.0])
def test_an_angle_too_small_to_matter_or_too_large_to_be_sure_of_is_left(slope: float) -> None:
    page = askew(synthetic_page(5), slope)
    prepared = prepare(page, LEVEL)
    assert prepared.skew == 0
    assert np.array_equal(prepared.pixels, page)


def drawing() -> Image.Image:
    image = Image.new("RGB", (800, 1000), "white")
    ImageDraw.Draw(image).ellipse((100, 100, 700, 900), outline="black", width=9)
    return image


def specks() -> Image.Image:
    image = Image.new("RGB", (1240, 1754), "white")
    for x, y in np.random.default_rng(1).integers(0, (1230, 1740), (300, 2)).tolist():
        ImageDraw.Draw(image).rectangle((x, y, x + 8, y + 10), fill="black")
    return image


def photograph() -> Image.Image:
    noise = np.random.default_rng(0).normal(128, 60, (220, 160, 3)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(noise).resize((1240, 1754), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("draw", [drawing, specks, photograph])
def test_a_picture_without_lines_of_text_is_in_doubt_and_stays_as_it_is(draw: type[Image.Image]) -> None:
    page = np.asarray(draw())
    assert np.array_equal(prepare(page, LEVEL).pixels, page)


def test_a_drawing_is_not_turned() -> None:
    assert prepare(np.asarray(drawing())).rotation == 0


def test_the_level_edge_of_a_scan_does_not_hide_that_its_text_slopes() -> None:
    page = askew(synthetic_page(5), 3).copy()
    page[:14] = 20
    page[:, -20:] = 20
    assert prepare(page, LEVEL).skew == pytest.approx(-3, abs=0.2)


@pytest.mark.parametrize("left_out", list(Preparation))
def test_each_step_can_be_left_out(left_out: Preparation) -> None:
    others = tuple(step for step in Preparation if step is not left_out)
    text = turned(askew(synthetic_page(0), 2), 180)
    empty = np.full((600, 400, 3), 255, dtype=np.uint8)
    plan = Plan(steps=others, most_pixels=10**6)

    page = prepare(text, plan)

    assert (page.rotation == 0) == (left_out is Preparation.ORIENT)
    assert (page.skew == 0) == (left_out is Preparation.DESKEW)
    assert (page.scale == 1) == (left_out is Preparation.DOWNSCALE)
    assert prepare(empty, plan).blank is (left_out is not Preparation.BLANK)


def test_without_any_step_a_page_is_what_was_decoded() -> None:
    page = turned(askew(synthetic_page(0), 2), 90)
    assert prepare(page, Plan(steps=(), most_pixels=1000)).pixels is page


@given(st.integers(50, 900), st.integers(50, 900), st.integers(5_000, 400_000))
def test_no_page_exceeds_the_pixels_of_the_engine_or_is_bent(width: int, height: int, most: int) -> None:
    plan = Plan(steps=(Preparation.DOWNSCALE,), most_pixels=most)
    page = prepare(np.zeros((height, width, 3), dtype=np.uint8), plan)
    prepared_height, prepared_width = page.pixels.shape[:2]
    assert prepared_width * prepared_height <= most
    assert prepared_width == pytest.approx(width * page.scale, abs=1)
    assert prepared_height == pytest.approx(height * page.scale, abs=1)
    assert (page.scale == 1) == (width * height <= most)


@pytest.mark.parametrize(("width", "height"), [(900, 300), (300, 900)])
def test_no_side_of_a_page_is_longer_than_the_model_can_use(width: int, height: int) -> None:
    page = prepare(np.zeros((height, width, 3), dtype=np.uint8), Plan(longest_side=600))
    assert sorted(page.pixels.shape[:2]) == [200, 600]


def test_a_blank_page_is_not_turned() -> None:
    page = prepare(np.full((1754, 1240, 3), 250, dtype=np.uint8))
    assert (page.blank, page.rotation, page.skew) == (True, 0, 0)


def test_without_opencv_pages_are_levelled_all_the_same() -> None:
    program = """
        import sys
        sys.modules["cv2"] = sys.modules["rapidocr"] = None
        import numpy as np
        from tests.shared.drawn_pages import synthetic_page, turned
        from PIL import Image
        from pecia_workers.media.decoding import prepare
        page = Image.fromarray(synthetic_page(5)).rotate(-3, expand=True, fillcolor="white")
        prepared = prepare(turned(np.asarray(page), 180))
        print(prepared.rotation, round(prepared.skew))
    """
    ended = ran(sys.executable, "-c", textwrap.dedent(program), env={"PYTHONPATH": ":".join(sys.path)})

    assert ended.stdout == "0 -3\n", ended.stderr


def test_a_page_found_in_the_cache_tells_how_this_one_was_prepared() -> None:
    earlier = Page(number=4, verdict=Verdict.OK, width=2, height=2, engine="e", rotation=90, skew=1.5)
    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    part: Any = SimpleNamespace(ordinal=0)
    moved = _moved(earlier, part, PageImage(pixels=pixels, rotation=180, scale=0.5), Timings())
    assert (moved.number, moved.rotation, moved.skew, moved.scale) == (1, 180, 0, 0.5)
