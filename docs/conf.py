"""How the documentation is built: `make site`."""

from __future__ import annotations

import json
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from packaging.version import Version

project = "Pecia"
author = "The Pecia authors"
copyright = "The Pecia authors, Apache-2.0"  # noqa: A001  Sphinx's name
version = release = installed("pecia")

extensions = ["myst_parser"]
exclude_patterns = ["_build", "README.md"]
nitpicky = False
smartquotes = False  # `--wait` in the command's help would become one dash, and fail when it is copied

templates_path = ["_templates"]
html_theme = "furo"
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "sidebar/scroll-end.html"),
    ]
}
html_title = f"Pecia {release}"
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 3
myst_links_external_new_tab = True

highlight_language = "none"


def list_versions(app: Any, _error: Exception | None) -> None:
    """Write beside the built version what the page offers to switch to, and have the root show the newest."""
    root = Path(app.outdir).parent
    versions = sorted((file.parent.name for file in root.glob("*/searchindex.js")), key=Version, reverse=True)
    (root / "versions.json").write_text(json.dumps(versions))
    (root / "index.html").write_text(
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
    )


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("build-finished", list_versions)
