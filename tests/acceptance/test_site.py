"""The documentation as a site: a person switches between its versions and searches, without a server of its own."""

import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.shared import http_doubles
from tests.shared.browsers import tab
from tests.shared.http_doubles import LoopbackServer, QuietHandler
from tests.shared.snippets import ROOT

pytestmark = pytest.mark.gate


class Files(QuietHandler, SimpleHTTPRequestHandler):
    """Serves a folder."""


def build(source: Path, site: Path, version: str) -> None:
    options = ("--quiet", "--fail-on-warning", f"--define=release={version}")
    subprocess.run([sys.executable, "-m", "sphinx", *options, source, site / version], check=True)


def test_a_page_offers_its_other_versions_and_the_search_finds_it(browser: Browser, tmp_path: Path) -> None:
    source, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(ROOT / "docs" / "_templates", source / "_templates")
    shutil.copy(ROOT / "docs" / "conf.py", source)
    (source / "index.md").write_text("# Start\n\n```{toctree}\nlanes\n```\n")
    (source / "lanes.md").write_text("# Lanes\n\nUrgent pages go first.\n")
    for version in ("0.9.0", "0.10.0"):
        build(source, site, version)
    handler: Any = partial(Files, directory=str(site))
    with http_doubles.serving(LoopbackServer(handler, 0)) as server, tab(browser) as page:
        page.goto(server.root)
        page.wait_for_url("**/0.10.0/index.html")
        page.goto(f"{server.root}/0.10.0/lanes.html")
        page.get_by_label("Version").select_option("0.9.0")
        page.wait_for_url("**/0.9.0/lanes.html")
        page.get_by_label("Search").first.fill("urgent")
        page.keyboard.press("Enter")
        page.locator("#search-results").get_by_role("link", name="Lanes").first.click()
        page.wait_for_url("**/0.9.0/lanes.html*")
