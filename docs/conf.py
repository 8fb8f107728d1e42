"""How the documentation is built: `make site`."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "Pecia"
author = "The Pecia authors"
copyright = "The Pecia authors, Apache-2.0"  # noqa: A001  Sphinx's name
version = release = installed("pecia")

extensions = ["myst_parser"]
exclude_patterns = ["_build", "README.md"]
nitpicky = False
smartquotes = False  # `--wait` in the command's help would become one dash, and fail when it is copied

html_theme = "furo"
html_title = f"Pecia {release}"
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 3
myst_links_external_new_tab = True

highlight_language = "none"
