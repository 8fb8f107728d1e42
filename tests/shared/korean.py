"""What tests on Korean pages need: a font, and Tesseract's language data, from npm's registry.

Pinned by checksum: what a machine has installed is of another version and quality, and reads other words.
`python -m tests.shared.korean DIRECTORY` copies the data there, as `make` does into its virtual environment.
"""

import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tests.shared.npm_files import Download, NothingThereError, fetched

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
    return fetched(_FONT)


@cache
def korean_tessdata() -> Path:
    """The directory with the data for Korean and English. Raises `NothingThereError`."""
    korean, _english = map(fetched, _TESSDATA)
    return korean.parent


def _install(directory: Path) -> None:
    """Copy the data for Korean and English, or say that Korean is not read, and how it is."""
    try:
        shutil.copytree(korean_tessdata(), directory, dirs_exist_ok=True, ignore=_others)
    except (NothingThereError, OSError) as error:
        sys.stderr.write(
            f"Korean's data was not installed ({error}): Korean pages will be named language_unread. On Debian: "
            "apt install tesseract-ocr-kor tesseract-ocr-eng.\n"
        )


def _others(_: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".traineddata")]


if __name__ == "__main__":
    _install(Path(sys.argv[1]))
