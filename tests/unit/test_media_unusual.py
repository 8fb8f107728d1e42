"""Pictures that a plain reading distorts, repeats or does not see: oblong pixels, previews in a TIFF, ink as no ink."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageChops
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import inspect_file
from pecia_workers.media.pages import Limits
from tests.shared.decoded import page_pixels
from tests.shared.dicom_files import secondary_capture
from tests.shared.fixture_types import MakeFile
from tests.shared.pictures import encoded, marked

LIMITS = Limits.of(WorkerSettings())
SIDEWAYS = 6


def shown(path: Path, limits: Limits = LIMITS) -> list[NDArray[np.uint8]]:
    """Return the pages of a file, which have the size that was announced."""
    pages = []
    for page in inspect_file(path, limits):
        pages.append(page_pixels(path, page.index, limits))
        assert pages[-1].shape[:2] == (page.height, page.width)
    return pages


def density(kind: str, across: int, down: int, *, turned: bool = False) -> bytes:
    """A picture of 60 x 100 whose pixels have this density."""
    exif = Image.Exif()
    if turned:
        exif[0x0112] = SIDEWAYS
    if kind == "DICOM":
        return secondary_capture(np.asarray(marked().convert("L")), PixelAspectRatio=[across, down])
    return encoded(marked(), kind, dpi=(across, down), exif=exif)


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "JPEG", "DICOM"])
@pytest.mark.parametrize(
    ("across", "down", "size"),
    [
        (204, 98, (60, 208)),
        (204, 391, (115, 100)),
        (100, 300, (180, 100)),
        (204, 196, (60, 100)),  # a fine fax, near enough
        (300, 2, (60, 100)),  # a mistake
    ],
)
def test_pixels_become_square(
    kind: str, across: int, down: int, size: tuple[int, int], file: MakeFile
) -> None:
    (pixels,) = shown(file(density(kind, across, down)))
    assert pixels.shape[:2] == (size[1], size[0])
    marked_corner = pixels[: size[1] // 4, : size[0] // 4].reshape(-1, 3)
    assert len(np.unique(marked_corner // 32, axis=0)) == 1


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "JPEG"])
def test_a_density_is_that_of_the_picture_before_it_is_turned(kind: str, file: MakeFile) -> None:
    (pixels,) = shown(file(density(kind, 200, 100, turned=True)))
    assert pixels.shape[:2] == (60, 200)


@given(
    across=st.integers(1, 1000),
    down=st.integers(1, 1000),
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
)
def test_no_limit_is_passed_by_making_pixels_square(across: int, down: int, width: int, height: int) -> None:
    limits = replace(LIMITS, page_pixels=max(100_000, width * height))
    wide, high = limits.square(width, height, across / down)
    limits.check_page(wide, high)
    assert (
        (wide, high) == (width, height)
        or 0.99 < (wide / high) / (width / height * down / across) < 1.01
        or (min(wide, high) < 100)
    )


def test_dicom_states_its_spacing_in_several_places(file: MakeFile) -> None:
    pixels = np.asarray(marked().convert("L"))
    for name in ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing"):
        about: dict[str, Any] = {name: ["0.5", "0.25"]}
        (page,) = shown(file(secondary_capture(pixels, **about)))
        assert page.shape[:2] == (200, 60)


def frames(*kinds: tuple[dict[int, int], int]) -> bytes:
    """A TIFF of frames with these tags, each so wide."""
    pages = []
    for tags, width in kinds:
        page = Image.new("L", (width, 20), 200)
        page.encoderinfo = {"tiffinfo": ImageFileDirectory_v2()}
        for tag, value in tags.items():
            page.encoderinfo["tiffinfo"][tag] = value
        pages.append(page)
    return encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:], **pages[0].encoderinfo)


PAGE: dict[int, int] = {}
OF_MANY, REDUCED, MASK, OLD_REDUCED = {254: 2}, {254: 1}, {254: 4}, {255: 2}


@pytest.mark.parametrize(
    ("kinds", "widths"),
    [
        ([(PAGE, 40), (REDUCED, 10), (PAGE, 41), (REDUCED, 11)], [40, 41]),
        ([(REDUCED, 10), (PAGE, 40)], [40]),
        ([(PAGE, 40), (OLD_REDUCED, 10)], [40]),
        ([(PAGE, 40), (MASK, 40), ({254: 5}, 10)], [40]),
        ([(OF_MANY, 40), (OF_MANY, 30)], [40, 30]),
        ([(REDUCED, 40)], [40]),
        ([(PAGE, 40), (REDUCED, 40)], [40, 40]),  # no smaller: it is wrong about itself
    ],
)
def test_smaller_copies_and_masks_in_a_tiff_are_no_pages(
    kinds: list[tuple[dict[int, int], int]], widths: list[int], file: MakeFile
) -> None:
    assert [page.shape[1] for page in shown(file(frames(*kinds)))] == widths


@pytest.mark.parametrize("ink", [(0, 0, 0, 255), (0, 255, 255, 0), (20, 10, 10, 90)])
@pytest.mark.parametrize("other", [False, True])
def test_cmyk_is_read_by_the_polarity_that_shows_something(
    ink: tuple[int, ...], other: bool, file: MakeFile
) -> None:
    image = Image.new("CMYK", (60, 100))
    image.paste(ink, (0, 0, 20, 33))
    content = encoded(ImageChops.invert(image) if other else image, "JPEG", quality=95)
    adobe = content.index(b"\xff\xee")
    (pixels,) = shown(file(content[:adobe] + content[adobe + 16 :]))
    assert pixels[60, 40].min() > 240
    assert int(pixels[60, 40].sum()) - int(pixels[10, 10].sum()) > 100


def test_a_blank_page_in_cmyk_stays_as_it_is(file: MakeFile) -> None:
    (pixels,) = shown(file(encoded(Image.new("CMYK", (60, 100)), "JPEG")))
    assert pixels.min() > 240
