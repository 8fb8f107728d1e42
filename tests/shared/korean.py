"""What tests on Korean pages need and few machines have: a font, and Tesseract's language data.

Taken from the machine if it is there, else from npm's registry.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import npm_files
from npm_files import Download, NothingThereError, fetched
from pecia_workers.engines.tesseract import find_tessdata

__all__ = ["NothingThereError", "absent", "korean_font", "korean_tessdata"]

_FONTS: Final = ("/usr/share/fonts/truetype/nanum/NanumGothic.ttf", "/usr/share/fonts/nanum/NanumGothic.ttf")
_FONT: Final = Download(
    package="@fontsource/nanum-gothic@5.3.0",
    member="package/files/nanum-gothic-korean-400-normal.woff2",
    sha256="4a000e3bca1298c43c70dc97447e537a27e0a8c1585f410be57dfeff06d3f713",
)
_TESSDATA: Final = (
    Download(
        package="@tesseract.js-data/kor@1.0.0",
        member="package/4.0.0_best_int/kor.traineddata.gz",
        sha256="ec1749377d49ac38fb3d3cd05dd5e2a53359d329f359762bc638a81132109992",
    ),
    Download(
        package="@tesseract.js-data/eng@1.0.0",
        member="package/4.0.0_best_int/eng.traineddata.gz",
        sha256="5dc5d8d640a212c9d6184921ba103b186f50e0fed9ee716c53e6b312b400d747",
    ),
)


@cache
def korean_font() -> Path:
    """A font with Hangul and Latin letters. Raises `NothingThereError`."""
    installed = next((Path(place) for place in _FONTS if Path(place).is_file()), None)
    return installed or fetched(_FONT)


@cache
def korean_tessdata() -> Path:
    """The directory with the data for Korean and English. Raises `NothingThereError`."""
    installed = find_tessdata()
    if installed:
        return installed
    korean, _english = map(fetched, _TESSDATA)
    return korean.parent


def absent(error: NothingThereError) -> NoReturn:
    """End a test that cannot run here: without a word of failure on a laptop, but not in CI."""
    npm_files.absent(error, "tesseract-ocr-kor, tesseract-ocr-eng and fonts-nanum")
