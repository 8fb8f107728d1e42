"""HTML files: the pages as sections, their blocks as the elements that HTML has for them."""

from __future__ import annotations

from pecia.formats import missing
from pecia_schemas.results import Document, Page, PageFailure

_HEAD = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<title>Recognised text</title>
<style>table { border-collapse: collapse } td { border: 1px solid; padding: 0 .5em } .list { list-style: none }</style>
</head>
<body>
"""


def of_document(document: Document) -> str:
    """Return the pages with their numbers and verdicts, and what is missing."""
    return f"{_HEAD}{''.join(_page(one) for one in missing.pages(document))}</body>\n</html>\n"


def _page(one: Page | PageFailure) -> str:
    if isinstance(one, PageFailure):
        return f'<section id="page_{one.number}" class="missing">\n<p>{missing.page(one)}</p>\n</section>\n'
    return f'<section id="page_{one.number}" class="{one.verdict}">\n{one.html}\n</section>\n'
