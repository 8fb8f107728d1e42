"""How the documentation is built: `make site`."""

from __future__ import annotations

from importlib.metadata import version as installed

from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

project = "Pecia"
author = "The Pecia authors"
copyright = "The Pecia authors, Apache-2.0"  # noqa: A001  Sphinx's name
version = release = installed("pecia")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "README.md"]
nitpicky = False
smartquotes = False  # `--wait` in the command's help would become one dash, and fail when it is copied

html_theme = "furo"
html_title = f"Pecia {release}"
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 3
myst_links_external_new_tab = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "model_config"}
highlight_language = "none"

default_role = "code"  # the docstrings' single backticks are code


def _without_builtin_type(_: Sphinx, page: document) -> None:
    """Have `type[…]` in a signature lead nowhere: Sphinx takes it for any attribute of that name."""
    for reference in list(page.findall(pending_xref)):
        if reference["reftarget"] == "type":
            reference.replace_self(reference.children)


def setup(app: Sphinx) -> None:
    """Connect what this project adds to Sphinx."""
    app.connect("doctree-read", _without_builtin_type)
