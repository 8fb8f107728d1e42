"""A real Chromium without a screen: the machine's, else one out of an npm package that is made for servers."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from npm_files import Download, fetched

_INSTALLED: Final = ("chromium", "chromium-browser", "google-chrome")
_PACKAGE: Final = "@sparticuz/chromium@153.0.0"
_CHROMIUM: Final = Download(
    package=_PACKAGE,
    member="package/bin/chromium.br",
    sha256="53a15d6c3a3d27dfb54c4ba60278b1683136f70cf1e67e989da7dfbd3d451ef0",
)
_LIBRARIES: Final = Download(
    package=_PACKAGE,
    member="package/bin/al2023.tar.br",
    sha256="395fa5e215cc097034be54ad0d710550e847679f336e1db9d61a03731b8ad2bc",
)
_START_MS: Final = 120_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the length of a block. Raises `npm_files.NothingThereError`."""
    program, environment = _program()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program,
            env=environment,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ],  # as in a container, and as root
            timeout=_START_MS,
        )
        try:
            yield browser
        finally:
            browser.close()


def _program() -> tuple[Path, dict[str, str | float | bool]]:
    """The program, and the environment in which it finds its libraries."""
    if installed := next(filter(None, map(shutil.which, _INSTALLED)), None):
        return Path(installed), dict(os.environ)
    program, libraries = fetched(_CHROMIUM), fetched(_LIBRARIES)
    program.chmod(0o755)
    with tarfile.open(libraries) as archive:
        archive.extractall(libraries.parent, filter="data")
    return program, {**os.environ, "LD_LIBRARY_PATH": str(libraries.parent / "lib")}
