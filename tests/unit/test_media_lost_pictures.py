"""A page of a PDF whose picture is broken is damaged; only one that is truly empty is blank."""

from pathlib import Path

import pytest
from PIL import Image

from pecia_schemas import FailureCode
from pecia_workers.media.decoding import load_page
from pecia_workers.media.limits import Limits, MediaError
from pictures import encoded

JPEG_START = b"\xff\xd8\xff"


def scanned(path: Path, picture: Image.Image, *, broken: bool) -> Path:
    content = encoded(picture, "PDF", resolution=150)
    path.write_bytes(content.replace(JPEG_START, b"\0\0\0") if broken else content)
    return path


def test_a_scan_whose_picture_cannot_be_decoded_is_damaged(tmp_path: Path, limits: Limits) -> None:
    path = scanned(tmp_path / "scan.pdf", Image.effect_noise((600, 800), 90), broken=True)

    with pytest.raises(MediaError) as caught:
        load_page(path, 0, limits)

    assert caught.value.code is FailureCode.DAMAGED


def test_a_scan_of_an_empty_sheet_is_blank(tmp_path: Path, limits: Limits) -> None:
    path = scanned(tmp_path / "scan.pdf", Image.new("RGB", (600, 800), "white"), broken=False)

    assert load_page(path, 0, limits).blank
