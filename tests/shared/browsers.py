"""A real Chromium without a screen: the machine's, else one out of an npm package that is made for servers."""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.shared.limits import WAIT_S
from tests.shared.npm_files import Download, fetched

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
_IN_A_CONTAINER: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
"""Where its own sandbox cannot be had, nor much shared memory."""
_START_MS: Final = 120_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the length of a block. Raises `npm_files.NothingThereError`."""
    program, environment = _program()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, env=environment, args=_IN_A_CONTAINER, timeout=_START_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Browser, *, complains: bool = False, **options: Any) -> Iterator[Page]:
    """An empty page of a person of its own, whose waits have the one limit; no script fails, nor `complains`."""
    usual = {"viewport": {"width": 1280, "height": 800}, "locale": "en"}
    with browser.new_context(**usual | options) as context:
        context.set_default_timeout(WAIT_S * 1000)
        expect.set_options(timeout=WAIT_S * 1000)
        page, faults = context.new_page(), list[str]()
        if not complains:
            page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page
        assert faults == []


def keep(page: Page, name: str) -> None:
    """Keep a picture of the page, if there is a place for it."""
    if place := os.environ.get("SCREENSHOTS"):
        picture = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
        picture.convert("RGB").quantize(64).save(Path(place) / f"{name}.png", optimize=True)


def _program() -> tuple[Path, dict[str, str | float | bool]]:
    """The program, and the environment in which it finds its libraries."""
    if installed := next(filter(None, map(shutil.which, _INSTALLED)), None):
        return Path(installed), dict(os.environ)
    program = fetched(_CHROMIUM)
    program.chmod(0o755)
    return program, {**os.environ, "LD_LIBRARY_PATH": str(_libraries() / "lib")}


def _libraries() -> Path:
    """Its libraries, unpacked once: a browser that runs beside this one has them open."""
    archive = fetched(_LIBRARIES)
    kept = archive.with_name(f"chromium-libraries-{_LIBRARIES.sha256[:12]}")
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            with tarfile.open(archive) as packed:
                packed.extractall(Path(scratch) / "new", filter="data")
            with suppress(OSError):  # a test session beside this one was quicker
                (Path(scratch) / "new").rename(kept)
    return kept
